//! R9: the first in the queue is served first.
//!
//! The order of the queue is known only where the store acknowledged one place before the other was
//! requested. Waiters affected by a fault may have lost their place and are not judged. A waiter
//! that got another place after a fault of any kind (the store may have served no one then), or
//! after the store had heard nothing from it for long enough, is judged by that one; otherwise, no
//! place may be lost.

use std::collections::BTreeMap;

use crate::event::{Event, Op};
use crate::index::{Attempt, Cx, Scope};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    if !cx.expect.fifo {
        return Collector::not_applicable(Rule::R9, "the store promises no order");
    }
    let mut out = Collector::new(Rule::R9);
    for lock in cx.locks.keys() {
        in_order(cx, lock, &mut out);
    }
    if !cx.attempts.iter().any(|a| a.enqueue.outcome.is_some()) {
        out.inconclusive("no place in a queue was acknowledged");
    }
    out.done()
}

/// When the store acknowledged this waiter's place, if it kept that place undisturbed.
fn acknowledged(cx: &Cx<'_>, waiter: &Attempt<'_>, end: u64) -> Option<u64> {
    let first = waiter.enqueue.outcome?.t;
    let silent = |event: &Event| {
        let longest = cx.expect.silence_ns;
        longest
            .zip(event.ttl_ms)
            .is_some_and(|(longest, ms)| ms.saturating_mul(1_000_000) >= longest)
    };
    let again = waiter.requeued.filter(|event| silent(event) || cx.any_fault(first, event.t));
    let at = again.map_or(first, |event| event.t);
    (!cx.faulty(waiter.process(), at, end)).then_some(at)
}

fn in_order(cx: &Cx<'_>, lock: &str, out: &mut Collector) {
    let capacity = cx.expect.capacity_of(lock);
    // Walked from the last grant to the first, so that the ones already seen were granted later.
    let mut later: BTreeMap<u64, (u64, &Attempt<'_>)> = BTreeMap::new();
    // A waiter that still waits at the end was overtaken by all that were admitted.
    for waiter in cx.of(lock).filter(|a| a.outcome.is_none() && a.killed.is_none()) {
        remember(&mut later, acknowledged(cx, waiter, cx.end), waiter);
    }
    for grant in cx.grants(lock).into_iter().rev().filter(|g| g.claim().is_some()) {
        if grant.invoke.op != Op::Acquire {
            continue;
        }
        let room = capacity.saturating_sub(grant.weight());
        let rivals = later.range(room.saturating_add(1)..).map(|(_, first)| *first);
        out.checked(usize::from(grant.enqueue.outcome.is_some()));
        if let Some((at, first)) = rivals.min_by_key(|(at, _)| *at)
            && at < grant.invoke.t
        {
            report(cx, lock, first, grant, out);
        }
        let Some(granted) = grant.granted() else { continue };
        remember(&mut later, acknowledged(cx, grant, granted.t), grant);
    }
}

fn remember<'a, 'h>(
    later: &mut BTreeMap<u64, (u64, &'a Attempt<'h>)>,
    acknowledged: Option<u64>,
    waiter: &'a Attempt<'h>,
) {
    let Some(at) = acknowledged else { return };
    let first = later.entry(waiter.weight()).or_insert((at, waiter));
    if at < first.0 {
        *first = (at, waiter);
    }
}

fn report(cx: &Cx<'_>, lock: &str, first: &Attempt<'_>, jumper: &Attempt<'_>, out: &mut Collector) {
    let what = format!(
        "{lock}: {} was served before {}, who had a place before it came",
        jumper.process(),
        first.process()
    );
    let events = [first.enqueue.outcome, Some(jumper.invoke), jumper.granted(), first.granted()];
    let events: Vec<&Event> = events.into_iter().flatten().collect();
    // The first one's own grant, later on, is shown, but is no part of it.
    let from = first.enqueue.outcome.map_or(0, |e| e.t);
    let to = jumper.granted().map_or(u64::MAX, |e| e.t);
    cx.fail_in(&Scope { process: Some(first.process()), from, to }, out, what, &events);
}
