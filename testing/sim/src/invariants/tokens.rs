//! Tokens: they rise strictly in the order in which the server admits holders, across restarts,
//! data loss and evictions.
//!
//! With an honest server, they also rise in the order in which clients that exclude one another
//! learn of their grants. In a quorum they always do, unless a node had removed the ticket before
//! the grant, against its promise: then a vote was counted that its node had not kept.
//!
//! The token of a forced removal is above the removed lock's, and not above any later one.
//!
//! A ticket may reserve several tokens from its own on, and ask for a lower bound: then all places
//! that come later are above these tokens and that bound. Servers that lose their data remember
//! this by their clocks, which do not cover the bound that a quorum has asked for.

use super::promises::Promises;
use super::{Cause, Fact, Invariant, Line, Lock};
use holdline_kernel::{Seq, Ticket, TicketId};
use std::collections::{BTreeMap, BTreeSet};

/// The highest tokens so far.
#[derive(Debug)]
pub(crate) struct Tokens {
    quorum: bool,
    honest: bool,
    promises: Promises,
    admitted: BTreeMap<Line, Seq>,
    /// The highest token that each line has reserved, and the last token of each place.
    reserved: BTreeMap<Line, Seq>,
    last: BTreeMap<(Line, Seq), Seq>,
    granted: BTreeMap<(Lock, u32), Seq>,
    forced: BTreeSet<TicketId>,
    /// The tokens of the tickets that were not broken, and the highest fencing token of a forced
    /// removal.
    given: BTreeMap<TicketId, Seq>,
    fences: BTreeMap<Lock, Seq>,
}

/// The last of the tokens that a ticket reserves, if this is its first.
fn last_of(seq: Seq, ticket: &Ticket) -> Seq {
    Seq(seq.0 + u64::from(ticket.token_count) - 1)
}

impl Tokens {
    pub(crate) fn new(quorum: bool, honest: bool) -> Self {
        Tokens {
            quorum,
            honest,
            promises: Promises::default(),
            admitted: BTreeMap::new(),
            reserved: BTreeMap::new(),
            last: BTreeMap::new(),
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

    fn entered(&mut self, line: Line, ticket: &Ticket, seq: Seq, new: bool) -> Result<(), String> {
        let reserved = self.reserved.entry(line).or_insert(Seq(0));
        let least = Seq(ticket.min_token);
        if new && (seq <= *reserved || seq < least) {
            return Err(format!("{seq:?} is new after {reserved:?}, with {least:?} for a bound"));
        }
        if new {
            self.last.insert((line, seq), last_of(seq, ticket));
            *reserved = last_of(seq, ticket).max(*reserved);
        }
        if least > Seq(0) {
            *reserved = last_of(least, ticket).max(*reserved);
        }
        Ok(())
    }

    fn fenced(
        &mut self,
        line: Line,
        seq: Seq,
        fence: Seq,
        behind: Option<Seq>,
    ) -> Result<(), String> {
        let last = self.last.get(&(line, seq)).copied().unwrap_or(seq);
        if fence <= last || behind.is_some_and(|behind| fence > behind) {
            return Err(format!("{seq:?} to {last:?} was fenced by {fence:?}, before {behind:?}"));
        }
        // A later place may have the same number.
        let below = Seq(fence.0 - 1);
        let reserved = self.reserved.entry(line).or_insert(Seq(0));
        *reserved = below.max(*reserved);
        Ok(())
    }

    fn granted(&mut self, lock: Lock, seq: Seq, ticket: &Ticket) -> Result<(), String> {
        let Ticket { weight, capacity, .. } = *ticket;
        for (&(_, other), &before) in self.granted.range((lock, 0)..=(lock, u32::MAX)) {
            let rivals = u64::from(other) + u64::from(weight) > u64::from(capacity);
            if rivals && seq <= before {
                return Err(format!("{seq:?} was granted after its rival {before:?}"));
            }
        }
        if let Some(fence) = self.fences.get(&lock).filter(|fence| seq < **fence) {
            return Err(format!("{seq:?} was granted below {fence:?}, which fenced another"));
        }
        let last = last_of(seq, ticket);
        let best = self.granted.entry((lock, weight)).or_insert(last);
        *best = last.max(*best);
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
        if let Fact::Granted { ticket, seq, .. } = *fact
            && !self.forced.contains(&ticket.id)
        {
            self.given.insert(ticket.id, last_of(seq, &ticket));
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
            Fact::Entered { line, ticket, seq, new } => self.entered(line, &ticket, seq, new),
            Fact::Fenced { line, seq, fence, behind } => self.fenced(line, seq, fence, behind),
            Fact::Wiped { line } if self.quorum => {
                self.reserved.remove(&line);
                Ok(())
            }
            Fact::Granted { lock, ticket, seq, .. }
                if self.vouched(ticket.id) && !self.forced.contains(&ticket.id) =>
            {
                self.granted(lock, seq, &ticket)
            }
            _ => Ok(()),
        }
    }
}
