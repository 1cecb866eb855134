//! R6 and R7: refusals have a reason, and waiting ends.

use crate::{
    MS, because, call, event, fails, fault, grant, held, killed, not_held, passes, refused,
    release, renewed, undecided,
};
use holdline_checker::{Event, Expect, FaultKind, Op, Phase, Reason, Rule};

#[test]
fn r6_a_refusal_has_a_reason() {
    let expect = Expect { late_ns: 0, grace_ns: MS, ..Expect::small() };
    let refused = |at| {
        let answer = event(at + 1, "b", Op::TryAcquire, Phase::Fail, 7).reason(Reason::Busy);
        vec![event(at, "b", Op::TryAcquire, Phase::Invoke, 7), answer]
    };
    passes(Rule::R6, &[held("a", 1, 0, 10, 1), refused(8)], &expect);
    fails(Rule::R6, &[held("a", 1, 0, 10, 1), refused(20)], &expect);
    // A dead holder's lease is a reason, and so is an attempt that may have been granted.
    passes(Rule::R6, &[grant("a", 1, 0, 1), refused(90)], &expect);
    fails(Rule::R6, &[grant("a", 1, 0, 1), refused(110)], &expect);
    let unknown = vec![
        event(0, "a", Op::Acquire, Phase::Invoke, 1).ttl_ms(100),
        event(10, "a", Op::Acquire, Phase::Info, 1).reason(Reason::Timeout),
    ];
    passes(Rule::R6, &[unknown.clone(), refused(90)], &expect);
    fails(Rule::R6, &[unknown.clone(), refused(120)], &expect);
    let tidy = Expect { cleanup_ns: Some(20 * MS), ..expect };
    fails(Rule::R6, &[unknown, refused(90)], &tidy);
    let two = Expect { capacity: 2, ..Expect::small() };
    fails(Rule::R6, &[held("a", 1, 0, 10, 1), refused(8)], &two);
}

#[test]
fn r7_every_lock_can_be_had_after_the_heal() {
    let expect = Expect { liveness_ns: Some(50 * MS), late_ns: 0, ..Expect::small() };
    let heal = || vec![event(100, "f", Op::Heal, Phase::Ok, 1)];
    let probe = |took: u64| {
        let got = event(110 + took, "p", Op::Probe, Phase::Ok, 1).fence(5);
        let gone = release("p", 1, 115 + took);
        [vec![event(110, "p", Op::Probe, Phase::Invoke, 1), got], gone].concat()
    };
    passes(Rule::R7, &[held("a", 1, 0, 10, 1), heal(), probe(50)], &expect);
    fails(Rule::R7, &[held("a", 1, 0, 10, 1), heal(), probe(51)], &expect);
    undecided(Rule::R7, &[held("a", 1, 0, 10, 1), heal()], &expect);

    let dump = |owners: &[&str]| {
        let owners = owners.iter().map(|o| (*o).to_owned()).collect();
        vec![event(900, "s", Op::StoreDump, Phase::Ok, 1).owners(owners)]
    };
    passes(Rule::R7, &[held("a", 1, 0, 10, 1), probe(1), dump(&[])], &expect);
    fails(Rule::R7, &[held("a", 1, 0, 10, 1), probe(1), dump(&["ghost"])], &expect);
    // Somebody who waits in vain for a free lock.
    let waits = vec![event(120, "w", Op::Acquire, Phase::Invoke, 1).ttl_ms(100)];
    fails(Rule::R7, &[held("a", 1, 0, 10, 1), probe(1), waits, dump(&[])], &expect);
}

fn strict() -> Expect {
    Expect { late_ns: 0, grace_ns: MS, ..Expect::small() }
}

