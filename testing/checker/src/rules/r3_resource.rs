//! R3: the guarded resource accepts no token after a higher one, and loses no update.
//!
//! Only the register that checks tokens on reads *and* writes promises that nothing is lost. Losses
//! of the plain register are R3': a failure in a calm run, and a statistic otherwise.

use std::collections::{BTreeMap, HashSet};

use crate::event::{Event, Op, Phase, Register, word};
use crate::index::Cx;
use crate::report::{Collector, Rule, RuleReport};

type Place<'h> = (&'h str, Register);

/// The accepted events of each register, in the order in which the resource accepted them.
fn accepted<'h>(cx: &Cx<'h>) -> BTreeMap<Place<'h>, Vec<&'h Event>> {
    let mut places: BTreeMap<Place<'h>, Vec<&'h Event>> = BTreeMap::new();
    for event in &cx.history.events {
        if matches!(event.op, Op::Open | Op::Read | Op::Write)
            && event.ph == Phase::Ok
            && let Some(reg) = event.reg
        {
            places.entry((event.lock.as_deref().unwrap_or(""), reg)).or_default().push(event);
        }
    }
    places
}

/// The acknowledged appends that are missing in the dump; `None` if there is no dump.
fn lost<'h>(cx: &Cx<'h>, place: Place<'h>, events: &[&'h Event]) -> Option<Vec<&'h Event>> {
    let here = |e: &&Event| {
        e.op == Op::ResourceDump
            && e.reg == Some(place.1)
            && e.lock.as_deref().unwrap_or("") == place.0
    };
    let mut dumps = cx.history.events.iter().filter(here).peekable();
    dumps.peek()?;
    let kept: HashSet<u64> = dumps.filter_map(|e| e.uids.as_deref()).flatten().copied().collect();
    let gone = |e: &&&Event| e.op == Op::Write && e.uid.is_some_and(|u| !kept.contains(&u));
    Some(events.iter().filter(gone).copied().collect())
}

/// The first write based on the state before the lost one: it overwrote it.
fn culprit<'h>(events: &[&'h Event], lost: &Event) -> Option<&'h Event> {
    let at = events.iter().position(|e| std::ptr::eq(*e, lost))?;
    let mut later = events[at + 1..].iter().filter(|e| e.op == Op::Write);
    later.find(|e| e.base != lost.uid).copied()
}

fn report_lost(cx: &Cx<'_>, place: Place<'_>, events: &[&Event], out: &mut Collector) {
    let Some(gone) = lost(cx, place, events) else {
        out.inconclusive(format!(
            "the resource's {} of {} was not dumped",
            word(&place.1),
            place.0
        ));
        return;
    };
    for event in gone {
        let what = format!("{}: an acknowledged append is missing in the end", place.0);
        let shown: Vec<&Event> = [event].into_iter().chain(culprit(events, event)).collect();
        cx.fail(out, what, &shown);
    }
}

pub(super) fn fenced(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R3);
    let places = accepted(cx);
    for (place, events) in places.iter().filter(|(p, _)| p.1 != Register::Plain) {
        let counted = |e: &&&Event| e.op == Op::Write || place.1 == Register::FencedReadWrite;
        let mut highest: Option<&Event> = None;
        for event in events.iter().filter(counted) {
            out.checked(1);
            if let Some(top) = highest.filter(|top| top.fence > event.fence) {
                let what = format!("{}: a stale token was accepted", place.0);
                cx.fail(&mut out, what, &[top, event]);
            } else {
                highest = Some(event);
            }
        }
        if place.1 == Register::FencedReadWrite {
            report_lost(cx, *place, events, &mut out);
        } else if let Some(gone) = lost(cx, *place, events).filter(|gone| !gone.is_empty()) {
            let count = gone.len();
            out.note(format!("{}: fencing writes only lost {count} appends", place.0));
        }
    }
    let stale = cx.history.events.iter().filter(|e| e.ph == Phase::Fail && e.reg.is_some()).count();
    if stale > 0 {
        out.note(format!("{stale} requests with a stale token were refused"));
    }
    finish(cx, out)
}

pub(super) fn plain(cx: &Cx<'_>) -> RuleReport {
    let mut out = Collector::new(Rule::R3Plain);
    for (place, events) in accepted(cx).iter().filter(|(p, _)| p.1 == Register::Plain) {
        out.checked(events.iter().filter(|e| e.op == Op::Write).count());
        if cx.expect.calm {
            report_lost(cx, *place, events, &mut out);
        } else if let Some(gone) = lost(cx, *place, events).filter(|gone| !gone.is_empty()) {
            let count = gone.len();
            out.note(format!("{}: {count} appends were lost, as no token is checked", place.0));
        }
    }
    finish(cx, out)
}

fn finish(cx: &Cx<'_>, mut out: Collector) -> RuleReport {
    let writes = cx.history.events.iter().any(|e| e.op == Op::Write && e.ph == Phase::Ok);
    if cx.expect.resource && !writes {
        out.inconclusive("nothing was written to the guarded resource");
    }
    out.absent("no guarded resource took part");
    out.done()
}
