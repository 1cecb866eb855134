//! R7: after the last heal every lock can be acquired, no client waits for a free lock, and no
//! place is left over.

use crate::event::{Event, Op, Phase, millis};
use crate::index::{Attempt, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let Some(bound) = cx.expect.liveness_ns else {
        return Collector::not_applicable(Rule::R7, "no bound was given");
    };
    let mut out = Collector::new(Rule::R7);
    let healed = cx.history.events.iter().rev().find(|e| e.op == Op::Heal).map_or(0, |e| e.t);
    for lock in cx.locks.keys() {
        probes(cx, lock, healed, bound, &mut out);
        forgotten(cx, lock, bound, &mut out);
        leftovers(cx, lock, healed, &mut out);
    }
    if cx.locks.is_empty() {
        out.inconclusive("no lock was used");
    }
    out.done()
}

fn probes(cx: &Cx<'_>, lock: &str, healed: u64, bound: u64, out: &mut Collector) {
    let after = |a: &&Attempt<'_>| a.invoke.op == Op::Probe && a.invoke.t >= healed;
    let mut any = false;
    for probe in cx.of(lock).filter(after) {
        any = true;
        out.checked(1);
        let limit = probe.invoke.t.saturating_add(bound);
        if probe.granted().is_none_or(|e| e.t > limit) {
            let what = format!(
                "{lock}: a fresh client did not get the lock within {} ms after the last heal",
                millis(bound)
            );
            let events: Vec<&Event> = [probe.invoke].into_iter().chain(probe.outcome).collect();
            cx.fail(out, what, &events);
        }
    }
    if !any {
        out.inconclusive(format!("{lock} was not probed after the last heal"));
    }
}

/// A live client still waits at the end, although no other has blocked it for long.
fn forgotten(cx: &Cx<'_>, lock: &str, bound: u64, out: &mut Collector) {
    let pending =
        |a: &&Attempt<'_>| a.outcome.is_none() && a.killed.is_none() && a.invoke.op == Op::Acquire;
    for waiter in cx.of(lock).filter(pending) {
        out.checked(1);
        let others = cx.of(lock).filter(|a| a.outcome.is_some());
        let free = others.map(|a| a.possible_end(cx)).max().unwrap_or(0).max(waiter.invoke.t);
        if free.saturating_add(bound) < cx.end && !cx.faulty(waiter.process(), free, cx.end) {
            let what = format!(
                "{lock}: {} still waits, although the lock has been free since {} ms",
                waiter.process(),
                millis(free)
            );
            cx.fail(out, what, &[waiter.invoke]);
        }
    }
}

/// The last dump of the store, made after every lease has expired, must name no owner.
fn leftovers(cx: &Cx<'_>, lock: &str, healed: u64, out: &mut Collector) {
    let mine =
        |e: &&Event| e.op == Op::StoreDump && e.ph == Phase::Ok && e.lock.as_deref() == Some(lock);
    let Some(dump) = cx.history.events.iter().rev().find(mine).filter(|e| e.t >= healed) else {
        out.note(format!("{lock}: the store was not dumped at the end"));
        return;
    };
    // The ticket of an attempt that is still in progress is no leftover.
    let at_work = cx.of(lock).any(|a| a.invoke.t <= dump.t && a.possible_end(cx) >= dump.t);
    let owners = dump.owners.as_deref().unwrap_or_default();
    out.checked(1);
    if !at_work && !owners.is_empty() {
        let what = format!("{lock}: the store still has {} entries of nobody", owners.len());
        cx.fail(out, what, &[dump]);
    }
}
