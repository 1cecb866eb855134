//! R0: what a run must show to count.

use crate::{call, event, grant, held, killed, passes, refused, undecided};
use holdline_checker::{Event, Expect, FaultKind, Op, Phase, Rule};

#[test]
fn r0_wants_enough_grants_and_contention() {
    let two = [held("a", 1, 0, 20, 1), held("b", 1, 10, 30, 2)];
    let expect = |min_acquires, min_contention_percent| Expect {
        min_acquires,
        min_contention_percent,
        ..Expect::small()
    };
    passes(Rule::R0, &two, &expect(2, 50));
    undecided(Rule::R0, &two, &expect(3, 0));
    undecided(Rule::R0, &two, &expect(2, 60));
    undecided(Rule::R0, &[], &expect(0, 1));
}

#[test]
fn r0_wants_every_client_every_fault_and_expiries() {
    let share = Expect { min_share_percent: 40, ..Expect::small() };
    let a = || (0..4).map(|i| held("a", i, i * 10, i * 10 + 5, i)).collect::<Vec<_>>();
    passes(Rule::R0, &a(), &share);
    undecided(Rule::R0, &[a(), vec![held("b", 1, 50, 55, 9)]].concat(), &share);

    let plan = || vec![event(1, "f", Op::Fault, Phase::Invoke, 1).fault(FaultKind::Pause)];
    let done = || vec![event(2, "f", Op::Fault, Phase::Ok, 1).fault(FaultKind::Pause)];
    passes(Rule::R0, &[held("a", 1, 0, 5, 1), plan(), done()], &Expect::small());
    undecided(Rule::R0, &[held("a", 1, 0, 5, 1), plan()], &Expect::small());

    let expiry = Expect { min_expiries: 1, ..Expect::small() };
    let lost = vec![event(90, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R0, &[grant("a", 1, 0, 1), lost], &expiry);
    undecided(Rule::R0, &[held("a", 1, 0, 5, 1)], &expiry);
}

#[test]
fn r0_counts_grants_and_not_attempts() {
    let expect = Expect { min_acquires: 2, ..Expect::small() };
    undecided(Rule::R0, &[held("a", 1, 0, 20, 1), refused("b", 1, 5)], &expect);
}

#[test]
fn r0_a_share_is_wanted_of_all_but_the_killed_and_the_probes() {
    let share = Expect { min_share_percent: 40, ..Expect::small() };
    let with = |other: Vec<Event>| {
        let mut events: Vec<_> = (0..4).map(|i| held("a", i, i * 10, i * 10 + 5, i)).collect();
        events.push(other);
        events
    };
    let once = || held("b", 1, 50, 55, 9);
    passes(Rule::R0, &with([once(), killed("b", 60)].concat()), &share);
    undecided(Rule::R0, &with([once(), killed("a", 60)].concat()), &share);
    let probe = once().into_iter().map(|mut event| {
        event.op = if event.op == Op::Acquire { Op::Probe } else { event.op };
        event
    });
    passes(Rule::R0, &with(probe.collect()), &share);
    // One that never got anything has no share at all.
    undecided(Rule::R0, &with(refused("b", 1, 50)), &share);
}

#[test]
fn r0_an_attempt_meets_others_by_a_refusal_or_while_they_are_at_work() {
    let contended = |percent| Expect { min_contention_percent: percent, ..Expect::small() };
    passes(Rule::R0, &[refused("b", 1, 50)], &contended(100));
    // The first of them is at work for longer than the second.
    let three = [held("a", 1, 0, 100, 1), refused("b", 1, 10), held("c", 1, 50, 60, 2)];
    passes(Rule::R0, &three, &contended(60));
    let mut waits = call("a", Op::Acquire, 1, (0, 100), Phase::Info);
    passes(Rule::R0, &[waits.clone(), held("b", 1, 50, 60, 1)], &contended(50));
    undecided(Rule::R0, &[waits.clone(), held("b", 1, 100, 110, 1)], &contended(50));
    waits.pop();
    undecided(Rule::R0, &[waits, held("b", 1, 50, 60, 1)], &contended(50));
}

#[test]
fn r0_each_of_several_faults_takes_effect() {
    let plan = |n| vec![event(1, "f", Op::Fault, Phase::Invoke, n).fault(FaultKind::Pause)];
    let done = |n| vec![event(2, "f", Op::Fault, Phase::Ok, n).fault(FaultKind::Pause)];
    let both = [held("a", 1, 0, 5, 1), plan(1), plan(2), done(1)];
    undecided(Rule::R0, &both, &Expect::small());
    passes(Rule::R0, &[both.concat(), done(2)], &Expect::small());
}

/// A lock ran out if its holder was told so, or if another held it before the first gave it back.
#[test]
fn r0_an_overlap_without_deadlines_is_an_expiry() {
    let expiry = Expect { min_expiries: 1, ..Expect::small() };
    passes(Rule::R0, &[held("a", 1, 0, 200, 1), held("b", 1, 120, 130, 2)], &expiry);
    undecided(Rule::R0, &[held("a", 1, 0, 90, 1), held("b", 1, 120, 130, 2)], &expiry);
}
