//! R11: a deadline is never later than the sending of the request plus the lease.
//!
//! The store may count the lease from the moment at which the request left the client, so a client
//! that counts from the reply believes it holds for too long. R1 detects this only if a rival
//! happens to come in time; this rule always does.

use crate::event::{Event, Phase, millis};
use crate::index::{Attempt, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R11);
    out.absent("no grant has both a lease and a deadline");
    for attempt in &cx.attempts {
        let Some(ttl) = attempt.ttl() else { continue };
        if let Some(granted) = attempt.granted().filter(|_| attempt.invoke.ph == Phase::Invoke) {
            judge(cx, attempt.invoke, granted, ttl, false, &mut out);
        }
        for renew in attempt.renews.iter().filter(|r| r.ok()) {
            let Some(answer) = renew.outcome else { continue };
            if let Some(asked) = sent(attempt, answer, renew.invoke) {
                judge(cx, asked, answer, ttl, true, &mut out);
            }
        }
    }
    out.done()
}

/// The request of an answer; without a `k`, the latest before the answer.
fn sent<'h>(attempt: &Attempt<'h>, answer: &Event, paired: Option<&'h Event>) -> Option<&'h Event> {
    if answer.k.is_some() {
        return paired;
    }
    let asked = attempt.renews.iter().filter_map(|r| r.invoke);
    asked.filter(|e| e.t <= answer.t).max_by_key(|e| e.t).filter(|_| paired.is_some())
}

/// A waiter asks more than once before it is granted, and so does a try whose answer was lost, so
/// the first request is no bound. But no deadline can be later than the answer plus the lease.
fn judge(
    cx: &Cx<'_>,
    asked: &Event,
    answer: &Event,
    ttl: u64,
    asked_once: bool,
    out: &mut Collector,
) {
    let Some(deadline) = answer.deadline else { return };
    out.checked(1);
    let from = if asked_once { asked.t } else { answer.t };
    if deadline > from.saturating_add(ttl) {
        let what = format!(
            "a deadline is {} ms later than the request plus the lease",
            millis(deadline - from.saturating_add(ttl))
        );
        cx.fail(out, what, &[asked, answer]);
    }
}
