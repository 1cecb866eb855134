//! What the project's own tests need to see and do. No part of the API: it changes without notice.

use crate::client::Client;

/// With so many places to give up, a client takes no new ones.
pub const MOST_UNDONE: usize = crate::undone::MOST;

/// The most requests to give a place up that a store has from one client at once.
pub const RELEASES_AT_ONCE: usize = crate::undone::UNDER_WAY;

/// The number of places of this client that are still to be given up.
pub fn undone(client: &Client) -> usize {
    client.undone()
}

/// Makes the renewer thread of this process panic, as a defect in it would: all locks of the
/// process are lost.
pub fn break_renewals() {
    crate::renewer::doom();
}
