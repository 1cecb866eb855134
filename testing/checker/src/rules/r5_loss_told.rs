//! R5: a holder is notified of its loss before a rival is admitted, and claims nothing after its
//! deadline.
//!
//! A process that is stopped or dead cannot be notified; it is excused if it was stopped when its
//! deadline passed.

use super::sweep::{Span, overflows};
use crate::event::{Event, Phase, millis};
use crate::index::{Attempt, Cx, Scope};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    if !cx.expect.tells_loss {
        return Collector::not_applicable(Rule::R5, "the client does not tell of losses");
    }
    let mut out = Collector::new(Rule::R5);
    for lock in cx.locks.keys() {
        let grants = cx.grants(lock);
        for grant in &grants {
            out.checked(usize::from(grant.deadline().is_some()));
            stale_claims(cx, grant, &mut out);
            told_late(cx, grant, &mut out);
        }
        told_after_rival(cx, lock, &grants, &mut out);
    }
    out.absent("no grant has a deadline");
    out.done()
}

/// The handle was asked after its deadline and claimed to be valid.
fn stale_claims(cx: &Cx<'_>, grant: &Attempt<'_>, out: &mut Collector) {
    for sample in &grant.claims {
        let (Some(asked), Some(answer)) = (sample.invoke, sample.outcome) else { continue };
        // Unrecorded renewals show in the deadline of the answer itself.
        let known = grant.deadline_by(asked.t).unwrap_or(u64::MAX);
        let told = grant.lost.map_or(u64::MAX, |l| l.t);
        let until = known.max(answer.deadline.unwrap_or(0)).min(told);
        if answer.ph == Phase::Ok && asked.t > until {
            let what = format!(
                "{} called its lock valid after it had ended at {} ms",
                grant.process(),
                millis(until)
            );
            let events: Vec<&Event> =
                grant.granted().into_iter().chain(grant.lost).chain([asked, answer]).collect();
            cx.fail_in(&overdue(grant, until, asked.t), out, what, &events);
        }
    }
}

/// When the holder stopped claiming; its deadline if it could not act at that time.
fn believed_until(cx: &Cx<'_>, grant: &Attempt<'_>) -> u64 {
    let told = grant.told().map_or(u64::MAX, |e| e.t);
    let Some(deadline) = grant.deadline() else { return told };
    if told > deadline && cx.stopped(grant.process(), deadline).is_some() {
        return deadline;
    }
    told.min(grant.killed.unwrap_or(u64::MAX))
}

/// The holder was notified, but long after its deadline.
fn told_late(cx: &Cx<'_>, grant: &Attempt<'_>, out: &mut Collector) {
    let (Some(deadline), Some(lost)) = (grant.deadline(), grant.lost) else { return };
    if !cx.expect.renewals_recorded && lost.deadline.is_none() {
        // The last deadline was set by a renewal that is not in the history.
        return;
    }
    let until = believed_until(cx, grant);
    if until > deadline.saturating_add(cx.expect.loss_slack_ns) {
        let what = format!(
            "{} was told of its loss long after its deadline at {} ms",
            grant.process(),
            millis(deadline)
        );
        let events: Vec<&Event> = grant.granted().into_iter().chain([lost]).collect();
        cx.fail_in(&overdue(grant, deadline, until), out, what, &events);
    }
}

/// The scope of a loss that its holder did not know of: a fault before its deadline, or of another
/// process, is no reason.
fn overdue<'h>(grant: &Attempt<'h>, deadline: u64, until: u64) -> Scope<'h> {
    Scope { process: Some(&grant.invoke.process), from: deadline, to: until }
}

/// A rival was granted before the old holder, past its deadline, had been notified.
fn told_after_rival(cx: &Cx<'_>, lock: &str, grants: &[&Attempt<'_>], out: &mut Collector) {
    let spans = grants.iter().filter_map(|grant| {
        let start = grant.claim()?.0;
        Some(Span { start, end: believed_until(cx, grant), grant })
    });
    for over in overflows(spans.collect(), cx.expect.capacity_of(lock)) {
        // Overlaps before the deadline are R1's.
        let mut expired = over.held.iter().filter_map(|span| Some((span.grant.deadline()?, *span)));
        let Some((deadline, expired)) = expired.find(|(at, _)| *at <= over.late.start) else {
            continue;
        };
        let what = format!(
            "{lock}: {} got in before {} was told of its loss",
            over.late.grant.process(),
            expired.grant.process()
        );
        let both = [expired.grant, over.late.grant];
        let mut events: Vec<&Event> = both.iter().filter_map(|g| g.granted()).collect();
        events.extend(expired.grant.told());
        cx.fail_in(&overdue(expired.grant, deadline, over.late.start), out, what, &events);
    }
}
