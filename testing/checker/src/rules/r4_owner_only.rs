//! R4: a release or renewal by any process but the owner changes nothing.
//!
//! Three observations show a violation: a release succeeds for a process whose lock a rival already
//! held; a holder is told "not held" well before its own deadline; a dump of the store does not
//! name the holder.

use crate::event::{Event, Op, Phase, millis};
use crate::index::{Attempt, Call, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R4);
    for lock in cx.locks.keys() {
        let grants = cx.grants(lock);
        for (i, grant) in grants.iter().enumerate() {
            if let Some(release) = grant.release.filter(Call::ok)
                && cx.expect.release_tells
            {
                out.checked(1);
                released_for_another(cx, lock, &grants[i + 1..], grant, release, &mut out);
            }
            for call in grant.renews.iter().chain(&grant.release) {
                out.checked(usize::from(call.outcome.is_some()));
                thrown_out(cx, &grants, grant, call, &mut out);
            }
        }
        dumps(cx, lock, &grants, &mut out);
    }
    out.absent("nobody released or renewed");
    out.done()
}

/// A's release succeeded although B, which cannot hold together with A, held all the time.
fn released_for_another(
    cx: &Cx<'_>,
    lock: &str,
    later: &[&Attempt<'_>],
    grant: &Attempt<'_>,
    release: Call<'_>,
    out: &mut Collector,
) {
    let (Some(asked), Some(answer)) = (release.invoke, release.outcome) else { return };
    let capacity = u128::from(cx.expect.capacity_of(lock));
    let rival =
        later.iter().take_while(|b| b.granted().is_some_and(|e| e.t <= asked.t)).find(|b| {
            let together = u128::from(b.weight()) + u128::from(grant.weight());
            let holds = b.claim().is_some_and(|(from, to)| from <= asked.t && answer.t <= to);
            together > capacity && holds
        });
    if let Some(rival) = rival {
        let what =
            format!("{lock}: a release succeeded for {} while a rival held", grant.process());
        let mut events: Vec<&Event> = grant.granted().into_iter().chain(rival.granted()).collect();
        events.extend([asked, answer]);
        cx.fail(out, what, &events);
    }
}

/// B was told "not held" although its lease had not expired: another process removed it.
fn thrown_out(
    cx: &Cx<'_>,
    grants: &[&Attempt<'_>],
    grant: &Attempt<'_>,
    call: &Call<'_>,
    out: &mut Collector,
) {
    let (Some(granted), Some(asked), Some(answer)) = (grant.granted(), call.invoke, call.outcome)
    else {
        return;
    };
    let deadline = grant.deadline_by(answer.t).unwrap_or(u64::MAX);
    // A renewal that is answered after the release began finds nothing.
    let released = grant.release.and_then(|r| r.start()).is_some_and(|t| t < answer.t);
    if !call.not_held() || answer.t >= deadline || (released && asked.op == Op::Renew) {
        return;
    }
    // The likely cause: the last release or renewal by another process during the grant.
    let foreign = grants.iter().filter(|o| !std::ptr::eq(**o, grant)).flat_map(|o| {
        let calls = o.release.into_iter().chain(o.renews.iter().copied());
        calls.filter_map(|c| c.invoke).filter(|e| e.t > grant.invoke.t && e.t < answer.t)
    });
    let what = format!(
        "{} was told that it does not hold {} before its deadline at {} ms",
        grant.process(),
        grant.lock(),
        millis(deadline)
    );
    let mut events = vec![granted];
    events.extend(foreign.max_by_key(|e| e.t));
    events.extend([asked, answer]);
    cx.fail(out, what, &events);
}

/// A dump in the middle of a claim must name the claim's owner.
fn dumps(cx: &Cx<'_>, lock: &str, grants: &[&Attempt<'_>], out: &mut Collector) {
    let dumps =
        cx.history.events.iter().filter(|e| {
            e.op == Op::StoreDump && e.ph == Phase::Ok && e.lock.as_deref() == Some(lock)
        });
    for dump in dumps {
        let Some(owners) = &dump.owners else { continue };
        let asked = cx.history.events.iter().find(|e| {
            e.op == Op::StoreDump && e.ph == Phase::Invoke && e.n == dump.n && e.p_is(dump)
        });
        let from = asked.map_or(dump.t, |e| e.t);
        for grant in grants {
            let (Some(owner), Some((start, end))) = (grant.owner(), grant.claim()) else {
                continue;
            };
            if start <= from && dump.t < end {
                out.checked(1);
                if !owners.iter().any(|o| o == owner) {
                    let what = format!("{lock}: the store does not know the holder {owner}");
                    let events: Vec<&Event> = grant.granted().into_iter().chain([dump]).collect();
                    cx.fail(out, what, &events);
                }
            }
        }
    }
}

impl Event {
    fn p_is(&self, other: &Event) -> bool {
        self.process == other.process && self.pid == other.pid
    }
}
