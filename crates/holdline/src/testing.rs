//! Hooks for the project's own tests. Not part of the API: they change without notice.

use crate::client::Client;

/// The number of unreleased places at which a client takes no new ones.
pub const MOST_UNDONE: usize = crate::undone::MOST;

/// The most concurrent release requests that one client sends to a store.
pub const RELEASES_AT_ONCE: usize = crate::undone::UNDER_WAY;

/// The number of places of this client that are still to be released.
pub fn undone(client: &Client) -> usize {
    client.undone()
}

/// Makes the renewer thread of this process panic, as a bug would: all locks of the process are
/// lost.
pub fn break_renewals() {
    crate::renewer::panic_soon();
}
