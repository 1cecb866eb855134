//! The check that the waiters kept their places.
//!
//! The number of a place is the token of the grant, and tokens rise in the order of grants (R2), so
//! places kept are an order kept. A place may be lost only if the store has not heard from its
//! owner for as long as a waiter may be silent, whatever the reason.

use holdline_checker::{Event, Op, Phase};
use std::collections::BTreeMap;
use std::fmt;

/// How long a waiter may be silent, in milliseconds.
pub(super) const WAIT_LEASE: u64 = 3000;

/// The fate of the places.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The number of clients that waited when an outage began, and got the lock after it.
    waited: usize,
    /// The number of these that got it with the place that they had.
    kept: usize,
    /// Places that should not have been lost.
    pub(super) broken: Vec<String>,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} places kept in outages", self.kept, self.waited)
    }
}

/// The places of one attempt, and when it was granted.
#[derive(Default)]
struct Wait {
    places: Vec<(u64, u64)>,
    granted: Option<u64>,
}

pub(super) fn kept(events: &[Event]) -> Order {
    let mut waits: BTreeMap<(&str, u32, u64), Wait> = BTreeMap::new();
    let mut order = Order::default();
    for event in events {
        let wait = waits.entry((&event.process, event.pid, event.n)).or_default();
        match (event.op, event.ph, event.fence) {
            (Op::Acquire, Phase::Ok, _) => wait.granted = Some(event.t),
            (Op::Enqueue, Phase::Ok, Some(place)) => {
                if let Some(silence) = event.ttl_ms.filter(|silence| *silence < WAIT_LEASE) {
                    let (process, n, old) = (&event.process, event.n, wait.places.last());
                    order.broken.push(format!(
                        "{process}, attempt {n}: place {old:?} became {place} after {silence} ms"
                    ));
                }
                wait.places.push((event.t, place));
            }
            _ => {}
        }
    }
    let begins: Vec<u64> = begins(events).collect();
    for wait in waits.values() {
        order.count(wait, &begins);
    }
    order
}

/// When outages began.
fn begins(events: &[Event]) -> impl Iterator<Item = u64> + '_ {
    let mine = |e: &&Event| e.process == "injector" && e.op == Op::Fault && e.ph == Phase::Ok;
    events.iter().filter(mine).map(|e| e.t)
}

impl Order {
    fn count(&mut self, wait: &Wait, begins: &[u64]) {
        let Some(granted) = wait.granted else { return };
        for begin in begins {
            let before = wait.places.iter().rfind(|(at, _)| at < begin);
            let Some((_, place)) = before.filter(|_| granted > *begin) else { continue };
            self.waited += 1;
            let last = wait.places.last().expect("it had one");
            self.kept += usize::from(last.1 == *place);
        }
    }
}
