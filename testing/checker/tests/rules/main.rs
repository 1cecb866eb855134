//! Every rule on tiny histories: those that it passes, those that it fails, and its exceptions.

mod exclusivity;
mod faults;
mod fences;
mod losses;
mod order;
mod owner_only;
mod resource;
mod vacuity;
mod waiting;

use holdline_checker::{
    Event, Expect, FaultKind, History, Op, Phase, Reason, Report, Rule, Unpromised, Verdict, check,
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
    let unpromised = vec![Unpromised::to_all(FaultKind::StoreFlush, [Rule::R1])];
    Expect { unpromised, ..Expect::small() }
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

/// Whatever it is, it is no violation.
fn tolerates(rule: Rule, events: &[Vec<Event>], expect: &Expect) {
    let report = run(events, expect);
    assert!(!report.failed(rule), "{report}");
}

/// A call of this kind: asked at `from`, answered in this way at `to`.
fn call(p: &str, op: Op, n: u64, (from, to): (u64, u64), ph: Phase) -> Vec<Event> {
    vec![event(from, p, op, Phase::Invoke, n), event(to, p, op, ph, n)]
}

/// The same, with a reason in the answer.
fn because(events: Vec<Event>, reason: Reason) -> Vec<Event> {
    let [asked, answer] = events.try_into().expect("a request and its answer");
    vec![asked, answer.reason(reason)]
}

/// A renewal or release that is told "not held".
fn not_held(p: &str, op: Op, times: (u64, u64)) -> Vec<Event> {
    because(call(p, op, 1, times, Phase::Fail), Reason::NotHeld)
}

/// A renewal that moves the deadline.
fn renewed(p: &str, (from, to): (u64, u64), deadline: u64) -> Vec<Event> {
    let mut events = call(p, Op::Renew, 1, (from, to), Phase::Ok);
    events[1].deadline = Some(deadline * MS);
    events
}

/// A try that is refused 1 ms later.
fn refused(p: &str, n: u64, at: u64) -> Vec<Event> {
    because(call(p, Op::TryAcquire, n, (at, at + 1), Phase::Fail), Reason::Busy)
}

/// A fault of a process, or of all, and its heal.
fn fault(kind: FaultKind, target: Option<&str>, (from, to): (u64, u64)) -> Vec<Event> {
    let mut start = event(from, "f", Op::Fault, Phase::Ok, from).fault(kind);
    start.target = target.map(str::to_owned);
    vec![start, event(to, "f", Op::Heal, Phase::Ok, from)]
}

/// A death, which nothing heals.
fn killed(p: &str, at: u64) -> Vec<Event> {
    vec![event(at, "f", Op::Fault, Phase::Ok, at).fault(FaultKind::Kill).target(p)]
}
