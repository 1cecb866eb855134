//! Whether those who waited kept their places.
//!
//! The number of a place is the token of the grant, and tokens rise in the order of grants (R2): so
//! who keeps its place keeps the order. A place may be lost only in an outage, and only if that
//! lasted long enough for the store to take its owner for dead.

use crate::pulse;
use holdline_checker::{Event, Op, Phase};
use std::collections::BTreeMap;
use std::fmt;

/// How soon after the begin of an outage no place can have lapsed: a waiter is heard of every
/// second, and may be silent for three. In nanoseconds.
const SOON: u64 = 1_500_000_000;
/// A place that was given so soon after an outage may be lost to what the servers still have to do
/// about it. In nanoseconds.
const SETTLE: u64 = 1_000_000_000;
/// A process that got no time for so long may have been silent for too long. In milliseconds.
const STALL: u64 = 500;

/// What became of the places.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Those who waited when an outage began, and got the lock after it.
    waited: usize,
    /// Those of them who got it with the place that they had.
    kept: usize,
    /// Places that should not have been lost.
    pub(super) broken: Vec<String>,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} places kept in outages", self.kept, self.waited)
    }
}

/// The places of one attempt, the last of them with its grant.
#[derive(Default)]
struct Wait {
    places: Vec<(u64, u64)>,
    granted: Option<u64>,
}

pub(super) fn kept(events: &[Event]) -> Order {
    let mut waits: BTreeMap<(&str, u32, u64), Wait> = BTreeMap::new();
    for event in events {
        let (granted, told) = match (event.op, event.ph) {
            (Op::Acquire, Phase::Ok) => (true, event.fence),
            (Op::Enqueue, Phase::Ok) => (false, event.fence),
            _ => continue,
        };
        let wait = waits.entry((&event.process, event.pid, event.n)).or_default();
        wait.places.extend(told.map(|place| (event.t, place)));
        wait.granted = granted.then_some(event.t);
    }
    let begins: Vec<u64> = times(events, Op::Fault).collect();
    let outages: Vec<(u64, u64)> = begins.iter().copied().zip(times(events, Op::Heal)).collect();
    let stalls: Vec<u64> = pulse::unplanned(events)
        .into_iter()
        .filter(|(_, stall)| stall.ttl_ms.is_some_and(|length| length >= STALL))
        .map(|(began, _)| began)
        .collect();
    let mut order = Order::default();
    for ((process, _, n), wait) in &waits {
        order.count(wait, &begins);
        for pair in wait.places.windows(2) {
            let [(from, old), (to, new)] = pair else { continue };
            let stalled = stalls.iter().any(|at| (*from..=*to).contains(at));
            if old == new || stalled {
                continue;
            }
            let felt = |(begin, end): &&(u64, u64)| *begin <= *to && *from < end + SETTLE;
            let what = match outages.iter().filter(felt).next_back() {
                None => "without an outage".to_owned(),
                Some((begin, _)) if to - begin < SOON => {
                    format!("{} ms after an outage began", (to - begin) / 1_000_000)
                }
                Some(_) => continue,
            };
            order.broken.push(format!("{process}, attempt {n}: place {old} became {new} {what}"));
        }
    }
    order
}

/// When outages began, or ended.
fn times(events: &[Event], op: Op) -> impl Iterator<Item = u64> + '_ {
    let mine = move |e: &&Event| e.process == "injector" && e.op == op && e.ph == Phase::Ok;
    events.iter().filter(mine).map(|e| e.t)
}

impl Order {
    fn count(&mut self, wait: &Wait, begins: &[u64]) {
        let Some(granted) = wait.granted else { return };
        for begin in begins {
            let before = wait.places.iter().filter(|(at, _)| at < begin).next_back();
            let Some((_, place)) = before.filter(|_| granted > *begin) else { continue };
            self.waited += 1;
            let last = wait.places.last().expect("it had one");
            self.kept += usize::from(last.1 == *place);
        }
    }
}
