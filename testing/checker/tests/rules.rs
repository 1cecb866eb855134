//! Every rule on tiny histories: one that it passes and one that it fails.

use holdline_checker::{
    Event, Expect, FaultKind, Fences, Handoff, History, Op, Phase, Reason, Register, Report, Rule,
    Unpromised, Verdict, check,
};

const MS: u64 = 1_000_000;

fn event(ms: u64, p: &str, op: Op, ph: Phase, n: u64) -> Event {
    Event::new(op, ph, n).lock("L").at(ms * MS, p)
}

/// A grant: asked at `from`, granted 1 ms later with a lease of 100 ms, never given back.
fn grant(p: &str, n: u64, from: u64, fence: u64) -> Vec<Event> {
    let asked = event(from, p, Op::Acquire, Phase::Invoke, n).owner(p).ttl_ms(100);
    let got = event(from + 1, p, Op::Acquire, Phase::Ok, n);
    vec![asked, got.fence(fence).deadline((from + 100) * MS)]
}

/// A release: asked at `at`, answered 1 ms later.
fn release(p: &str, n: u64, at: u64) -> Vec<Event> {
    let asked = event(at, p, Op::Release, Phase::Invoke, n);
    vec![asked, event(at + 1, p, Op::Release, Phase::Ok, n)]
}

fn held(p: &str, n: u64, from: u64, to: u64, fence: u64) -> Vec<Event> {
    [grant(p, n, from, fence), release(p, n, to)].concat()
}

fn run(events: &[Vec<Event>], expect: &Expect) -> Report {
    check(&History::new(events.concat()), expect)
}

fn flush(at: u64) -> Vec<Event> {
    let fault = event(at, "f", Op::Fault, Phase::Ok, 1).fault(FaultKind::StoreFlush);
    vec![fault, event(at, "f", Op::Heal, Phase::Ok, 1)]
}

fn forgets() -> Expect {
    let unpromised = Unpromised { fault: FaultKind::StoreFlush, rules: vec![Rule::R1] };
    Expect { unpromised: vec![unpromised], ..Expect::small() }
}

fn passes(rule: Rule, events: &[Vec<Event>], expect: &Expect) {
    let report = run(events, expect);
    assert_eq!(report.rule(rule).verdict, Verdict::Pass, "{report}");
}

fn fails(rule: Rule, events: &[Vec<Event>], expect: &Expect) -> Report {
    let report = run(events, expect);
    assert_eq!(report.rule(rule).verdict, Verdict::Fail, "{report}");
    assert!(!report.ok());
    assert!(report.rule(rule).findings.iter().all(|f| !f.events.is_empty()));
    report
}

fn undecided(rule: Rule, events: &[Vec<Event>], expect: &Expect) {
    let report = run(events, expect);
    assert!(matches!(report.rule(rule).verdict, Verdict::Inconclusive(_)), "{report}");
    assert!(!report.ok());
}

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
fn r1_claims_do_not_overlap() {
    let small = Expect::small();
    passes(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 2, 30, 2)[..1].to_vec()], &small);
    passes(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 9, 30, 2)], &small);
    let report = fails(Rule::R1, &[held("a", 1, 0, 10, 1), held("b", 1, 5, 30, 2)], &small);
    assert!(report.to_string().contains("L: weight 2 of 1 claimed from 6.000 ms on"), "{report}");
}

