//! R0: a run that did too little proves nothing, and that counts as a failure.

use std::collections::{BTreeMap, BTreeSet};

use super::r1_exclusivity::full_overlaps;
use crate::event::{Op, Phase, Reason};
use crate::index::{Attempt, Cx};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R0);
    let grants = cx.attempts.iter().filter(|a| a.granted().is_some()).count();
    out.checked(cx.attempts.len());
    out.absent("no demands were made");
    if let Some(line) = cx.history.torn {
        out.note(format!("line {line} is torn, as a process killed while writing leaves it"));
    }
    if grants < cx.expect.min_acquires {
        out.inconclusive(format!("{grants} grants, fewer than {}", cx.expect.min_acquires));
    }
    shares(cx, grants, &mut out);
    contention(cx, &mut out);
    faults(cx, &mut out);
    let lost = cx.attempts.iter().filter(|a| a.granted().is_some() && a.was_lost()).count();
    let expiries = lost.max(full_overlaps(cx));
    out.note(format!("{grants} grants, {expiries} lost or overlapping without deadlines"));
    if expiries < cx.expect.min_expiries {
        let wanted = cx.expect.min_expiries;
        out.inconclusive(format!("{expiries} locks ran out, fewer than {wanted}"));
    }
    out.done()
}

fn shares(cx: &Cx<'_>, grants: usize, out: &mut Collector) {
    let mut share: BTreeMap<&str, usize> = BTreeMap::new();
    // Killed clients had less time than the others.
    let killed: BTreeSet<&str> = cx.killed().collect();
    let lived = |a: &&Attempt<'_>| !killed.contains(a.process()) && a.invoke.op != Op::Probe;
    for attempt in cx.attempts.iter().filter(lived) {
        *share.entry(attempt.process()).or_default() += usize::from(attempt.granted().is_some());
    }
    for (client, count) in share {
        if count * 100 < grants * cx.expect.min_share_percent as usize {
            let percent = cx.expect.min_share_percent;
            out.inconclusive(format!("{client} had {count} of {grants} grants, under {percent} %"));
        }
    }
}

/// An attempt is contended if it was refused, or began while another one was in progress.
fn contention(cx: &Cx<'_>, out: &mut Collector) {
    let (mut all, mut met) = (0_usize, 0_usize);
    for lock in cx.locks.keys() {
        let mut busy_until = 0;
        for attempt in cx.of(lock) {
            let refused = attempt.outcome.is_some_and(|o| o.reason == Some(Reason::Busy));
            all += 1;
            met += usize::from(refused || attempt.invoke.t < busy_until);
            busy_until = busy_until.max(under_way_until(attempt));
        }
    }
    let wanted = cx.expect.min_contention_percent as usize;
    if met * 100 < all * wanted || (all == 0 && wanted > 0) {
        out.inconclusive(format!("{met} of {all} attempts met somebody, under {wanted} %"));
    }
}

fn under_way_until(attempt: &Attempt<'_>) -> u64 {
    let held = attempt.claim().map(|(_, end)| end);
    held.or(attempt.outcome.map(|o| o.t)).unwrap_or(attempt.invoke.t)
}

fn faults(cx: &Cx<'_>, out: &mut Collector) {
    let faults = || cx.history.events.iter().filter(|e| e.op == Op::Fault);
    let id = |e: &'_ crate::event::Event| (e.process.clone(), e.pid, e.n);
    let done: BTreeSet<_> = faults().filter(|e| e.ph == Phase::Ok).map(id).collect();
    for plan in faults().filter(|e| e.ph == Phase::Invoke && !done.contains(&id(e))) {
        out.inconclusive(format!("a planned fault did not take effect ({plan})"));
    }
}
