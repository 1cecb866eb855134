//! A quorum of stores in memory, and one of real Redis servers, of which some fail, forget, lag or
//! say nothing. (The conformance suite runs quorums that are healthy.)

#[cfg(feature = "redis")]
mod away;
mod force;
mod leaving;
mod nodes;
mod silent;
#[cfg(all(feature = "redis", target_os = "linux"))]
mod storm;
#[cfg(feature = "simulation")]
mod timeline;

use holdline::store::{Store, Ticket};
use holdline::stores::memory::Memory;
use holdline::stores::quorum::Quorum;
use holdline::{Client, Guard, Name};
use holdline_conformance::Chaos;
use holdline_testkit::until;
use std::sync::Arc;
use std::time::Duration;

/// Nodes that can be made to fail.
fn nodes(count: usize) -> Vec<Arc<Chaos>> {
    (0..count).map(|_| Arc::new(Chaos::new(Arc::new(Memory::new())))).collect()
}

fn quorum(nodes: &[Arc<Chaos>]) -> Quorum {
    let stores = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn Store>);
    Quorum::new(stores).expect("enough nodes")
}

/// A client of a quorum of its own, as another process has one.
fn client(nodes: &[Arc<Chaos>]) -> Client {
    Client::new(Arc::new(quorum(nodes)))
}

/// Waits until a lock has been renewed so many times.
async fn is_renewed(guard: &Guard, times: u32) {
    let mut remaining = guard.remaining();
    for _ in 0..times {
        until("it is renewed", async || {
            let before = std::mem::replace(&mut remaining, guard.remaining());
            remaining > before
        })
        .await;
    }
}

fn name() -> Name {
    Name::new("x").expect("fine")
}

/// A ticket that does not lapse while a test waits for its departure.
fn ticket(id: u128) -> Ticket {
    holdline_testkit::ticket(id, Duration::from_secs(3600))
}