#[test]
fn r6_judges_only_tries_that_were_refused_as_busy() {
    let with = |answer: Vec<Event>| [held("a", 1, 0, 10, 1), refused("b", 1, 8), answer];
    let answer = |op, ph| call("c", op, 1, (50, 51), ph);
    let other = because(answer(Op::TryAcquire, Phase::Fail), Reason::Other("odd".to_owned()));
    passes(Rule::R6, &with(other), &strict());
    let unknown = because(answer(Op::TryAcquire, Phase::Info), Reason::Busy);
    passes(Rule::R6, &with(unknown), &strict());
    passes(Rule::R6, &with(because(answer(Op::Acquire, Phase::Fail), Reason::Busy)), &strict());
    fails(Rule::R6, &with(refused("c", 1, 50)), &strict());
}

#[test]
fn r6_a_reason_was_there_between_the_request_and_the_answer() {
    // Refused tries are none for each other, nor are those that came later.
    fails(Rule::R6, &[refused("b", 1, 20), refused("c", 1, 20)], &strict());
    fails(Rule::R6, &[refused("b", 1, 20), held("a", 1, 30, 40, 1)], &strict());
    // One that came first holds longer than the next.
    let two = [held("a", 1, 0, 90, 1), held("c", 1, 10, 12, 2)];
    passes(Rule::R6, &[two.concat(), refused("b", 1, 50)], &strict());
    // One that is over does not count beside one that is not.
    let expect = Expect { capacity: 2, ..strict() };
    fails(Rule::R6, &[two.concat(), refused("b", 1, 50)], &expect);
    passes(Rule::R6, &[two.concat(), refused("b", 1, 12)], &expect);
}

/// Its first request may have been granted, and the answer lost.
#[test]
fn r6_a_try_that_took_as_long_as_its_lease_may_have_held() {
    let slow = || {
        let mut slow = because(call("c", Op::TryAcquire, 1, (0, 150), Phase::Fail), Reason::Busy);
        slow[0].ttl_ms = Some(100);
        slow
    };
    passes(Rule::R6, &[held("a", 1, 0, 5, 1), slow(), refused("b", 1, 140)], &strict());
    // But it is no reason for itself.
    fails(Rule::R6, &[slow()], &strict());
}

#[test]
fn r6_weights_leave_room_or_not() {
    let expect = Expect { capacity: 3, ..strict() };
    let weigh = |events: Vec<Event>, w| events.into_iter().map(|e| e.weight(w)).collect::<Vec<_>>();
    let a = |weight| weigh(held("a", 1, 0, 50, 1), weight);
    passes(Rule::R6, &[a(3), refused("b", 1, 20)], &expect);
    fails(Rule::R6, &[a(2), refused("b", 1, 20)], &expect);
    passes(Rule::R6, &[a(2), weigh(refused("b", 1, 20), 2)], &expect);
}

/// How long the store may have a place: until the release or the lease's end, and a little longer.
#[test]
fn r6_a_place_is_a_reason_for_as_long_as_it_may_last() {
    let a = || grant("a", 1, 0, 1);
    for expect in [
        Expect { late_ns: 20 * MS, ..strict() },
        Expect { lock_delay_ns: 20 * MS, ..strict() },
        Expect { grace_ns: 21 * MS, ..strict() },
    ] {
        passes(Rule::R6, &[a(), refused("b", 1, 120)], &expect);
        fails(Rule::R6, &[a(), refused("b", 1, 125)], &expect);
    }
    fails(Rule::R6, &[a(), not_held("a", Op::Release, (10, 11)), refused("b", 1, 50)], &strict());
    let unknown = because(call("a", Op::Release, 1, (10, 11), Phase::Fail), Reason::Timeout);
    passes(Rule::R6, &[a(), unknown, refused("b", 1, 50)], &strict());
    let renewal = renewed("a", (80, 81), 180);
    passes(Rule::R6, &[a(), renewal.clone(), refused("b", 1, 180)], &strict());
    passes(Rule::R6, &[a(), renewal[..1].to_vec(), refused("b", 1, 170)], &strict());
    let hidden = Expect { renewals_recorded: false, ..strict() };
    passes(Rule::R6, &[a(), refused("b", 1, 150)], &hidden);
}

