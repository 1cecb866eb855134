//! The verdict on the history of a run, and the files that are kept when it is bad.
//!
//! The checker knows no forced unlock, and should not: for it, a lock that was broken by force was
//! released at that moment by the process that broke it. So the history is rewritten in that sense
//! and judged without any excuse; what the victim claimed afterwards is judged here.

use crate::inject::{FORCE, Fault};
use crate::run::{Run, seconds};
use crate::stats::Tally;
use crate::{silence, stall_detector};
use holdline_checker::{
    Event, Expect, FaultKind, History, Op, Phase, Reason, Report, Rule, Verdict, check,
};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The result of a run.
#[allow(dead_code, reason = "what only some stores' tests look at")]
pub(crate) struct Outcome {
    pub(crate) report: Report,
    pub(crate) tally: Tally,
    /// The judged history, for tests that judge it once more.
    pub(crate) history: History,
    pub(crate) expect: Expect,
    /// A claim of a victim of force that came too late.
    late: Option<String>,
    /// A planned fault that hardly ever happened.
    rare: Option<FaultKind>,
    title: &'static str,
    seed: u64,
    folder: Folder,
}

impl Outcome {
    /// Fails the test unless the verdict is good.
    pub(crate) fn must_be_ok(self) {
        if let Some(claim) = &self.late {
            let what = format!("a victim of force was not told of it: {claim}");
            return self.must(false, &what);
        }
        if let Some(error) = self.tally.unexpected.first() {
            let what = format!("a client had the error {error}, which no fault explains");
            return self.must(false, &what);
        }
        if let Some(kind) = &self.rare {
            let what = format!("the fault {kind:?} was too rare to prove anything");
            return self.must(false, &what);
        }
        let ok = self.report.ok();
        self.must(ok, "a rule failed, or could not be judged");
    }

    /// Fails the test unless `ok`, and keeps the files needed to find the reason.
    pub(crate) fn must(self, ok: bool, what: &str) {
        if ok {
            return;
        }
        let Outcome { report, title, seed, folder, .. } = &self;
        // The panic keeps the folder.
        panic!(
            "{title}: {what}\n{report}\n\nThe history is kept in {folder}. Judge it again:\n  \
             cargo run -p holdline-checker --bin holdline-check -- {folder}/judged.jsonl \
             --expect {folder}/expect.json\nRun it again:\n  HOLDLINE_FAULT_SEED={seed} \
             HOLDLINE_FAULT_SECONDS={asked} cargo test -p holdline-faults {title}",
            asked = seconds(),
            folder = folder.path().display()
        );
    }
}

/// The folder of a run. It is removed unless the test fails or HOLDLINE_FAULT_KEEP is set.
pub(crate) struct Folder(Option<holdline_testkit::Folder>);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(Some(holdline_testkit::Folder::on_disk("run").unwrap()))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map(holdline_testkit::Folder::path).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let keep = std::thread::panicking() || std::env::var_os("HOLDLINE_FAULT_KEEP").is_some();
        if let (true, Some(folder)) = (keep, self.0.take()) {
            println!("kept: {}", folder.keep().display());
        }
    }
}

/// Judges the files that a run has written into its folder.
pub(crate) fn judge(run: &Run, folder: Folder, expect: &Expect) -> Outcome {
    let raw = History::read(&folder.path().join("history.jsonl")).unwrap();
    let tally = Tally::of(&raw.events);
    let late = told_late(&raw.events, u64::try_from(run.lease.as_nanos()).unwrap() / 2);
    let late = late.map(ToString::to_string);
    let mut history = excuse_neighbours(settle_forced(raw));
    settle_busy_machine(&mut history);
    keep(&folder.path().join("judged.jsonl"), &history, expect);
    let report = check(&history, expect);
    let (title, seed, time) = (run.title, run.seed, run.time.as_secs());
    println!("{title}, seed {seed}, {time} s: {} [{}]", tally, in_short(&report));
    let expect = expect.clone();
    let rare = run.faults.iter().find_map(|fault| rare(fault, run, &tally));
    Outcome { report, tally, history, expect, late, rare, title, seed, folder }
}

/// A kind of the fault that occurred too rarely.
fn rare(fault: &Fault, run: &Run, tally: &Tally) -> Option<FaultKind> {
    let least = run.least(fault);
    fault.kinds().into_iter().find(|kind| tally.count_of(kind) < least)
}

