//! R12: a live holder that no fault touches keeps its lock.
//!
//! A lock that is lost without a cause is safe but useless: its renewal was starved, or the store
//! forgot it.

use crate::event::Event;
use crate::index::{Call, Cx, Scope};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    if !(cx.expect.keeps_leases || cx.expect.calm) {
        return Collector::not_applicable(Rule::R12, "leases are not renewed by themselves");
    }
    let mut out = Collector::new(Rule::R12);
    for attempt in &cx.attempts {
        let Some(granted) = attempt.granted() else { continue };
        out.checked(1);
        // After a release, a renewal that was in transit finds nothing.
        let over = attempt.release.and_then(|r| r.start()).unwrap_or(u64::MAX);
        let refused = attempt.renews.iter().filter(|r| r.not_held()).filter_map(|r| r.outcome);
        let refused = refused.filter(|e| e.t < over);
        let release = attempt.release.filter(Call::not_held).and_then(|r| r.outcome);
        let known = attempt.lost.into_iter().chain(refused).chain(release).min_by_key(|e| e.t);
        let Some(known) = known else { continue };
        if !cx.faulty(attempt.process(), granted.t, known.t) {
            let what = format!("{} lost its lock, and no fault explains it", attempt.process());
            let events: Vec<&Event> = vec![granted, known];
            let process = Some(attempt.process());
            let scope = Scope { process, from: granted.t, to: known.t };
            cx.fail_in(&scope, &mut out, what, &events);
        }
    }
    out.done()
}
