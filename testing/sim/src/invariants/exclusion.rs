//! Exclusion: the held weight never exceeds the capacity, in true time.
//!
//! A client holds from its grant until its own deadline, the report of a loss, or the sending of
//! its leave, whichever is first. A ticket removed by force is not counted: only tokens protect a
//! resource against its holder.
//!
//! In a quorum whose nodes lose data or whose clocks jump, two may hold at once, but only if every
//! node that promised the lock to both, for a time that includes now, has broken one of the
//! promises. The proof: both rely on a majority's promises, any two majorities share a node, and a
//! node that keeps its promises admits one.

use super::promises::Promises;
use super::{Cause, Fact, Invariant, Lock};
use holdline_kernel::TicketId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Holding {
    weight: u32,
    until: u64,
}

#[derive(Debug, Default)]
struct Held {
    capacity: u32,
    by: BTreeMap<TicketId, Holding>,
    /// The tickets removed by force, perhaps while the grant was still on its way.
    forced: BTreeSet<TicketId>,
}

/// The state of the check: which client holds what, by its own judgement.
#[derive(Debug)]
pub(crate) struct Exclusion {
    /// Whether two clients may hold if all nodes that they share have broken a promise.
    excused: bool,
    promises: Promises,
    locks: BTreeMap<Lock, Held>,
}

impl Exclusion {
    pub(crate) fn new(excused: bool) -> Self {
        Exclusion { excused, promises: Promises::default(), locks: BTreeMap::new() }
    }
}

impl Held {
    fn check(&self, now: u64, excuses: Option<&Promises>) -> Result<(), String> {
        let live =
            |(id, held): &(&TicketId, &Holding)| held.until > now && !self.forced.contains(id);
        let live = || self.by.iter().filter(live);
        let weight: u64 = live().map(|(_, held)| u64::from(held.weight)).sum();
        if weight <= u64::from(self.capacity) {
            return Ok(());
        }
        let excused = excuses.is_some_and(|promises| {
            live().all(|(one, _)| {
                live()
                    .filter(|(two, _)| one < *two)
                    .all(|(two, _)| excused(now, promises, *one, *two))
            })
        });
        if excused {
            return Ok(());
        }
        Err(format!("weight {weight} is held of {}: {:?}", self.capacity, self.by))
    }
}

/// Whether there are nodes that promised both tickets a time that is not over, and each of these
/// nodes has broken a promise.
fn excused(now: u64, promises: &Promises, one: TicketId, two: TicketId) -> bool {
    let mut shared =
        promises.to(one).filter(|(_, promise)| promise.until > now).filter_map(|(line, to_one)| {
            let to_two = promises.get(two, line).filter(|promise| promise.until > now)?;
            Some(to_one.broken || to_two.broken)
        });
    shared.next().is_some_and(|broken| broken) && shared.all(|broken| broken)
}

impl Invariant for Exclusion {
    fn name(&self) -> &'static str {
        "exclusion"
    }

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        self.promises.see(now, fact);
        let excuses = self.excused.then_some(&self.promises);
        match *fact {
            Fact::Granted { lock, ticket, until, .. } => {
                let held = self.locks.entry(lock).or_default();
                held.capacity = ticket.capacity;
                held.by.retain(|_, holding| holding.until > now);
                held.by.insert(ticket.id, Holding { weight: ticket.weight, until });
                held.check(now, excuses)
            }
            Fact::Renewed { lock, id, until, .. } => {
                let held = self.locks.entry(lock).or_default();
                let Some(holding) = held.by.get_mut(&id).filter(|holding| holding.until > now)
                else {
                    return Err(format!("{id:?} was over, and was renewed"));
                };
                holding.until = until;
                held.check(now, excuses)
            }
            Fact::Lowered { lock, id, weight } => {
                if let Some(holding) = self.locks.entry(lock).or_default().by.get_mut(&id) {
                    holding.weight = weight;
                }
                Ok(())
            }
            Fact::Ended { lock, id } => {
                self.locks.entry(lock).or_default().by.remove(&id);
                Ok(())
            }
            Fact::Removed { line: (lock, _), id, cause: Cause::Evicted, .. } => {
                self.locks.entry(lock).or_default().forced.insert(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