#[test]
fn r1_a_claim_ends_at_its_deadline_unless_it_was_renewed() {
    let small = Expect::small();
    let zombie = || held("a", 1, 0, 200, 1);
    let heir = || held("b", 1, 120, 130, 2);
    passes(Rule::R1, &[zombie(), heir()], &small);
    fails(Rule::R1, &[zombie(), heir()], &Expect { calm: true, ..Expect::small() });
    let renewed = vec![
        event(80, "a", Op::Renew, Phase::Invoke, 1),
        event(81, "a", Op::Renew, Phase::Ok, 1).deadline(180 * MS),
    ];
    fails(Rule::R1, &[zombie(), renewed.clone(), heir()], &small);
    let lost = vec![event(110, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R1, &[zombie(), renewed, lost, heir()], &small);
}

#[test]
fn r1_what_was_refused_before_the_grant_does_not_end_the_claim() {
    let refused = vec![event(0, "a", Op::Renew, Phase::Fail, 1).reason(Reason::NotHeld)];
    let grant = held("a", 1, 0, 10, 1);
    let events = [grant[..1].to_vec(), refused, grant[1..].to_vec(), held("b", 1, 5, 30, 2)];
    fails(Rule::R1, &events, &Expect::small());
}

#[test]
fn r1_weights_fill_a_capacity() {
    let weigh = |events: Vec<Event>, w| events.into_iter().map(|e| e.weight(w)).collect::<Vec<_>>();
    let expect = Expect { capacities: [("L".to_owned(), 3)].into(), ..Expect::small() };
    let one = || weigh(held("a", 1, 0, 50, 1), 1);
    let two = || weigh(held("b", 1, 5, 50, 2), 2);
    passes(Rule::R1, &[one(), two()], &expect);
    fails(Rule::R1, &[one(), two(), weigh(held("c", 1, 10, 20, 3), 1)], &expect);
    passes(Rule::R1, &[one(), two(), weigh(held("c", 1, 50, 60, 3), 3)], &expect);
}

#[test]
fn r1_excuses_only_what_the_store_does_not_promise() {
    let overlap = |at| [held("a", 1, 0, 10, 1), held("b", 1, 5, 30, 2), flush(at)];
    passes(Rule::R1, &overlap(4), &forgets());
    fails(Rule::R1, &overlap(4), &Expect::small());
    fails(Rule::R1, &overlap(50), &forgets());
}

#[test]
fn r2_fences_rise_and_stay() {
    let small = Expect::small();
    let pair = |a, b| [held("a", 1, 0, 10, a), held("b", 1, 20, 30, b)];
    passes(Rule::R2, &pair(1, 2), &small);
    fails(Rule::R2, &pair(2, 2), &small);
    fails(Rule::R2, &pair(2, 1), &small);
    passes(Rule::R2, &pair(2, 1), &Expect { fences: Fences::BestEffort, ..Expect::small() });
    let none = Expect { fences: Fences::None, ..Expect::small() };
    assert!(run(&pair(2, 1), &none).ok());

    let renewed = vec![event(5, "a", Op::Renew, Phase::Ok, 1).fence(9)];
    fails(Rule::R2, &[held("a", 1, 0, 10, 1), renewed], &small);

    let mut without = held("a", 1, 0, 10, 1);
    without[1].fence = None;
    undecided(Rule::R2, &[without], &small);
}

#[test]
fn r2_a_rival_that_asked_early_and_was_granted_late_has_the_higher_fence() {
    let mut late = held("b", 1, 30, 40, 1);
    late[0].t = 0;
    fails(Rule::R2, &[held("a", 1, 5, 10, 2), late.clone()], &Expect::small());
    // Two that may hold together are known in any order.
    let shared = Expect { capacity: 2, ..Expect::small() };
    passes(Rule::R2, &[held("a", 1, 5, 10, 2), late.clone()], &shared);
    // If the store may have forgotten the first of them, its answer may come last.
    let overtaken = |at| [held("a", 1, 5, 10, 2), late.clone(), flush(at)];
    passes(Rule::R2, &overtaken(20), &forgets());
    fails(Rule::R2, &overtaken(40), &forgets());
}

fn write(ms: u64, reg: Register, fence: u64, base: Option<u64>, uid: u64) -> Event {
    let mut e = event(ms, "resource", Op::Write, Phase::Ok, uid).reg(reg).fence(fence).uid(uid);
    e.base = base;
    e
}

fn dump(reg: Register, uids: &[u64]) -> Event {
    event(900, "resource", Op::ResourceDump, Phase::Ok, 0).reg(reg).uids(uids.to_vec())
}

#[test]
fn r3_a_fenced_resource_takes_no_stale_token_and_loses_nothing() {
    let reg = Register::FencedReadWrite;
    let small = Expect::small();
    let good = vec![write(1, reg, 1, None, 10), write(2, reg, 2, Some(10), 11)];
    passes(Rule::R3, &[good.clone(), vec![dump(reg, &[10, 11])]], &small);
    fails(Rule::R3, &[good.clone(), vec![dump(reg, &[11])]], &small);
    undecided(Rule::R3, &[good], &small);
    let stale = vec![write(1, reg, 2, None, 10), write(2, reg, 1, Some(10), 11)];
    fails(Rule::R3, &[stale, vec![dump(reg, &[10, 11])]], &small);
    undecided(Rule::R3, &[], &Expect { resource: true, ..Expect::small() });
}

#[test]
fn r3_a_plain_resource_loses_nothing_in_a_calm_run() {
    let reg = Register::Plain;
    let lost = || [vec![write(1, reg, 1, None, 10), write(2, reg, 2, None, 11), dump(reg, &[11])]];
    passes(Rule::R3Plain, &lost(), &Expect::small());
    let calm = Expect { calm: true, ..Expect::small() };
    fails(Rule::R3Plain, &lost(), &calm);
    let kept = vec![write(1, reg, 1, None, 10), dump(reg, &[10])];
    passes(Rule::R3Plain, &[kept], &calm);
}

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
fn r5_a_holder_is_told_before_a_rival_is_in() {
    let small = Expect::small();
    let heir = || held("b", 1, 120, 130, 2);
    let told = |at| vec![event(at, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), told(99), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), told(140), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), heir()], &small);
    fails(Rule::R5, &[grant("a", 1, 0, 1), told(300)], &small);
    let silent = Expect { tells_loss: false, ..Expect::small() };
    assert!(!run(&[grant("a", 1, 0, 1), heir()], &silent).failed(Rule::R5));

    let fault = |kind: FaultKind| {
        let start = event(50, "f", Op::Fault, Phase::Ok, 1).fault(kind).target("a");
        vec![start, event(140, "f", Op::Heal, Phase::Ok, 1)]
    };
    let late = |kind| [grant("a", 1, 0, 1), told(140), heir(), fault(kind)];
    passes(Rule::R5, &late(FaultKind::Pause), &small);
    fails(Rule::R5, &late(FaultKind::Partition), &small);
    passes(Rule::R5, &[grant("a", 1, 0, 1), heir(), fault(FaultKind::Kill)], &small);
}