pub(crate) fn keep(path: &Path, history: &History, expect: &Expect) {
    let mut text = String::new();
    for event in &history.events {
        text.push_str(&serde_json::to_string(event).unwrap());
        text.push('\n');
    }
    fs::write(path, text).unwrap();
    let beside: PathBuf = path.with_file_name("expect.json");
    fs::write(beside, serde_json::to_string_pretty(expect).unwrap()).unwrap();
}

/// A summary with one word for each rule.
pub(crate) fn in_short(report: &Report) -> String {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Pass => "ok",
        Verdict::Fail => "FAIL",
        Verdict::Inconclusive(_) => "?",
        Verdict::NotApplicable(_) => "-",
    };
    let notes = |rule| report.rule(rule).notes.join("; ");
    let words: Vec<String> =
        report.rules.iter().map(|r| format!("{} {}", r.rule.name(), word(&r.verdict))).collect();
    let handoff = notes(Rule::R8);
    let end = if handoff.is_empty() { handoff } else { format!("; hand-off {handoff}") };
    format!("{}{end}", words.join(" "))
}

/// A broken lock: its ticket, and the time range.
struct Broken {
    key: (String, u32, u64),
    from: u64,
    to: u64,
}

fn key(event: &Event) -> (String, u32, u64) {
    (event.process.clone(), event.pid, event.n)
}

fn broken(events: &[Event]) -> Vec<Broken> {
    let force = FaultKind::Other(FORCE.to_owned());
    let asked: HashMap<_, _> = events
        .iter()
        .filter(|e| e.op == Op::Fault && e.ph == Phase::Info)
        .map(|e| (key(e), e.t))
        .collect();
    let grants: HashMap<&str, &Event> = events
        .iter()
        .filter(|e| e.op != Op::Fault)
        .filter_map(|e| Some((e.owner.as_deref()?, e)))
        .collect();
    let done = events.iter().filter(|e| e.op == Op::Fault && e.fault.as_ref() == Some(&force));
    done.filter_map(|e| {
        let grant = grants.get(e.owner.as_deref()?)?;
        if e.fence.zip(grant.fence).is_some_and(|(force, grant)| 0 < force && force <= grant) {
            // Of a later place: the client had never been told of the one that was removed.
            return None;
        }
        let key_of_grant = key(grant);
        let from = *asked.get(&key(e))?;
        let to = match e.ph {
            Phase::Ok => e.t,
            Phase::Fail => learned(events, &key_of_grant, from)?,
            Phase::Invoke | Phase::Info => return None,
        };
        Some(Broken { key: key_of_grant, from, to })
    })
    .collect()
}

/// The time at which the holder learned of it, if it is unknown whether the lock was broken.
fn learned(events: &[Event], victim: &(String, u32, u64), from: u64) -> Option<u64> {
    let told = |e: &Event| e.op == Op::Lost || e.reason == Some(Reason::NotHeld);
    let found = events.iter().find(|e| e.t > from && told(e) && key(e) == *victim);
    found.map(|e| e.t)
}

/// Excuses the neighbours of a task: until it is answered, even by a refusal, the other tasks of
/// its process queue behind it locally, and the store is not asked for them.
fn excuse_neighbours(mut history: History) -> History {
    let asks = |e: &Event| matches!(e.op, Op::Acquire | Op::TryAcquire);
    let mut asked = HashMap::new();
    let mut spans: HashMap<_, Vec<_>> = HashMap::new();
    for event in history.events.iter().filter(|e| asks(e)) {
        match (event.ph, asked.remove(&key(event))) {
            (Phase::Invoke, _) => _ = asked.insert(key(event), event.t),
            (_, Some(from)) => {
                let near = (event.process.clone(), event.pid, event.lock.clone());
                spans.entry(near).or_default().push((from, event.t, event.n));
            }
            (_, None) => {}
        }
    }
    for event in &mut history.events {
        if event.op != Op::TryAcquire || event.ph != Phase::Fail {
            continue;
        }
        let near = (event.process.clone(), event.pid, event.lock.clone());
        let Some(spans) = spans.get(&near) else { continue };
        let Some(own) = spans.iter().find(|(.., n)| *n == event.n) else { continue };
        let meets = |(from, to, n): &(u64, u64, u64)| *n != own.2 && *from < own.1 && own.0 < *to;
        if spans.iter().any(meets) {
            event.ph = Phase::Info;
        }
    }
    history
}

/// The number of holders notified so far of a loss without a forced unlock.
pub(crate) fn losses(history: &Path) -> usize {
    let history = settle_forced(History::read(history).unwrap());
    // A holder whose work is over when it resumes may learn of the loss from its release.
    let lost = |e: &&Event| e.op == Op::Lost || (e.op == Op::Release && e.ph == Phase::Fail);
    history.events.iter().filter(lost).map(key).collect::<HashSet<_>>().len()
}

