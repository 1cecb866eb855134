//! Tickets for tests that talk to a store, and not to a recipe.

use holdline::store::{Ticket, TicketId};
use std::time::Duration;

/// A ticket of a mutex with this id. It keeps its place, held or waiting, for `lease`.
pub fn ticket(id: u128, lease: Duration) -> Ticket {
    Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease,
        wait_lease: lease,
        token_count: 1,
        min_token: 0,
    }
}
