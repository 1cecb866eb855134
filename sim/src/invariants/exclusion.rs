//! The held weight never exceeds the capacity, in true time.
//!
//! A client holds from its grant until the earliest of its own deadline, its being told of a loss,
//! and its leave being sent. Whoever was removed by force is not counted: that is what force means,
//! and the tokens are what protects a resource from it.

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
    /// Removed by force, perhaps while the grant was still on its way.
    forced: BTreeSet<TicketId>,
}

/// Who believes to hold what.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    locks: BTreeMap<Lock, Held>,
}

impl Held {
    fn check(&self, now: u64) -> Result<(), String> {
        let live =
            |(id, held): &(&TicketId, &Holding)| held.until > now && !self.forced.contains(id);
        let weight: u64 = self.by.iter().filter(live).map(|(_, held)| u64::from(held.weight)).sum();
        if weight > u64::from(self.capacity) {
            return Err(format!("weight {weight} is held of {}: {:?}", self.capacity, self.by));
        }
        Ok(())
    }
}

impl Invariant for Exclusion {
    fn name(&self) -> &'static str {
        "exclusion"
    }

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Granted { lock, id, weight, capacity, until, .. } => {
                let held = self.locks.entry(lock).or_default();
                held.capacity = capacity;
                held.by.retain(|_, holding| holding.until > now);
                held.by.insert(id, Holding { weight, until });
                held.check(now)
            }
            Fact::Renewed { lock, id, until, .. } => {
                let held = self.locks.entry(lock).or_default();
                let Some(holding) = held.by.get_mut(&id).filter(|holding| holding.until > now)
                else {
                    return Err(format!("{id:?} was over, and was renewed"));
                };
                holding.until = until;
                held.check(now)
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
            Fact::Removed { lock, id, cause: Cause::Evicted, .. } => {
                self.locks.entry(lock).or_default().forced.insert(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
