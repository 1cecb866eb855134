//! A holder is told of a loss before the store could let a rival in.
//!
//! Two books are kept. What the server last promised for a place bounds what its holder believes,
//! however long messages took and whatever became of the server since. And where the server is
//! honest, it lets no place lapse whose holder still believes in it.

use super::{Cause, Fact, Invariant};
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;

/// Promises, and beliefs.
#[derive(Debug)]
pub(crate) struct Loss {
    honest: bool,
    promised: BTreeMap<(TicketId, Seq), u64>,
    believed: BTreeMap<TicketId, (Seq, u64)>,
}

impl Loss {
    pub(crate) fn new(honest: bool) -> Self {
        Loss { honest, promised: BTreeMap::new(), believed: BTreeMap::new() }
    }

    fn believes(&mut self, id: TicketId, seq: Seq, until: u64) -> Result<(), String> {
        self.believed.insert(id, (seq, until));
        match self.promised.get(&(id, seq)) {
            Some(promise) if until <= *promise => Ok(()),
            promise => Err(format!("{seq:?} is believed until {until}, promised {promise:?}")),
        }
    }
}

impl Invariant for Loss {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Promised { id, seq, until } => {
                let promise = self.promised.entry((id, seq)).or_default();
                *promise = until.max(*promise);
                Ok(())
            }
            Fact::Granted { id, seq, until, .. } | Fact::Renewed { id, seq, until, .. } => {
                self.believes(id, seq, until)
            }
            Fact::Ended { id, .. } => {
                self.believed.remove(&id);
                Ok(())
            }
            Fact::Removed { id, seq, cause: Cause::Lapsed, .. } if self.honest => {
                match self.believed.get(&id) {
                    Some(&(held, until)) if held == seq && until > now => {
                        Err(format!("{seq:?} went while its holder believed in it until {until}"))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