/// The number of hand-offs measured so far.
pub(crate) fn handoffs(history: &Path, expect: &Expect) -> usize {
    let mut history = History::read(history).unwrap();
    settle_busy_machine(&mut history);
    check(&history, expect).rule(Rule::R8).checked
}

/// Records what a busy machine did as faults: the stalls of processes, and the silences of the
/// store.
pub(crate) fn settle_busy_machine(history: &mut History) {
    stall_detector::settle(history);
    silence::settle(history);
}

/// Replaces the end that a victim assumed with a release at the moment of the force.
fn settle_forced(mut history: History) -> History {
    for Broken { key: victim, from, to } in broken(&history.events) {
        let own = |e: &Event| key(e) == victim;
        let later = |e: &Event| own(e) && e.t > from;
        let ends = |e: &Event| matches!(e.op, Op::Renew | Op::Claim | Op::Lost | Op::Release);
        excuse_tries(&mut history.events, &victim, to);
        history.events.retain(|e| !(later(e) && ends(e)));
        let grant = history.events.iter_mut().find(|e| own(e) && e.owner.is_some()).unwrap();
        if grant.t > from {
            // It did not know yet that it held, so it claimed nothing.
            grant.ph = Phase::Info;
        }
        let release = |ph, t| Event {
            run: grant.run.clone(),
            pid: victim.1,
            ..Event::new(Op::Release, ph, victim.2).at(t, &victim.0)
        };
        let both = [release(Phase::Invoke, from), release(Phase::Ok, to)];
        history.events.extend(both);
    }
    history.events.sort_by_key(|e| e.t);
    history
}

/// Excuses refusals next to a victim: until it releases, the other tasks of its process queue
/// behind it locally, and are refused without asking the store.
fn excuse_tries(events: &mut [Event], victim: &(String, u32, u64), from: u64) {
    let own = |e: &&Event| key(e) == *victim;
    let lock = events.iter().filter(own).find_map(|e| e.lock.clone());
    let gone = |e: &&Event| e.op == Op::Release && e.ph != Phase::Invoke;
    let until = events.iter().filter(own).find(gone).map_or(u64::MAX, |e| e.t);
    let refused = |e: &&mut Event| {
        let near = e.process == victim.0 && e.pid == victim.1 && e.lock == lock;
        near && e.op == Op::TryAcquire && e.ph == Phase::Fail && (from..=until).contains(&e.t)
    };
    events.iter_mut().filter(refused).for_each(|e| e.ph = Phase::Info);
}

