//! Loss: a holder is told of its loss before the store can admit another client.
//!
//! There are two checks. The server's last promise for a place bounds its holder's deadline,
//! however long messages took and whatever happened to the server since. And an honest server
//! expires no place whose holder still relies on it. In a quorum, a majority of the servers must
//! have promised the deadline.
//!
//! Nobody is granted a lock whose deadline has passed, and no renewal shortens a lease, here or, if
//! it is honest, in the server.
//!
//! If a session stands for all entries of a client, and news of their deletion arrive separately, a
//! client relies on an entry that was removed by force until that news arrives.

use super::promises::Promises;
use super::{Cause, Fact, Invariant};
use holdline_kernel::{Seq, TicketId};
use std::collections::{BTreeMap, BTreeSet};

/// The promises, and the holders' deadlines.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The number of servers that must have promised a deadline.
    majority: usize,
    honest: bool,
    /// Whether clients may rely on a place removed by force until its news arrives.
    by_news: bool,
    promises: Promises,
    /// The promised deadline of each place. A ticket has several places if a request arrives twice
    /// and the first place was wiped or expired in between; either answer may arrive last.
    places: BTreeMap<(TicketId, Seq), u64>,
    believed: BTreeMap<TicketId, (Seq, u64)>,
    forced: BTreeSet<TicketId>,
}

impl Loss {
    pub(crate) fn new(majority: usize, honest: bool, by_news: bool) -> Self {
        Loss {
            majority,
            honest,
            by_news,
            promises: Promises::default(),
            places: BTreeMap::new(),
            believed: BTreeMap::new(),
            forced: BTreeSet::new(),
        }
    }

    fn believes(&mut self, id: TicketId, seq: Seq, until: u64) -> Result<(), String> {
        self.believed.insert(id, (seq, until));
        if self.by_news && self.forced.contains(&id) {
            return Ok(());
        }
        let covered = if self.majority == 1 {
            self.places.get(&(id, seq)).is_some_and(|promised| until <= *promised)
        } else {
            // A quorum's token is one node's; other nodes' tokens for the same ticket are lower.
            let covers = self.promises.to(id).filter(|(_, promise)| until <= promise.until);
            covers.count() >= self.majority
        };
        if covered {
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
            Fact::Promised { id, seq, until, .. } => {
                let promised = self.places.entry((id, seq)).or_default();
                if self.honest && until < *promised {
                    return Err(format!("{seq:?} was promised {promised}, and then {until}"));
                }
                *promised = until.max(*promised);
                Ok(())
            }
            Fact::Granted { seq, until, .. } if until <= now => {
                Err(format!("{seq:?} was granted until {until}, which is over"))
            }
            Fact::Granted { ticket, seq, until, .. } => self.believes(ticket.id, seq, until),
            Fact::Renewed { id, until, .. }
                if self.believed.get(&id).is_some_and(|(_, before)| until < *before) =>
            {
                Err(format!("a renewal shortened the lease of {id:?} to {until}"))
            }
            Fact::Renewed { id, seq, until, .. } => self.believes(id, seq, until),
            // A place that was never admitted is not relied on either: news of its own removal, or
            // a gap, arrived before the news of those ahead.
            Fact::Removed { id, seq, cause: Cause::Evicted, .. } => {
                if self.places.contains_key(&(id, seq)) {
                    self.forced.insert(id);
                }
                Ok(())
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
