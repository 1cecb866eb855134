//! Tokens rise strictly in the order in which the server lets holders in, for ever: across
//! restarts, across the loss of its data, across evictions.
//!
//! Where the server is honest, they also rise in the order in which clients that exclude one
//! another learn of their grants.

use super::{Cause, Fact, Invariant, Lock};
use holdline_kernel::{Seq, TicketId};
use std::collections::{BTreeMap, BTreeSet};

/// The highest tokens so far.
#[derive(Debug)]
pub(crate) struct Tokens {
    honest: bool,
    admitted: BTreeMap<Lock, Seq>,
    granted: BTreeMap<(Lock, u32), Seq>,
    forced: BTreeSet<TicketId>,
}

impl Tokens {
    pub(crate) fn new(honest: bool) -> Self {
        Tokens {
            honest,
            admitted: BTreeMap::new(),
            granted: BTreeMap::new(),
            forced: BTreeSet::new(),
        }
    }

    fn granted(&mut self, lock: Lock, seq: Seq, weight: u32, capacity: u32) -> Result<(), String> {
        for (&(_, other), &before) in self.granted.range((lock, 0)..=(lock, u32::MAX)) {
            let rivals = u64::from(other) + u64::from(weight) > u64::from(capacity);
            if rivals && seq <= before {
                return Err(format!("{seq:?} was granted after its rival {before:?}"));
            }
        }
        let best = self.granted.entry((lock, weight)).or_insert(seq);
        *best = seq.max(*best);
        Ok(())
    }
}

impl Invariant for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn see(&mut self, _now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Admitted { lock, seq, .. } => match self.admitted.insert(lock, seq) {
                Some(before) if seq <= before => {
                    Err(format!("{seq:?} was let in after {before:?}"))
                }
                _ => Ok(()),
            },
            Fact::Removed { id, cause: Cause::Evicted, .. } => {
                self.forced.insert(id);
                Ok(())
            }
            Fact::Granted { lock, id, seq, weight, capacity, .. }
                if self.honest && !self.forced.contains(&id) =>
            {
                self.granted(lock, seq, weight, capacity)
            }
            _ => Ok(()),
        }
    }
}
