//! Requests to enter that are in flight or whose outcome is unknown.
//!
//! When the future of an `enter` is dropped or times out, the server may carry out the request
//! later, after the ticket has left over another connection. The place would then stay until its
//! lease ends. So every request to take a place is recorded here until its reply, and leaving with
//! a ticket that is still recorded also bars it: the server refuses it from then on.

use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::names::Name;
use crate::store::TicketId;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use {crate::sync::contain_wakers, tokio::sync::Notify};

#[derive(Default)]
pub(in crate::stores) struct InFlight {
    table: Mutex<Table>,
    /// Notified when a request ends.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    ended: Notify,
}

#[derive(Default)]
struct Table {
    tickets: HashMap<TicketId, Requests>,
    /// The number of tickets at which old ones are removed.
    sweep_at: usize,
}

struct Requests {
    /// The number of requests in flight.
    open: u32,
    /// Whether a request had no reply. A later reply does not settle it: it may have come over
    /// another connection.
    doubt: bool,
    since: Time,
}

/// One request. Dropping it records that it had no reply.
pub(in crate::stores) struct RequestInFlight {
    in_flight: Arc<InFlight>,
    id: TicketId,
    answered: bool,
}

/// The number of tickets at which old ones are first removed; after that, at twice the number left.
/// So the table stays bounded even if a client never leaves.
const KEPT: usize = 4096;

/// How long a departure waits for the answers to its ticket's requests.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const SETTLE_TIME: Duration = Duration::from_secs(1);

impl InFlight {
    /// Records a request before it is sent. It may outlive its caller.
    pub(in crate::stores) fn begin(self: &Arc<Self>, id: TicketId) -> RequestInFlight {
        let now = clock::now();
        let mut table = self.table.lock();
        if table.tickets.len() >= table.sweep_at.max(KEPT) {
            let old = Duration::from_secs(600);
            table
                .tickets
                .retain(|_, requests| requests.open > 0 || requests.since.until(now) < old);
            table.sweep_at = table.tickets.len() * 2;
        }
        table.tickets.entry(id).or_insert(Requests { open: 0, doubt: false, since: now }).open += 1;
        RequestInFlight { in_flight: Arc::clone(self), id, answered: false }
    }

    /// Whether the server may yet carry out a request to enter.
    pub(in crate::stores) fn in_doubt(&self, id: TicketId) -> bool {
        self.table.lock().tickets.contains_key(&id)
    }

    /// [`in_doubt`](Self::in_doubt) for a ticket that leaves. Requests are finished in the
    /// background, so this first waits up to [`SETTLE_TIME`] for their answers: a ticket whose
    /// requests were all answered need not be barred. A waker that panics harms no other ticket.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(in crate::stores) async fn stays_in_doubt(&self, id: TicketId) -> bool {
        let settled = contain_wakers(self.settled(id));
        clock::within(clock::now().after(SETTLE_TIME), settled).await;
        self.in_doubt(id)
    }

    /// Waits until the ticket has no request in flight.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    async fn settled(&self, id: TicketId) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable(); // before the check, so that no end is missed
            if self.table.lock().tickets.get(&id).is_none_or(|requests| requests.open == 0) {
                return;
            }
            ended.await;
        }
    }

    /// Removes a ticket that has left and is barred.
    pub(in crate::stores) fn forget(&self, id: TicketId) {
        let mut table = self.table.lock();
        if table.tickets.get(&id).is_some_and(|requests| requests.open == 0) {
            table.remove(id);
        }
    }
}

impl Table {
    /// Removes a ticket, and frees memory after many.
    fn remove(&mut self, id: TicketId) {
        self.tickets.remove(&id);
        if self.tickets.capacity() > 4 * KEPT && self.tickets.len() < self.tickets.capacity() / 8 {
            self.tickets.shrink_to(KEPT);
        }
    }
}

impl RequestInFlight {
    /// Records that the request had a reply.
    pub(in crate::stores) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let mut table = self.in_flight.table.lock();
        let Some(requests) = table.tickets.get_mut(&self.id) else { return };
        requests.open -= 1;
        requests.doubt |= !self.answered;
        if requests.open == 0 && !requests.doubt {
            table.remove(self.id);
        }
        drop(table); // a waker may drop its task, with another request, on the spot
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        self.in_flight.ended.notify_waiters();
    }
}

/// The error for a repeated call whose first attempt had no reply and may have removed what the
/// second did not find.
pub(in crate::stores) fn outcome_unknown(address: &impl Display, line: &Name) -> Error {
    let message = format!(
        "the connection to {address} broke while a place in lock \"{line}\" was given up; it is \
         not there any more, but it is not known whether it was there until then"
    );
    Error::new(ErrorKind::Unknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    use crate::stores::waiters::tests::assert_dropped_on_waking;

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[test]
    fn a_waker_may_drop_its_task_on_the_spot() {
        let (in_flight, id) = (Arc::new(InFlight::default()), TicketId(7));
        let (open, other) = (in_flight.begin(id), in_flight.begin(TicketId(8)));
        let task = async move {
            let _other = other;
            in_flight.settled(id).await;
        };
        assert_dropped_on_waking(task, || open.answered());
    }

    #[test]
    fn only_what_was_answered_is_settled() {
        let (in_flight, id) = (Arc::new(InFlight::default()), TicketId(7));
        in_flight.begin(id).answered();
        assert!(!in_flight.in_doubt(id));
        drop(in_flight.begin(id));
        in_flight.begin(id).answered();
        assert!(in_flight.in_doubt(id));
        in_flight.forget(id);
        assert!(!in_flight.in_doubt(id));
        let open = in_flight.begin(id);
        in_flight.forget(id);
        assert!(in_flight.in_doubt(id));
        open.answered();
        assert!(!in_flight.in_doubt(id));
    }
}
