//! R6: a `try` that is refused as busy has a reason: another ticket could have blocked it.
//!
//! The reasons are generous (everything that may have been in the store between the request and the
//! answer, at its full weight), so a finding is certainly a phantom lock.

use crate::event::{Event, Phase, Reason};
use crate::index::{Attempt, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R6);
    out.absent("no try was refused");
    for lock in cx.locks.keys() {
        let held = occupancies(cx, lock);
        for attempt in cx.of(lock).filter(|a| a.is_try()) {
            let busy = |o: &&Event| o.ph == Phase::Fail && o.reason == Some(Reason::Busy);
            let Some(refusal) = attempt.outcome.filter(busy) else { continue };
            out.checked(1);
            if !justified(cx, lock, &held, attempt, refusal) {
                let what = format!("{lock}: a try was refused although nobody was in its way");
                let last = held.list.iter().filter(|o| o.end < attempt.invoke.t);
                let last = last.max_by_key(|o| o.end).map(|o| o.attempt);
                let before = last.and_then(|a| a.release.and_then(|r| r.outcome).or(a.outcome));
                let events: Vec<&Event> =
                    before.into_iter().chain([attempt.invoke, refusal]).collect();
                cx.fail(&mut out, what, &events);
            }
        }
    }
    out.done()
}

struct Occupancy<'a, 'h> {
    start: u64,
    end: u64,
    attempt: &'a Attempt<'h>,
}

/// All occupancies by their start, with the highest end up to each, so that a backward search can
/// stop.
struct Occupancies<'a, 'h> {
    list: Vec<Occupancy<'a, 'h>>,
    highest_end: Vec<u64>,
}

fn occupancies<'a, 'h>(cx: &'a Cx<'h>, lock: &str) -> Occupancies<'a, 'h> {
    // A refused try never had a place, unless it took so long that a lease could expire: then its
    // first request may have been granted, the answer lost, and only the last request refused.
    let refused = |a: &&Attempt<'_>| {
        let failed = a.outcome.filter(|o| a.is_try() && o.ph == Phase::Fail);
        failed.is_some_and(|o| o.t - a.invoke.t < a.ttl().unwrap_or(u64::MAX))
    };
    let list: Vec<_> = cx
        .of(lock)
        .filter(|a| !refused(a))
        .map(|a| Occupancy { start: a.invoke.t, end: a.possible_end(cx), attempt: a })
        .collect();
    let mut top = 0;
    let highest_end = list
        .iter()
        .map(|o| {
            top = top.max(o.end);
            top
        })
        .collect();
    Occupancies { list, highest_end }
}

fn justified(
    cx: &Cx<'_>,
    lock: &str,
    held: &Occupancies<'_, '_>,
    attempt: &Attempt<'_>,
    refusal: &Event,
) -> bool {
    let room = u128::from(cx.expect.capacity_of(lock)).saturating_sub(attempt.weight().into());
    let upto = held.list.partition_point(|o| o.start <= refusal.t);
    let mut weight: u128 = 0;
    for i in (0..upto).rev() {
        if held.highest_end[i] < attempt.invoke.t {
            return false;
        }
        let other = &held.list[i];
        if other.end >= attempt.invoke.t && !std::ptr::eq(other.attempt, attempt) {
            weight += u128::from(other.attempt.weight());
            if weight > room {
                return true;
            }
        }
    }
    false
}