#[test]
fn r6_what_is_given_up_is_cleaned_up_unless_a_fault_prevents_that() {
    let mut unknown = because(call("a", Op::Acquire, 1, (0, 10), Phase::Info), Reason::Timeout);
    unknown[0].ttl_ms = Some(100);
    let tidy = Expect { cleanup_ns: Some(20 * MS), settle_ns: 0, ..strict() };
    let cut = |target| fault(FaultKind::Partition, Some(target), (5, 15));
    passes(Rule::R6, &[unknown.clone(), cut("a"), refused("b", 1, 90)], &tidy);
    fails(Rule::R6, &[unknown, cut("c"), refused("b", 1, 90)], &tidy);
}

fn live() -> Expect {
    Expect { liveness_ns: Some(50 * MS), late_ns: 0, grace_ns: 50 * MS, ..Expect::small() }
}

/// A heal at 100 ms, and a probe that gets the lock 10 ms later.
fn healed() -> Vec<Event> {
    let heal = vec![event(100, "f", Op::Heal, Phase::Ok, 1)];
    let got = call("p", Op::Probe, 1, (110, 111), Phase::Ok);
    [heal, got, release("p", 1, 112)].concat()
}

fn store_dump(at: u64, owners: &[&str]) -> Vec<Event> {
    let owners = owners.iter().map(|o| (*o).to_owned()).collect();
    vec![event(at, "s", Op::StoreDump, Phase::Ok, 1).owners(owners)]
}

#[test]
fn r7_judges_probes_after_the_last_heal() {
    let early = [
        vec![event(20, "f", Op::Heal, Phase::Ok, 2)],
        call("p", Op::Probe, 9, (50, 51), Phase::Fail),
    ];
    passes(Rule::R7, &[early.concat(), healed()], &live());
    let never = call("q", Op::Probe, 2, (120, 121), Phase::Fail);
    fails(Rule::R7, &[healed(), never], &live());
    undecided(Rule::R7, &[], &live());
}

#[test]
fn r7_a_waiter_is_forgotten_if_it_could_have_been_served() {
    let waits = |op| vec![event(120, "w", op, Phase::Invoke, 1).ttl_ms(100)];
    let end = |at| store_dump(at, &[]);
    let forgotten = || [healed(), waits(Op::Acquire), end(300)];
    fails(Rule::R7, &forgotten(), &live());
    passes(Rule::R7, &[healed(), waits(Op::Acquire), end(160)], &live());
    fails(Rule::R7, &[healed(), waits(Op::Acquire), end(220)], &live());
    passes(Rule::R7, &[healed(), waits(Op::TryAcquire), end(300)], &live());
    let brief = Expect { settle_ns: 0, ..live() };
    fails(Rule::R7, &forgotten(), &brief);
    passes(Rule::R7, &[forgotten().concat(), killed("w", 130)], &brief);
    passes(Rule::R7, &[forgotten().concat(), held("a", 1, 130, 225, 9)], &live());
    // The last heal is that of another fault.
    let cut = |target| fault(FaultKind::Partition, Some(target), (250, 260))[..1].to_vec();
    passes(Rule::R7, &[forgotten().concat(), cut("w")], &live());
    fails(Rule::R7, &[forgotten().concat(), cut("c")], &live());
}

#[test]
fn r7_leftovers_are_those_of_nobody_at_the_end() {
    let leftover = |at| store_dump(at, &["ghost"]);
    passes(Rule::R7, &[healed(), leftover(200), store_dump(300, &[])], &live());
    passes(Rule::R7, &[leftover(90), healed()], &live());
    fails(Rule::R7, &[healed(), leftover(200)], &live());
    passes(Rule::R7, &[healed(), leftover(200), held("a", 1, 190, 210, 9)], &live());
    fails(Rule::R7, &[healed(), leftover(200), held("a", 1, 210, 220, 9)], &live());
}
