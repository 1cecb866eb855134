//! The requests to enter that are in flight or whose outcome is unknown.
//!
//! When the future of an `enter` is dropped or times out, the server may carry out the request later,
//! after the ticket has left over another connection. The place would then stay until its lease
//! ends. So every request to take a place is recorded here until its reply, and leaving with a ticket
//! that is still recorded also bars it: the server refuses it later.

use crate::clock;
use crate::store::TicketId;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::Duration;

#[derive(Default)]
pub(super) struct InFlight(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    fates: HashMap<TicketId, Fate>,
    /// The number of tickets at which old ones are removed.
    sweep_at: usize,
}

struct Fate {
    /// The number of requests in flight.
    open: u32,
    /// A request had no reply. A later reply does not settle that: it may be of another
    /// connection.
    doubt: bool,
    since: Time,
}

/// One request. Dropping it records that it had no reply.
pub(super) struct RequestInFlight<'a> {
    in_flight: &'a InFlight,
    id: TicketId,
    landed: bool,
}

/// The number of tickets from which old ones are removed; after that, at twice the number that was
/// left. A client that never leaves cannot make it grow without bound.
const KEPT: usize = 4096;

impl InFlight {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock()
    }

    /// Records a request before it is sent.
    pub(super) fn begin(&self, id: TicketId) -> RequestInFlight<'_> {
        let now = clock::now();
        let mut noted = self.noted();
        if noted.fates.len() >= noted.sweep_at.max(KEPT) {
            let old = Duration::from_secs(600);
            noted.fates.retain(|_, fate| fate.open > 0 || fate.since.until(now) < old);
            noted.sweep_at = noted.fates.len() * 2;
        }
        noted.fates.entry(id).or_insert(Fate { open: 0, doubt: false, since: now }).open += 1;
        RequestInFlight { in_flight: self, id, landed: false }
    }

    /// Whether the server may yet carry out a request to enter.
    pub(super) fn in_doubt(&self, id: TicketId) -> bool {
        self.noted().fates.contains_key(&id)
    }

    /// Removes a ticket that has left and is barred.
    pub(super) fn forget(&self, id: TicketId) {
        let mut noted = self.noted();
        if noted.fates.get(&id).is_some_and(|fate| fate.open == 0) {
            noted.remove(id);
        }
    }
}

impl Noted {
    /// Removes a ticket, and frees memory after many.
    fn remove(&mut self, id: TicketId) {
        self.fates.remove(&id);
        if self.fates.capacity() > 4 * KEPT && self.fates.len() < self.fates.capacity() / 8 {
            self.fates.shrink_to(KEPT);
        }
    }
}

impl RequestInFlight<'_> {
    /// Records that the request had a reply.
    pub(super) fn landed(mut self) {
        self.landed = true;
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        let mut noted = self.in_flight.noted();
        let Some(fate) = noted.fates.get_mut(&self.id) else { return };
        fate.open -= 1;
        fate.doubt |= !self.landed;
        if fate.open == 0 && !fate.doubt {
            noted.remove(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_answered_is_settled() {
        let (in_flight, id) = (InFlight::default(), TicketId(7));
        in_flight.begin(id).landed();
        assert!(!in_flight.in_doubt(id));
        drop(in_flight.begin(id));
        in_flight.begin(id).landed();
        assert!(in_flight.in_doubt(id));
        in_flight.forget(id);
        assert!(!in_flight.in_doubt(id));
        let open = in_flight.begin(id);
        in_flight.forget(id);
        assert!(in_flight.in_doubt(id));
        open.landed();
        assert!(!in_flight.in_doubt(id));
    }
}
