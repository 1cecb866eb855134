//! Progress: once the faults stop, every live waiter is admitted within a bound, and no store is
//! reported as failed.

use super::{Fact, Invariant, Settled};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Waiting {
    patient: bool,
    since: u64,
}

/// The waiters, and the bound of their waits.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    calm: Option<(u64, u64)>,
    waiting: BTreeMap<usize, Waiting>,
}

impl Progress {
    fn late(&self, now: u64, waiting: &Waiting) -> bool {
        self.calm.is_some_and(|(calm, bound)| now > waiting.since.max(calm).saturating_add(bound))
    }
}

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn see(&mut self, now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Calm { bound } => self.calm = Some((now, bound)),
            Fact::Began { client, patient } => {
                self.waiting.insert(client, Waiting { patient, since: now });
            }
            Fact::Settled { client, how } => {
                let Some(waiting) = self.waiting.remove(&client) else {
                    return Err(format!("client {client} ended what it had not begun"));
                };
                let in_calm = self.calm.is_some_and(|(calm, _)| waiting.since >= calm);
                if in_calm && waiting.patient && how != Settled::Granted {
                    return Err(format!("client {client} was not admitted in the calm: {how:?}"));
                }
                if self.late(now, &waiting) {
                    return Err(format!("client {client} waited too long: {waiting:?}"));
                }
            }
            Fact::Over { .. } => {
                if let Some((client, waiting)) = self.waiting.first_key_value() {
                    return Err(format!("client {client} is never admitted: {waiting:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
