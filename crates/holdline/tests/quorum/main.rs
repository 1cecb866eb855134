//! A quorum of stores in memory, and one of real Redis servers, of which some fail, forget, lag or
//! say nothing. (The conformance suite runs quorums that are healthy.)

#[cfg(feature = "redis")]
mod away;
mod leaving;
mod nodes;
mod silent;
#[cfg(all(feature = "redis", target_os = "linux"))]
mod storm;

use holdline::store::Ticket;
use std::time::Duration;

/// A ticket that outlasts every test.
fn ticket(id: u128) -> Ticket {
    let lease = Duration::from_secs(60);
    Ticket { lease, wait_lease: lease, ..holdline_testkit::ticket(id) }
}
