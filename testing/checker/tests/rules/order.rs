//! R8 and R9: hand-offs are soon, and in order.

use crate::{
    MS, because, call, event, fails, fault, flush, held, killed, passes, run, tolerates, undecided,
};
use holdline_checker::{Event, Expect, FaultKind, Handoff, Op, Phase, Reason, Rule};

#[test]
fn r8_a_free_lock_is_handed_on_in_time() {
    let waits = |granted: u64| {
        let mut wait = held("b", 1, granted - 1, granted + 10, 2);
        wait[0].t = 0;
        [held("a", 1, 0, 30, 1), wait]
    };
    let handoff = Handoff { bound_ns: 20 * MS, percent: 100 };
    let expect = Expect { handoff: Some(handoff), ..Expect::small() };
    passes(Rule::R8, &waits(51), &expect);
    fails(Rule::R8, &waits(52), &expect);
    undecided(Rule::R8, &[], &expect);
    // The answer to the release comes later than the next grant, and a refused try is on its way.
    let busy = |granted: u64| {
        let mut waits = waits(granted);
        waits[0][3].t = (granted + 2) * MS;
        let tried = [(granted - 2, Phase::Invoke), (granted + 2, Phase::Fail)];
        let tried = tried.map(|(at, ph)| event(at, "c", Op::TryAcquire, ph, 1).ttl_ms(100));
        let excused = [(0, Phase::Invoke), (1, Phase::Info)]
            .map(|(at, ph)| event(at, "d", Op::TryAcquire, ph, 1).ttl_ms(100).reason(Reason::Busy));
        waits.into_iter().chain([tried.to_vec(), excused.to_vec()]).collect::<Vec<_>>()
    };
    passes(Rule::R8, &busy(50), &expect);
    fails(Rule::R8, &busy(51), &expect);
    let fault = vec![event(35, "f", Op::Fault, Phase::Ok, 1).fault(FaultKind::Partition)];
    let report = run(&[waits(52).concat(), fault], &expect);
    assert!(!report.failed(Rule::R8), "{report}");
}

#[test]
fn r9_who_came_first_is_served_first() {
    let wait = |p, asked: u64, granted: u64, fence| {
        let mut wait = held(p, 1, granted - 1, granted + 5, fence);
        wait[0].t = asked * MS;
        wait.push(event(asked + 1, p, Op::Enqueue, Phase::Ok, 1));
        wait
    };
    let fifo = Expect { fifo: true, ..Expect::small() };
    passes(Rule::R9, &[wait("a", 0, 20, 1), wait("b", 5, 30, 2)], &fifo);
    fails(Rule::R9, &[wait("a", 0, 30, 2), wait("b", 5, 20, 1)], &fifo);
    // Those that asked before the other had a place may be served in any order.
    passes(Rule::R9, &[wait("a", 0, 30, 2), wait("b", 1, 20, 1)], &fifo);
    undecided(Rule::R9, &[held("a", 1, 0, 5, 1)], &fifo);
    let never: Vec<Event> = wait("a", 0, 30, 2).into_iter().filter(|e| e.t < 2 * MS).collect();
    fails(Rule::R9, &[never, wait("b", 5, 20, 1)], &fifo);
    // A place that was lost under a fault does not count; without one it is not to be lost.
    let again = || vec![event(15, "a", Op::Enqueue, Phase::Ok, 1)];
    fails(Rule::R9, &[wait("a", 0, 30, 2), again(), wait("b", 5, 20, 1)], &fifo);
    passes(Rule::R9, &[wait("a", 0, 30, 2), again(), wait("b", 5, 20, 1), flush(10)], &fifo);
    // Nor does one that was lost because the store had heard nothing for long enough.
    let silent = |ms| vec![event(15, "a", Op::Enqueue, Phase::Ok, 1).ttl_ms(ms)];
    let known = Expect { silence_ns: Some(9 * MS), ..fifo.clone() };
    let lost_after = |ms| [wait("a", 0, 30, 2), silent(ms), wait("b", 5, 20, 1)];
    passes(Rule::R9, &lost_after(9), &known);
    fails(Rule::R9, &lost_after(8), &known);
    fails(Rule::R9, &lost_after(9), &fifo);
}

fn promised(percent: u32) -> Expect {
    let handoff = Some(Handoff { bound_ns: 20 * MS, percent });
    Expect { handoff, late_ns: 0, grace_ns: 0, ..Expect::small() }
}

/// A is in until 31 ms, B waits from the start and is granted at this time.
fn handed(granted: u64) -> Vec<Event> {
    let mut wait = held("b", 1, granted - 1, granted + 10, 2);
    wait[0].t = 0;
    [held("a", 1, 0, 30, 1), wait].concat()
}

#[test]
fn r8_a_share_of_the_hand_offs_is_in_time() {
    let one = |i: u64, granted: u64| {
        let shift = |mut event: Event| {
            event.t += i * 1_000 * MS;
            (event.n, event.deadline) = (i, None);
            event
        };
        handed(granted).into_iter().map(shift).collect::<Vec<_>>()
    };
    let ten =
        |late: u64| (0..10).map(|i| one(i, if i < late { 60 } else { 40 })).collect::<Vec<_>>();
    // A's grants are hand-offs as well, and soon: there are twenty.
    passes(Rule::R8, &ten(2), &promised(90));
    fails(Rule::R8, &ten(3), &promised(90));
    fails(Rule::R8, &ten(2), &promised(95));
}