/// The first claim of a victim later after the force than allowed. A process that was stopped
/// shortly before may not have had the time to learn of it.
fn told_late(events: &[Event], allowed: u64) -> Option<&Event> {
    let force = Some(FaultKind::Other(FORCE.to_owned()));
    let hampered = |claim: &Event| {
        let real = |e: &&Event| e.op == Op::Fault && e.fault.is_some() && e.fault != force;
        let others = events.iter().filter(real);
        let mut aimed =
            others.filter(|e| e.target.as_deref().is_none_or(|t| t == claim.process.as_str()));
        // The longest fault lasts three leases, and twice the allowed time is one lease.
        aimed.any(|e| e.t <= claim.t && claim.t < e.t + 8 * allowed)
    };
    broken(events).into_iter().find_map(|Broken { key: victim, to, .. }| {
        let claims = |e: &&Event| e.op == Op::Claim && e.ph == Phase::Ok && key(e) == victim;
        let late = events.iter().filter(claims).find(|e| e.t > to + allowed)?;
        (!hampered(late)).then_some(late)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A force from 10 to 20, of a place whose ticket has a grant with this token.
    fn forced(fence: u64) -> Vec<Event> {
        let force = |ph, t| {
            let kind = FaultKind::Other(FORCE.to_owned());
            Event::new(Op::Fault, ph, 1).at(t, "injector").fault(kind).owner("7")
        };
        let grant = Event::new(Op::Acquire, Phase::Ok, 5).at(100, "c1").owner("7").fence(fence);
        let claim = Event::new(Op::Claim, Phase::Ok, 5).at(120, "c1");
        vec![force(Phase::Info, 10), force(Phase::Ok, 20).fence(40), grant, claim]
    }

    #[test]
    fn a_place_that_came_after_the_force_is_no_victim() {
        assert!(told_late(&forced(39), 50).is_some());
        assert!(told_late(&forced(40), 50).is_none());
    }

    /// A process that stands still may not have learned of it. Faults of another are no excuse.
    #[test]
    fn a_victim_that_claims_late_is_excused_by_its_own_faults_only() {
        let claims = |target: &str, t| {
            let stopped = Event::new(Op::Fault, Phase::Ok, 2).fault(FaultKind::Pause);
            let mut events = forced(39);
            events.push(stopped.at(t, "injector").target(target));
            events
        };
        assert!(told_late(&claims("c1", 100), 50).is_none());
        assert!(told_late(&claims("c2", 100), 50).is_some());
        assert!(told_late(&claims("c1", 121), 50).is_some(), "it came later");
        // And there is time to learn of it.
        assert!(told_late(&forced(39), 100).is_none());
    }

    /// A holder, and what became of the force that was asked for at 50.
    fn victim(outcome: Phase, told: Option<(&str, u64)>) -> Vec<Event> {
        let force = |ph, t| {
            let kind = FaultKind::Other(FORCE.to_owned());
            Event::new(Op::Fault, ph, 1).at(t, "injector").fault(kind).owner("7")
        };
        let grant = |ph, t| Event::new(Op::Acquire, ph, 5).at(t, "c1").lock("x").owner("7");
        let lost = told.map(|(p, t)| Event::new(Op::Lost, Phase::Info, 5).at(t, p));
        let events = [grant(Phase::Invoke, 1), grant(Phase::Ok, 2).fence(3).deadline(900)];
        events.into_iter().chain([force(Phase::Info, 50), force(outcome, 60)]).chain(lost).collect()
    }

    /// Whether one that is granted the lock at this time is beside the holder.
    fn is_overlap(mut events: Vec<Event>, at: u64) -> bool {
        let rival = |ph, t| Event::new(Op::Acquire, ph, 9).at(t, "c2").lock("x");
        events.extend([rival(Phase::Invoke, 1), rival(Phase::Ok, at).fence(4).deadline(900)]);
        events.sort_by_key(|event| event.t);
        check(&settle_forced(History::new(events)), &Expect::small()).failed(Rule::R1)
    }

    #[test]
    fn a_lock_that_was_broken_counts_as_released_from_the_force_on_and_no_sooner() {
        assert!(is_overlap(victim(Phase::Ok, None), 49));
        assert!(!is_overlap(victim(Phase::Ok, None), 55));
        // Nobody knows whether it was broken: it was if its holder was told so.
        assert!(is_overlap(victim(Phase::Fail, None), 55));
        assert!(!is_overlap(victim(Phase::Fail, Some(("c1", 80))), 55));
        assert!(is_overlap(victim(Phase::Fail, Some(("c3", 80))), 55), "another was told");
        assert!(is_overlap(victim(Phase::Info, Some(("c1", 80))), 55), "it was not done");
        let mut claims = victim(Phase::Fail, None);
        claims.push(Event::new(Op::Claim, Phase::Ok, 5).at(80, "c1"));
        assert!(is_overlap(claims, 55), "it was told nothing");
    }

    /// A refusal at 20 of a try from 10 on, next to an attempt by this process for this lock.
    fn is_excused(neighbour: Option<(&str, &str)>, times: (u64, u64)) -> bool {
        let tries = |ph, t| Event::new(Op::TryAcquire, ph, 1).at(t, "c1").lock("x");
        let refused = tries(Phase::Fail, 20).reason(Reason::Busy);
        let mut events = vec![tries(Phase::Invoke, 10), refused];
        if let Some((process, lock)) = neighbour {
            let asks = |ph, t| Event::new(Op::Acquire, ph, 2).at(t, process).lock(lock);
            events.extend([asks(Phase::Invoke, times.0), asks(Phase::Ok, times.1)]);
        }
        events.sort_by_key(|event| event.t);
        let judged = excuse_neighbours(History::new(events));
        judged.events.iter().any(|e| e.op == Op::TryAcquire && e.ph == Phase::Info)
    }

    #[test]
    fn a_refusal_is_excused_by_a_neighbour_that_asked_meanwhile_only() {
        assert!(is_excused(Some(("c1", "x")), (5, 11)));
        assert!(is_excused(Some(("c1", "x")), (19, 30)));
        assert!(!is_excused(None, (0, 0)), "nobody is beside it");
        for (process, lock, times) in [
            ("c2", "x", (5, 30)),
            ("c1", "y", (5, 30)),
            ("c1", "x", (1, 10)),
            ("c1", "x", (20, 30)),
        ] {
            assert!(!is_excused(Some((process, lock)), times), "{process} {lock} {times:?}");
        }
    }
}