#[test]
fn r5_renewals_may_be_hidden_if_the_last_deadline_is_told() {
    let hidden = Expect { renewals_recorded: false, ..Expect::small() };
    let lost =
        |deadline: u64| vec![event(500, "a", Op::Lost, Phase::Info, 1).deadline(deadline * MS)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), lost(490)], &hidden);
    fails(Rule::R5, &[grant("a", 1, 0, 1), lost(400)], &hidden);
    let silent = vec![event(500, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R5, &[grant("a", 1, 0, 1), silent], &hidden);
    // And the claim reaches up to that deadline.
    fails(Rule::R1, &[grant("a", 1, 0, 1), lost(490), held("b", 1, 450, 460, 2)], &hidden);
}

#[test]
fn r5_nobody_claims_after_the_deadline() {
    let sample = |at| {
        vec![event(at, "a", Op::Claim, Phase::Invoke, 1), event(at, "a", Op::Claim, Phase::Ok, 1)]
    };
    passes(Rule::R5, &[held("a", 1, 0, 120, 1), sample(90)], &Expect::small());
    fails(Rule::R5, &[held("a", 1, 0, 120, 1), sample(101)], &Expect::small());
}

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

#[test]
fn r11_a_deadline_counts_from_the_sending() {
    let renewed = |deadline: u64| {
        vec![
            event(50, "a", Op::Renew, Phase::Invoke, 1),
            event(60, "a", Op::Renew, Phase::Ok, 1).deadline(deadline * MS),
        ]
    };
    passes(Rule::R11, &[held("a", 1, 0, 70, 1), renewed(150)], &Expect::small());
    fails(Rule::R11, &[held("a", 1, 0, 70, 1), renewed(151)], &Expect::small());
}

#[test]
fn r12_a_live_holder_keeps_its_lock() {
    let keeps = Expect { keeps_leases: true, ..Expect::small() };
    let lost = || vec![event(99, "a", Op::Lost, Phase::Info, 1)];
    passes(Rule::R12, &[held("a", 1, 0, 70, 1)], &keeps);
    fails(Rule::R12, &[grant("a", 1, 0, 1), lost()], &keeps);
    let refused = |t| vec![event(t, "a", Op::Renew, Phase::Fail, 1).reason(Reason::NotHeld)];
    passes(Rule::R12, &[held("a", 1, 0, 70, 1), refused(71)], &keeps);
    fails(Rule::R12, &[held("a", 1, 0, 70, 1), refused(69)], &keeps);
    let fault = event(50, "f", Op::Fault, Phase::Ok, 1).fault(FaultKind::Partition).target("a");
    passes(Rule::R12, &[grant("a", 1, 0, 1), lost(), vec![fault]], &keeps);
}
