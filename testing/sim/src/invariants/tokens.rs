//! Tokens: they rise strictly in the order in which the server admits holders, across restarts,
//! data loss and evictions.
//!
//! With an honest server, they also rise in the order in which clients that exclude one another
//! learn of their grants. In a quorum they always do, unless a node had removed the ticket before
//! the grant, against its promise: then a vote was counted that its node had not kept.
//!
//! The token of a forced removal is above the removed lock's, and not above any later one.

use super::promises::Promises;
use super::{Cause, Fact, Invariant, Line, Lock};
use holdline_kernel::{Seq, TicketId};
use std::collections::{BTreeMap, BTreeSet};

/// The highest tokens so far.
#[derive(Debug)]
pub(crate) struct Tokens {
    quorum: bool,
    honest: bool,
    promises: Promises,
    admitted: BTreeMap<Line, Seq>,
    granted: BTreeMap<(Lock, u32), Seq>,
    forced: BTreeSet<TicketId>,
    /// The tokens of the tickets that were not broken, and the highest fencing token of a forced
    /// removal.
    given: BTreeMap<TicketId, Seq>,
    fences: BTreeMap<Lock, Seq>,
}

impl Tokens {
    pub(crate) fn new(quorum: bool, honest: bool) -> Self {
        Tokens {
            quorum,
            honest,
            promises: Promises::default(),
            admitted: BTreeMap::new(),
            granted: BTreeMap::new(),
            forced: BTreeSet::new(),
            given: BTreeMap::new(),
            fences: BTreeMap::new(),
        }
    }

    /// Whether the nodes that voted for it have kept their promises, so that its token must rise.
    fn vouched(&self, id: TicketId) -> bool {
        self.honest || (self.quorum && self.promises.to(id).all(|(_, promise)| !promise.broken))
    }

    fn granted(&mut self, lock: Lock, seq: Seq, weight: u32, capacity: u32) -> Result<(), String> {
        for (&(_, other), &before) in self.granted.range((lock, 0)..=(lock, u32::MAX)) {
            let rivals = u64::from(other) + u64::from(weight) > u64::from(capacity);
            if rivals && seq <= before {
                return Err(format!("{seq:?} was granted after its rival {before:?}"));
            }
        }
        if let Some(fence) = self.fences.get(&lock).filter(|fence| seq < **fence) {
            return Err(format!("{seq:?} was granted below {fence:?}, which fenced another"));
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

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        self.promises.see(now, fact);
        // A ticket that is broken while it still waits may be admitted later, with a higher token.
        if let Fact::Granted { id, seq, .. } = *fact
            && !self.forced.contains(&id)
        {
            self.given.insert(id, seq);
        }
        match *fact {
            // A quorum's node that has lost a ticket may assign it the same token again.
            Fact::Admitted { .. } if self.quorum => Ok(()),
            Fact::Admitted { line, seq } => match self.admitted.insert(line, seq) {
                Some(before) if seq <= before => {
                    Err(format!("{seq:?} was let in after {before:?}"))
                }
                _ => Ok(()),
            },
            Fact::Removed { id, cause: Cause::Evicted, .. } => {
                self.forced.insert(id);
                Ok(())
            }
            Fact::Broken { lock, id, seq } => {
                let fence = self.fences.entry(lock).or_insert(seq);
                *fence = seq.max(*fence);
                match self.given.get(&id) {
                    Some(token) if self.vouched(id) && *token >= seq => {
                        Err(format!("{token:?} was broken by force, and fenced by {seq:?}"))
                    }
                    _ => Ok(()),
                }
            }
            Fact::Granted { lock, id, seq, weight, capacity, .. }
                if self.vouched(id) && !self.forced.contains(&id) =>
            {
                self.granted(lock, seq, weight, capacity)
            }
            _ => Ok(()),
        }
    }
}
