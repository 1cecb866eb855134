//! R8: when a lock becomes free, the next waiter gets it within a bound.
//!
//! Judged only where the history says when the lock became free: a grant is skipped if a fault was
//! felt in the time, or if somebody's end in the store is not known. An end that was asked for and
//! not yet answered is counted from when it was asked for: then the wait was no longer than that.

use crate::event::{Event, Op, Phase, Reason, millis};
use crate::index::{Attempt, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let Some(handoff) = cx.expect.handoff else {
        return Collector::not_applicable(Rule::R8, "no bound was given");
    };
    let mut out = Collector::new(Rule::R8);
    let mut waits: Vec<u64> = Vec::new();
    let mut late: Vec<(u64, Vec<&Event>)> = Vec::new();
    for lock in cx.locks.keys() {
        for wait in measured(cx, lock) {
            waits.push(wait.ns);
            if wait.ns > handoff.bound_ns {
                late.push((wait.ns, wait.events));
            }
        }
    }
    waits.sort_unstable();
    out.checked(waits.len());
    if waits.is_empty() {
        out.inconclusive("no hand-off could be measured");
    } else {
        let at = |percent: usize| millis(waits[(waits.len() - 1) * percent / 100]);
        out.note(format!("ms: p50 {}, p99 {}, max {}", at(50), at(99), at(100)));
    }
    let percent = 100_usize.saturating_sub(handoff.percent as usize);
    if late.len() > waits.len() * percent / 100 {
        for (ns, events) in late {
            let what = format!("a free lock reached the next waiter only after {} ms", millis(ns));
            cx.fail(&mut out, what, &events);
        }
    }
    out.done()
}

struct Wait<'h> {
    ns: u64,
    events: Vec<&'h Event>,
}

/// Walks the waiting grants of a lock in order, alongside the ends of all others.
///
/// An uncertain end still has a latest time: once that has passed, the lock was free.
fn measured<'h>(cx: &Cx<'h>, lock: &str) -> Vec<Wait<'h>> {
    let mut ends: Vec<(u64, &Attempt<'h>)> =
        cx.of(lock).map(|a| (certain_end(a).unwrap_or_else(|| a.possible_end(cx)), a)).collect();
    ends.sort_by_key(|(end, _)| *end);
    let mut doubts: Vec<(u64, u64, &Attempt<'h>)> =
        cx.of(lock).filter_map(|a| ending(cx, a).map(|(from, to)| (from, to, a))).collect();
    doubts.sort_by_key(|(from, ..)| *from);
    let mut doubts = doubts.into_iter().peekable();
    let (mut waits, mut next) = (Vec::new(), 0);
    let mut open: Vec<(u64, u64, &Attempt<'h>)> = Vec::new();
    for grant in cx.grants(lock).into_iter().filter(|g| g.invoke.op == Op::Acquire) {
        let Some(granted) = grant.granted() else { continue };
        while ends.get(next).is_some_and(|(end, _)| *end <= granted.t) {
            next += 1;
        }
        let last = next.checked_sub(1).map(|i| ends[i]);
        while let Some(doubt) = doubts.next_if(|(from, ..)| *from <= granted.t) {
            open.push(doubt);
        }
        open.retain(|(_, to, _)| *to > granted.t);
        let others = || open.iter().filter(|(.., other)| !std::ptr::eq(*other, grant));
        let doubt = others().any(|(.., other)| certain_end(other).is_none());
        let asked = others().filter(|(.., other)| other.granted().is_some());
        let asked = asked.map(|(from, ..)| *from).max().unwrap_or(0);
        let free = last.map_or(0, |(end, _)| end).max(asked).max(grant.invoke.t);
        if doubt || cx.any_fault(free, granted.t) {
            continue;
        }
        let before = last.and_then(|(_, a)| a.release.and_then(|r| r.outcome).or(a.outcome));
        let events = before.into_iter().chain([grant.invoke, granted]).collect();
        waits.push(Wait { ns: granted.t.saturating_sub(free), events });
    }
    waits
}

/// The interval in which the store lost its place of an attempt, at an unobserved moment.
///
/// An attempt that still waits has none: it blocks none that was admitted.
fn ending(cx: &Cx<'_>, attempt: &Attempt<'_>) -> Option<(u64, u64)> {
    let from = match attempt.granted() {
        // A holder stays until it asks to leave, or its lease may have expired.
        Some(granted) => {
            let asked = attempt.release.and_then(|r| r.start());
            certain_end(attempt).and(asked).unwrap_or(granted.t)
        }
        None => attempt.invoke.t,
    };
    let to = certain_end(attempt).unwrap_or_else(|| attempt.possible_end(cx));
    (to < u64::MAX).then_some((from, to))
}

/// When the store had nothing left of an attempt, if the history proves it.
fn certain_end(attempt: &Attempt<'_>) -> Option<u64> {
    let outcome = attempt.outcome?;
    match outcome.ph {
        Phase::Fail => Some(outcome.t),
        // A refusal that is not to be judged is one all the same.
        Phase::Info if outcome.reason == Some(Reason::Busy) => Some(outcome.t),
        Phase::Ok => {
            let answer = attempt.release?.outcome?;
            (answer.ph == Phase::Ok || answer.is_not_held()).then_some(answer.t)
        }
        _ => None,
    }
}