#[test]
fn r8_a_wait_begins_with_its_own_request_and_tries_do_not_wait() {
    let mut waits = [held("a", 1, 0, 30, 1), held("b", 1, 100, 110, 2)].concat();
    passes(Rule::R8, &[waits.clone()], &promised(100));
    for event in waits.iter_mut().filter(|e| e.process == "b") {
        event.t = if event.ph == Phase::Invoke && event.op == Op::Acquire { 0 } else { event.t };
        event.op = if event.op == Op::Acquire { Op::TryAcquire } else { event.op };
    }
    tolerates(Rule::R8, &[waits], &promised(100));
}

/// What may still have been in the way is not held against the store.
#[test]
fn r8_a_doubtful_end_is_not_judged_until_it_is_over() {
    let expect = promised(100);
    let mut doubt = because(call("c", Op::Acquire, 1, (0, 10), Phase::Info), Reason::Timeout);
    doubt[0].ttl_ms = Some(100);
    tolerates(Rule::R8, &[handed(60), doubt.clone()], &expect);
    doubt[0].ttl_ms = Some(5);
    fails(Rule::R8, &[handed(60), doubt], &expect);
    let released = |ph, reason| {
        let mut events = handed(60);
        (events[3].ph, events[3].reason) = (ph, reason);
        events
    };
    tolerates(Rule::R8, &[released(Phase::Info, None)], &expect);
    let roomy = Expect { grace_ns: 50 * MS, ..promised(100) };
    fails(Rule::R8, &[released(Phase::Fail, Some(Reason::NotHeld))], &roomy);
    // One that is never given back is no doubt about its own beginning.
    let never: Vec<Event> = handed(60).into_iter().filter(|e| e.t < 70 * MS).collect();
    fails(Rule::R8, &[never], &expect);
}

#[test]
fn r8_a_fault_is_felt_for_a_while() {
    let felt = || [handed(60), fault(FaultKind::StoreRestart, None, (5, 10))];
    tolerates(Rule::R8, &felt(), &promised(100));
    fails(Rule::R8, &felt(), &Expect { settle_ns: 0, ..promised(100) });
}

fn queue() -> Expect {
    Expect { fifo: true, ..Expect::small() }
}

/// A waiter with a place 1 ms after it asked.
fn waiter(p: &str, asked: u64, granted: u64, fence: u64) -> Vec<Event> {
    let mut wait = held(p, 1, granted - 1, granted + 5, fence);
    wait[0].t = asked * MS;
    wait.push(event(asked + 1, p, Op::Enqueue, Phase::Ok, 1));
    wait
}

#[test]
fn r9_is_about_waiters_that_exclude_each_other() {
    let jumper = || waiter("b", 5, 20, 1);
    let first = || waiter("a", 0, 30, 2);
    fails(Rule::R9, &[first(), jumper()], &queue());
    passes(Rule::R9, &[first(), jumper()], &Expect { capacity: 2, ..queue() });
    let mut lapsed = jumper();
    lapsed[1].deadline = Some(19 * MS);
    passes(Rule::R9, &[first(), lapsed], &queue());
    let tried = jumper().into_iter().map(|mut event| {
        event.op = if event.op == Op::Acquire { Op::TryAcquire } else { event.op };
        event
    });
    passes(Rule::R9, &[first(), tried.collect()], &queue());
}

/// The one that came first of all, not the one that is served last.
#[test]
fn r9_nobody_is_overtaken_by_one_that_came_later() {
    let last = waiter("c", 24, 50, 3);
    fails(Rule::R9, &[waiter("a", 0, 40, 2), last.clone(), waiter("b", 10, 20, 1)], &queue());
    passes(Rule::R9, &[waiter("a", 0, 15, 1), last, waiter("b", 10, 20, 2)], &queue());
}

#[test]
fn r9_the_dead_and_those_that_a_fault_touched_may_be_overtaken() {
    let dead: Vec<Event> = waiter("a", 0, 30, 2).into_iter().filter(|e| e.t < 2 * MS).collect();
    passes(Rule::R9, &[dead, killed("a", 10), waiter("b", 5, 20, 1)], &queue());
    let both = || [waiter("a", 0, 30, 2), waiter("b", 5, 20, 1)].concat();
    let cut = |target| fault(FaultKind::Partition, Some(target), (10, 12));
    passes(Rule::R9, &[both(), cut("a")], &queue());
    fails(Rule::R9, &[both(), cut("c")], &queue());
    // With its new place it is judged again.
    let again = vec![event(15, "a", Op::Enqueue, Phase::Ok, 1)];
    let brief = Expect { settle_ns: 0, ..queue() };
    let events =
        |asked| [waiter("a", 0, 30, 2), again.clone(), cut("a"), waiter("b", asked, 20, 1)];
    passes(Rule::R9, &events(14), &brief);
    fails(Rule::R9, &events(16), &brief);
}

/// One that still waits is not in the way of those that were admitted.
#[test]
fn r8_a_waiter_that_is_never_served_casts_no_doubt_on_others() {
    let waits = vec![event(0, "c", Op::Acquire, Phase::Invoke, 1).ttl_ms(100)];
    fails(Rule::R8, &[waits, handed(60)], &promised(100));
}

/// Of waiters of several weights, the one that came first counts.
#[test]
fn r9_a_waiter_of_any_weight_is_served_in_its_turn() {
    let weigh = |events: Vec<Event>, w| events.into_iter().map(|e| e.weight(w)).collect::<Vec<_>>();
    let expect = Expect { capacity: 3, ..queue() };
    for (first, last) in [(2, 3), (3, 2)] {
        let first = weigh(waiter("a", 0, 30, 2), first);
        let last = weigh(waiter("c", 24, 50, 3), last);
        let jumper = weigh(waiter("b", 10, 20, 1), 2);
        fails(Rule::R9, &[first, last, jumper], &expect);
    }
}
