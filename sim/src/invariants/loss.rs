//! A holder is told of a loss before the store could let a rival in.
//!
//! Two books are kept. What the server last promised for a place bounds what its holder believes,
//! however long messages took and whatever became of the server since. And where the server is
//! honest, it lets no place lapse whose holder still believes in it.
//! In a quorum a majority of the servers must have promised it.

use super::promises::Promises;
use super::{Cause, Fact, Invariant};
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;

/// Promises, and beliefs.
#[derive(Debug)]
pub(crate) struct Loss {
    /// So many servers must have promised what is believed.
    majority: usize,
    honest: bool,
    promises: Promises,
    believed: BTreeMap<TicketId, (Seq, u64)>,
}

impl Loss {
    pub(crate) fn new(majority: usize, honest: bool) -> Self {
        Loss { majority, honest, promises: Promises::default(), believed: BTreeMap::new() }
    }

    fn believes(&mut self, id: TicketId, seq: Seq, until: u64) -> Result<(), String> {
        self.believed.insert(id, (seq, until));
        // A token is one node's number; the others' numbers for the same ticket are lower.
        let alone = self.majority == 1;
        let covers = self
            .promises
            .to(id)
            .filter(|(_, promise)| until <= promise.until && (!alone || promise.seq == seq));
        if covers.count() >= self.majority {
            return Ok(());
        }
        let promised: Vec<_> = self.promises.to(id).collect();
        Err(format!("{seq:?} is believed until {until}, promised {promised:?}"))
    }
}

impl Invariant for Loss {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        self.promises.see(now, fact);
        match *fact {
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
