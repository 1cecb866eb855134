//! R4: releases and renewals are the owner's.

use crate::{call, event, fails, grant, held, not_held, passes, release, renewed, run};
use holdline_checker::{Expect, Op, Phase, Reason, Rule};

#[test]
fn r4_a_foreign_release_changes_nothing() {
    let small = Expect::small();
    let heir = || grant("b", 1, 120, 2);
    let refused = || {
        let mut late = held("a", 1, 0, 150, 1);
        late[3].ph = Phase::Fail;
        late[3].reason = Some(Reason::NotHeld);
        late
    };
    passes(Rule::R4, &[refused(), heir(), release("b", 1, 160)], &small);
    // The store says "released" to somebody whose rival holds.
    fails(Rule::R4, &[held("a", 1, 0, 150, 1), heir()], &small);
    let silent = Expect { release_tells: false, ..Expect::small() };
    assert!(!run(&[held("a", 1, 0, 150, 1), heir()], &silent).failed(Rule::R4));
    // The rival is thrown out before its deadline.
    let mut thrown = release("b", 1, 160);
    thrown[1].ph = Phase::Fail;
    thrown[1].reason = Some(Reason::NotHeld);
    fails(Rule::R4, &[refused(), heir(), thrown], &small);
}

#[test]
fn r4_a_dump_names_the_holder() {
    let dump = |owner: &str| {
        vec![event(50, "s", Op::StoreDump, Phase::Ok, 1).owners(vec![owner.to_owned()])]
    };
    passes(Rule::R4, &[held("a", 1, 0, 60, 1), dump("a")], &Expect::small());
    fails(Rule::R4, &[held("a", 1, 0, 60, 1), dump("b")], &Expect::small());
}

#[test]
fn r4_a_release_succeeds_beside_one_that_fits_or_is_over() {
    let heir = || grant("b", 1, 120, 2);
    let shared = |capacity| Expect { capacity, ..Expect::small() };
    passes(Rule::R4, &[held("a", 1, 0, 150, 1), heir()], &shared(2));
    let heavy = heir().into_iter().map(|e| e.weight(2)).collect();
    fails(Rule::R4, &[held("a", 1, 0, 150, 1), heavy], &shared(2));
    passes(Rule::R4, &[held("a", 1, 0, 150, 1), heir(), release("b", 1, 150)], &shared(1));
}

#[test]
fn r4_a_renewal_is_not_refused_before_the_deadline() {
    let small = Expect::small();
    let refused = |at| not_held("a", Op::Renew, (at, at + 2));
    fails(Rule::R4, &[grant("a", 1, 0, 1), refused(50)], &small);
    passes(Rule::R4, &[grant("a", 1, 0, 1), refused(98)], &small);
    // It was on its way when the lock was given back.
    passes(Rule::R4, &[held("a", 1, 0, 50, 1), refused(49)], &small);
    passes(Rule::R4, &[held("a", 1, 0, 50, 1), refused(51)], &small);
    // What is given back later was held until then.
    fails(Rule::R4, &[held("a", 1, 0, 50, 1), refused(20)], &small);
    // A deadline counts from when it is known.
    let later = renewed("a", (130, 131), 230);
    passes(Rule::R4, &[grant("a", 1, 0, 1), refused(118), later], &small);
    let earlier = renewed("a", (80, 81), 180);
    fails(Rule::R4, &[grant("a", 1, 0, 1), earlier, refused(118)], &small);
}

#[test]
fn r4_a_dump_is_judged_by_those_that_held_from_its_request_to_its_answer() {
    let small = Expect::small();
    let dump = |n, (from, to)| {
        let mut events = call("s", Op::StoreDump, n, (from, to), Phase::Ok);
        events[1].owners = Some(vec!["b".to_owned()]);
        events
    };
    let a = || held("a", 1, 10, 60, 1);
    fails(Rule::R4, &[a(), dump(1, (20, 50))], &small);
    passes(Rule::R4, &[a(), dump(1, (5, 50))], &small);
    passes(Rule::R4, &[a(), dump(1, (20, 60))], &small);
    // The request of another dump does not count.
    let other = call("s", Op::StoreDump, 7, (0, 1), Phase::Ok);
    fails(Rule::R4, &[a(), other, dump(1, (20, 50))], &small);
    let elsewhere = dump(1, (20, 50)).into_iter().map(|e| e.lock("M")).collect();
    passes(Rule::R4, &[a(), elsewhere], &small);
}

#[test]
fn r4_a_second_release_does_not_hide_that_the_first_was_refused() {
    let small = Expect::small();
    let refused = not_held("a", Op::Release, (50, 51));
    fails(Rule::R4, &[grant("a", 1, 0, 1), refused, release("a", 1, 60)], &small);
}

/// Another client has dumps of its own, with the same numbers.
#[test]
fn r4_a_dump_is_of_the_process_that_asked_for_it() {
    let other = call("t", Op::StoreDump, 1, (0, 1), Phase::Fail);
    let mut dump = call("s", Op::StoreDump, 1, (20, 50), Phase::Ok);
    dump[1].owners = Some(vec!["b".to_owned()]);
    fails(Rule::R4, &[held("a", 1, 10, 60, 1), other, dump], &Expect::small());
}
