//! Requests to enter whose fate is unknown.
//!
//! When the future of an `enter` is dropped, or its time is up, the server may yet carry the
//! request out: after the ticket has been given up over another connection. The place that it then
//! took would stand until its lease ends. So every request to take a place is noted here until it
//! is answered, and giving up a ticket that is still noted also bars it: the server refuses it
//! later.

use crate::clock;
use crate::store::TicketId;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<TicketId, Fate>>);

struct Fate {
    /// How many requests are under way.
    open: u32,
    /// A request went unanswered. What is answered later settles nothing: it may have come over
    /// another connection.
    doubt: bool,
    since: Time,
}

/// One request. Dropping it says that it went unanswered.
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    id: TicketId,
    landed: bool,
}

/// Who never gives a ticket up makes us forget about it at last.
const KEPT: usize = 4096;

impl Flights {
    fn map(&self) -> MutexGuard<'_, HashMap<TicketId, Fate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request before it is sent.
    pub(super) fn begin(&self, id: TicketId) -> Flight<'_> {
        let now = clock::now();
        let mut map = self.map();
        if map.len() >= KEPT && !map.contains_key(&id) {
            let old = Duration::from_secs(600);
            map.retain(|_, fate| fate.open > 0 || fate.since.until(now) < old);
        }
        map.entry(id).or_insert(Fate { open: 0, doubt: false, since: now }).open += 1;
        Flight { flights: self, id, landed: false }
    }

    /// Whether the server may yet carry out a request to enter.
    pub(super) fn in_doubt(&self, id: TicketId) -> bool {
        self.map().contains_key(&id)
    }

    /// The ticket has been given up, and barred.
    pub(super) fn forget(&self, id: TicketId) {
        let mut map = self.map();
        if map.get(&id).is_some_and(|fate| fate.open == 0) {
            map.remove(&id);
        }
    }
}

impl Flight<'_> {
    /// It was answered.
    pub(super) fn landed(mut self) {
        self.landed = true;
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut map = self.flights.map();
        let Some(fate) = map.get_mut(&self.id) else { return };
        fate.open -= 1;
        fate.doubt |= !self.landed;
        if fate.open == 0 && !fate.doubt {
            map.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_answered_is_settled() {
        let (flights, id) = (Flights::default(), TicketId(7));
        flights.begin(id).landed();
        assert!(!flights.in_doubt(id));
        drop(flights.begin(id));
        flights.begin(id).landed();
        assert!(flights.in_doubt(id));
        flights.forget(id);
        assert!(!flights.in_doubt(id));
        let open = flights.begin(id);
        flights.forget(id);
        assert!(flights.in_doubt(id));
        open.landed();
        assert!(!flights.in_doubt(id));
    }
}
