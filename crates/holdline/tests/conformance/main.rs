//! Every store that is there, through every case of the suite. Without the standard harness,
//! because this binary is started again as the suite's second process, and because what was not run
//! must be told apart from what passed.
//!
//! Arguments as for any test binary: words that a test's name must contain, `--exact`, `--skip`,
//! `--list`. A store on a server is run if its URL is in the environment; a missing one fails under
//! CI.

mod pace;
mod stores;

use holdline_conformance::{self as conformance, Case, Load, Outcome, Subject, Verdict};
use holdline_testkit::Choice;
use pace::{LongerLeases, Pace};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use stores::{Row, rows};

/// Waiting cases that run at a time for each processor, of all stores together.
const AT_ONCE: usize = 12;

/// What came of the cases so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    ignored: usize,
    failures: Vec<String>,
}

impl Tally {
    fn count(&mut self, store: &str, outcome: &Outcome) {
        println!("test {store}::{outcome} ({:.1?})", outcome.took);
        match &outcome.verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::NotPromised(_) => self.ignored += 1,
            Verdict::Failed(why) => self.failures.push(format!("{store}::{}: {why}", outcome.case)),
        }
    }

    /// So many cases of a store cannot be run: never a pass, and a failure under CI.
    fn miss(&mut self, store: &str, cases: usize, missing: &str) {
        println!("test {store}::* ... ignored, {cases} cases: {missing}");
        self.ignored += cases;
        if std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false") {
            self.failures.push(format!("{store}: not run: {missing}"));
        }
    }

    /// These cases ask for what a store does not have, by its nature: never a pass.
    fn unserved(&mut self, store: &str, cases: &[Case]) {
        for case in cases {
            println!("test {store}::{} ... ignored, not served by this scheme", case.name());
        }
        self.ignored += cases.len();
    }

    fn print(self, start: Instant) -> ExitCode {
        let Tally { passed, ignored, failures } = self;
        if !failures.is_empty() {
            println!("\nfailures:\n    {}", failures.join("\n    "));
        }
        println!(
            "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; finished in {:.2?}",
            if failures.is_empty() { "ok" } else { "FAILED" },
            failures.len(),
            start.elapsed()
        );
        if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn main() -> ExitCode {
    if conformance::taker() {
        return ExitCode::SUCCESS;
    }
    let choice = Choice::from_args();
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the system gives a runtime");
    runtime.block_on(run(&choice, folder.path()))
}

async fn run(choice: &Choice, folder: &Path) -> ExitCode {
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut trials: Vec<Vec<Trial>> = Vec::new();
    for row in rows() {
        let (chosen, unserved): (Vec<Case>, Vec<Case>) =
            chosen(choice, &row).into_iter().partition(|case| row.serves(case.name()));
        if !choice.lists() {
            tally.unserved(row.name, &unserved);
        }
        if choice.lists() {
            for case in chosen {
                println!("{}::{}: test", row.name, case.name());
            }
        } else if !chosen.is_empty() {
            match row.subject(folder) {
                Ok(subject) => trials.push(Trial::all(row.name, &subject, chosen)),
                Err(missing) => tally.miss(row.name, chosen.len(), &missing),
            }
        }
    }
    if choice.lists() {
        return ExitCode::SUCCESS;
    }
    // In turn of each store one, so that all servers have something to do.
    let most = trials.iter().map(Vec::len).max().unwrap_or_default();
    let mut left: Vec<_> = trials.into_iter().map(Vec::into_iter).collect();
    let mixed =
        (0..most).flat_map(|_| left.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>());
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let started = mixed.map(|trial| (trial.case.load(), trial.first()));
    let mut again = Vec::new();
    conformance::scheduled(started.collect(), AT_ONCE * cores, |(trial, outcome, excused)| {
        match excused {
            None => tally.count(trial.store, &outcome),
            Some(()) => again.push(trial),
        }
    })
    .await;
    let again: Vec<_> = again.into_iter().map(|trial| (trial.case.load(), trial.again())).collect();
    conformance::scheduled(again, AGAIN_AT_ONCE, |(store, outcome)| tally.count(store, &outcome))
        .await;
    tally.print(start)
}

/// The cases of a store that are asked for.
fn chosen(choice: &Choice, row: &Row) -> Vec<Case> {
    let mut cases = conformance::cases();
    cases.retain(|case| row.measured || case.load() != Load::Measures);
    cases.retain(|case| choice.chooses(&format!("{}::{}", row.name, case.name())));
    cases
}

/// How often a case is done again, if each time the machine stood still meanwhile.
const AGAIN: usize = 6;
/// After so many tries with the same leases, they are longer: some defects show only in short ones.
const UNCHANGED: usize = 3;
/// How many waiting cases are done again at a time.
const AGAIN_AT_ONCE: usize = 4;

/// A case on a store.
struct Trial {
    store: &'static str,
    subject: Arc<dyn Subject>,
    pace: Arc<Pace>,
    case: Case,
}

impl Trial {
    fn all(store: &'static str, subject: &Arc<dyn Subject>, cases: Vec<Case>) -> Vec<Self> {
        let pace = Pace::watch(subject);
        let trial =
            |case| Trial { store, subject: Arc::clone(subject), pace: Arc::clone(&pace), case };
        cases.into_iter().map(trial).collect()
    }

    /// Runs it, and says whether a failure says nothing.
    async fn first(self) -> (Self, Outcome, Option<()>) {
        let began = Instant::now();
        let outcome = self.case.run(Arc::clone(&self.subject)).await;
        let excused = self.excuse(&outcome, began);
        (self, outcome, excused)
    }

    /// Runs it again, with few others, and in the end with longer leases.
    async fn again(self) -> (&'static str, Outcome) {
        let mut outcome;
        let mut tries = 0;
        loop {
            self.pace.calm(self.subject.lease()).await;
            let began = Instant::now();
            let mut subject = Arc::clone(&self.subject);
            if tries >= UNCHANGED {
                subject = Arc::new(LongerLeases(subject));
            }
            outcome = self.case.run(subject).await;
            tries += 1;
            if self.excuse(&outcome, began).is_none() || tries == AGAIN {
                break;
            }
        }
        (self.store, outcome)
    }

    /// Whether a case failed for want of speed; and says so.
    fn excuse(&self, outcome: &Outcome, began: Instant) -> Option<()> {
        let Verdict::Failed(why) = &outcome.verdict else { return None };
        let excuse = self.pace.excuse(why, began, self.subject.lease())?;
        println!("again: {}::{} failed ({why}), but {excuse}", self.store, outcome.case);
        Some(())
    }
}
