//! R2: fences are distinct, rise in the order of the grants, and do not change on renewal.

use std::collections::{BTreeMap, HashMap};

use crate::event::Event;
use crate::expect::Fences;
use crate::index::{Attempt, Cx, Scope};
use crate::report::{Collector, Rule, RuleReport};

pub(super) fn check(cx: &Cx<'_>) -> RuleReport {
    if cx.expect.fences == Fences::None {
        return Collector::not_applicable(Rule::R2, "the store has no fences");
    }
    let mut out = Collector::new(Rule::R2);
    let mut tally = Tally { strict: cx.expect.fences == Fences::Strict, soft: 0 };
    for lock in cx.locks.keys() {
        let grants = cx.grants(lock);
        out.checked(grants.iter().filter(|g| g.fence().is_some()).count());
        if grants.iter().any(|g| g.fence().is_none()) {
            out.inconclusive(format!("a grant of {lock} has no fence"));
        }
        distinct(cx, &grants, &mut tally, &mut out);
        rising_in_real_time(cx, &grants, &mut tally, &mut out);
        rising_among_rivals(cx, lock, &grants, &mut tally, &mut out);
        kept_on_renewal(cx, &grants, &mut tally, &mut out);
    }
    if tally.soft > 0 {
        out.note(format!("{} violations, and the fences are best effort only", tally.soft));
    }
    out.done()
}

struct Tally {
    strict: bool,
    soft: usize,
}

impl Tally {
    fn fail(&mut self, cx: &Cx<'_>, out: &mut Collector, what: String, events: &[&Event]) {
        if self.strict {
            cx.fail(out, what, events);
        } else {
            self.soft += 1;
        }
    }

    fn pair(&mut self, cx: &Cx<'_>, out: &mut Collector, what: String, a: Grant<'_>, b: Grant<'_>) {
        let events = [Some(a.invoke), a.granted(), Some(b.invoke), b.granted()];
        let events: Vec<&Event> = events.into_iter().flatten().collect();
        self.fail(cx, out, what, &events);
    }
}

type Grant<'a> = &'a Attempt<'a>;

fn distinct(cx: &Cx<'_>, grants: &[&Attempt<'_>], tally: &mut Tally, out: &mut Collector) {
    let mut seen: HashMap<u64, &Attempt<'_>> = HashMap::new();
    for grant in grants {
        let Some(fence) = grant.fence() else { continue };
        if let Some(other) = seen.insert(fence, grant) {
            tally.pair(cx, out, format!("two grants have the fence {fence}"), other, grant);
        }
    }
}

/// If one grant was known before another was requested, the later fence must be higher.
fn rising_in_real_time(
    cx: &Cx<'_>,
    grants: &[&Attempt<'_>],
    tally: &mut Tally,
    out: &mut Collector,
) {
    let mut asked: Vec<&Attempt<'_>> = grants.to_vec();
    asked.sort_by_key(|g| g.invoke.t);
    let mut known = grants.iter().peekable();
    let mut highest: Option<(u64, &Attempt<'_>)> = None;
    for later in asked {
        while let Some(done) = known.next_if(|g| g.granted().is_some_and(|e| e.t < later.invoke.t))
        {
            if let Some(fence) = done.fence()
                && highest.is_none_or(|(top, _)| fence > top)
            {
                highest = Some((fence, done));
            }
        }
        if let (Some(fence), Some((top, earlier))) = (later.fence(), highest)
            && fence < top
        {
            let what = format!("fence {fence} was granted after fence {top} was known");
            tally.pair(cx, out, what, earlier, later);
        }
    }
}

/// Two claims that cannot be held together were granted one after the other, whatever their waits;
/// unless the store may have forgotten the first one, whose answer may then come last.
fn rising_among_rivals(
    cx: &Cx<'_>,
    lock: &str,
    grants: &[&Attempt<'_>],
    tally: &mut Tally,
    out: &mut Collector,
) {
    let capacity = cx.expect.capacity_of(lock);
    // A lock has few different weights, so the highest fence of each suffices.
    let mut highest: BTreeMap<u64, (u64, &Attempt<'_>)> = BTreeMap::new();
    for later in grants.iter().filter(|g| g.claim().is_some()) {
        let Some(fence) = later.fence() else { continue };
        let room = capacity.saturating_sub(later.weight());
        let rivals = highest.range(room.saturating_add(1)..).map(|(_, top)| *top);
        if let Some((top, earlier)) = rivals.max_by_key(|(top, _)| *top)
            && fence < top
            && earlier.granted().is_some_and(|e| e.t >= later.invoke.t)
            && !cx.excuses(Rule::R1, &forgotten_by(later))
        {
            let what = format!("fence {fence} was granted after its rival's fence {top}");
            tally.pair(cx, out, what, earlier, later);
        }
        let top = highest.entry(later.weight()).or_insert((fence, later));
        if fence > top.0 {
            *top = (fence, later);
        }
    }
}

/// From the request of a grant to its answer.
fn forgotten_by<'h>(later: &Attempt<'h>) -> Scope<'h> {
    let to = later.granted().map_or(u64::MAX, |e| e.t);
    Scope { process: None, from: later.invoke.t, to }
}

fn kept_on_renewal(cx: &Cx<'_>, grants: &[&Attempt<'_>], tally: &mut Tally, out: &mut Collector) {
    for grant in grants {
        let answers = grant.renews.iter().filter(|r| r.ok()).filter_map(|r| r.outcome);
        for renewed in answers.filter(|e| e.fence.is_some() && e.fence != grant.fence()) {
            let what = "a renewal changed the fence".to_owned();
            let events: Vec<&Event> = grant.granted().into_iter().chain([renewed]).collect();
            tally.fail(cx, out, what, &events);
        }
    }
}
