//! R1: at no time is more weight claimed than the lock's capacity.
//!
//! A claim ends at the release, at the deadline or when the holder is notified of the loss,
//! whichever comes first. Overlaps of callers that never check their deadline are counted as well:
//! they prove that a fault has an effect, and a calm run must have none.

use super::sweep::{Overflow, Span, overflows};
use crate::event::millis;
use crate::index::{Attempt, Cx, Scope};
use crate::report::{Collector, Rule, RuleReport};

type SpanOf<'h> = fn(&Attempt<'h>) -> Option<(u64, u64)>;

fn found<'a, 'h>(cx: &'a Cx<'h>, lock: &str, span_of: SpanOf<'h>) -> Vec<Overflow<'a, 'h>> {
    let spans = cx.of(lock).filter_map(|grant| {
        let (start, end) = span_of(grant)?;
        Some(Span { start, end, grant })
    });
    overflows(spans.collect(), cx.expect.capacity_of(lock))
}

/// The number of overlapping grants if deadlines are ignored.
pub(super) fn full_overlaps(cx: &Cx<'_>) -> usize {
    cx.locks.keys().map(|lock| found(cx, lock, Attempt::full).len()).sum()
}

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R1);
    for lock in cx.locks.keys() {
        let claims = cx.of(lock).filter(|a| a.claim().is_some()).count();
        out.checked(claims);
        for overflow in found(cx, lock, Attempt::claim) {
            report(cx, lock, &overflow, "claimed", &mut out);
        }
        if cx.expect.calm {
            for overflow in found(cx, lock, Attempt::full) {
                report(cx, lock, &overflow, "believed to be held in a calm run", &mut out);
            }
        }
    }
    out.note(format!("{} overlaps if deadlines are ignored", full_overlaps(cx)));
    out.done()
}

fn report(cx: &Cx<'_>, lock: &str, over: &Overflow<'_, '_>, verb: &str, out: &mut Collector) {
    let capacity = cx.expect.capacity_of(lock);
    let until = over.held.first().map_or(0, |s| s.end);
    let what = format!(
        "{lock}: weight {} of {capacity} {verb} from {} ms on (the other claim ends at {} ms)",
        over.weight,
        millis(over.late.start),
        millis(until)
    );
    let mut events = Vec::new();
    // Two suffice to show it; ten thousand readers would not help.
    for span in over.held.iter().take(2).chain([&over.late]) {
        events.extend([span.grant.invoke].into_iter().chain(span.grant.granted()));
        let last = span.grant.renews.iter().rev().find(|r| r.ok()).and_then(|r| r.outcome);
        events.extend(last);
        events.extend(span.grant.told());
    }
    // What comes after the second grant explains nothing.
    let from = events.iter().map(|e| e.t).min().unwrap_or(0);
    let scope = Scope { process: None, from, to: over.late.start };
    cx.fail_in(&scope, out, what, &events);
}
