//! The suite's power: a sound toy store passes it, and every planted bug fails the case that is to
//! catch it.
//!
//! `cargo test -p holdline-conformance --test power -- --nocapture` prints the table of bugs, with
//! what the cases say.

mod bugs;
mod line;
mod toy;

use bugs::{BUGS, Bug};
use futures_util::{StreamExt, stream};
use holdline_conformance::{self as conformance, AT_ONCE, Case, Load, Outcome, Verdict};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use toy::Toy;

/// The lease of the sound store: long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(1);
/// How often a case is run again, because the machine may have stood still.
const AGAIN: usize = 3;

/// The lease and the time limit of stores with bugs, which fail all the sooner.
const SHORT_LEASE: Duration = Duration::from_millis(200);
const SHORT_LIMIT: Duration = Duration::from_secs(1);

/// The cases that the toy claims to pass: all but those that measure cost, because it walks its
/// lines.
fn claimed() -> Vec<Case> {
    conformance::cases().into_iter().filter(|case| case.load() != Load::Measures).collect()
}

/// Keeps the panics of cases, which their outcomes report, from the output.
fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some(WORKER) {
                report(panic);
            }
        }));
    });
}

/// The name of the threads that run cases.
const WORKER: &str = "case";

/// Runs a test on two threads of this name.
fn on_workers(test: impl Future<Output = ()>) {
    quiet();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(2).thread_name(WORKER).enable_all().build();
    threads.expect("the system gives a runtime").block_on(test);
}

/// Runs a case that has failed once more, alone, until it passes or has failed too often.
async fn passes_alone(case: &Case, failed: Outcome, toy: impl Fn() -> Arc<Toy>) {
    let mut outcome = failed;
    for _ in 0..AGAIN {
        println!("again: {outcome}");
        outcome = case.run(toy()).await;
        if outcome.verdict == Verdict::Passed {
            break;
        }
    }
    assert_eq!(outcome.verdict, Verdict::Passed, "{outcome}");
}

/// Runs all claimed cases, and those that fail once more, alone: the machine may have stood still.
#[test]
fn a_sound_store_passes_the_suite() {
    on_workers(async {
        let toy = Arc::new(Toy::sound(LEASE, Duration::from_secs(30)));
        let run = |case: Case| {
            let toy = Arc::clone(&toy);
            (case.load(), async move { (case.run(toy).await, case) })
        };
        let (mut passed, mut failed) = (0, Vec::new());
        let started = claimed().into_iter().map(run).collect();
        conformance::scheduled(started, AT_ONCE, |(outcome, case)| match outcome.verdict {
            Verdict::Passed => passed += 1,
            Verdict::NotPromised(_) => {}
            Verdict::Failed(_) => failed.push((outcome, case)),
        })
        .await;
        for (outcome, case) in failed {
            passes_alone(&case, outcome, || Arc::clone(&toy)).await;
            passed += 1;
        }
        let all = claimed().len();
        assert!(passed > all * 9 / 10, "only {passed} of {all} cases apply");
    });
}

/// Runs the case that must catch the bug, again if it has not: if the machine stands still, a case
/// may come too late to see it.
async fn try_to_catch(cases: &[Case], bug: Bug, name: &str) -> Outcome {
    let case = cases.iter().find(|case| case.name() == name);
    let case = case.unwrap_or_else(|| panic!("{bug:?}: the suite has no case {name}"));
    let run = || case.run(Arc::new(Toy::with(bug, SHORT_LEASE, SHORT_LIMIT)));
    let mut outcome = run().await;
    for _ in 0..AGAIN {
        if outcome.verdict == Verdict::Passed {
            println!("again: {bug:?} was not caught");
            outcome = run().await;
        }
    }
    outcome
}

/// On a sound store with the times of those with bugs, all cases pass that catch a bug: so it is
/// the bug that fails them, and not these times. Those that fail run once more, alone.
#[test]
fn no_case_fails_for_the_times_of_stores_with_bugs() {
    on_workers(async {
        let cases = claimed();
        let names: BTreeSet<&str> = BUGS.iter().map(|(_, name)| *name).collect();
        let sound = || Arc::new(Toy::sound(SHORT_LEASE, SHORT_LIMIT));
        let catching = cases.iter().filter(|case| names.contains(case.name()));
        let runs = catching.map(|case| async move { (case.run(sound()).await, case) });
        let mut runs = stream::iter(runs.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut failed = Vec::new();
        while let Some((outcome, case)) = runs.next().await {
            failed.extend((outcome.verdict != Verdict::Passed).then_some((outcome, case)));
        }
        for (outcome, case) in failed {
            passes_alone(case, outcome, sound).await;
        }
    });
}

#[test]
fn every_planted_bug_fails_its_case() {
    on_workers(async {
        let cases = claimed();
        let runs = BUGS.iter().map(|(bug, name)| {
            let cases = &cases;
            async move { (*bug, try_to_catch(cases, *bug, name).await) }
        });
        let mut missed = Vec::new();
        let mut runs = stream::iter(runs).buffer_unordered(AT_ONCE);
        while let Some((bug, outcome)) = runs.next().await {
            let (case, took) = (&outcome.case, outcome.took);
            if let Verdict::Failed(why) = &outcome.verdict {
                println!("| {bug:?} | {case} | {took:.1?} | {} |", why.replace('\n', " "));
            } else {
                missed.push(format!("{bug:?}: {outcome}"));
            }
        }
        assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
    });
}
