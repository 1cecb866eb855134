//! Tickets for tests that ask a store itself.

use holdline::store::{Ticket, TicketId};
use std::time::Duration;

/// A ticket for a mutex: a lease of 10 s, and a place that is kept for 3 s.
pub fn ticket(id: u128) -> Ticket {
    Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: Duration::from_secs(10),
        wait_lease: Duration::from_secs(3),
        token_count: 1,
        min_token: 0,
    }
}
