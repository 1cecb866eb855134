//! `cargo xtask test`: everything that must pass, in one command, here and in CI alike.

mod deny;
pub(crate) mod guard;
mod plans;
mod report;
mod steps;
pub(crate) mod tools;

use crate::{Outcome, servers};
use guard::Guard;
use holdline_testkit::Topology;
use plans::Plan;
use report::Report;
pub(crate) use report::Verdict;
use std::fs::File;
use std::io::{BufReader, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use steps::{Step, Work};
use tools::Tool;

/// The time limit of the whole run in CI, so that a hanging one ends: three times its duration on a
/// quiet machine with four cores. There is no limit on other machines.
const CI_BUDGET: Duration = Duration::from_secs(80 * 60);

/// The number of steps that run at a time while most of them wait.
const AT_ONCE: usize = 3;

/// `cargo xtask test [--quick | PART...]`; `Ok(false)` if anything failed.
pub(crate) fn main(words: &[&str]) -> Outcome<bool> {
    let begun = Instant::now();
    let plans = plans::chosen(words)?;
    let mut needs: Vec<&'static str> = Vec::new();
    for name in plans.iter().flat_map(|plan| plan.needs) {
        if !needs.contains(name) {
            needs.push(name);
        }
    }
    let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    let missing = missing_file();
    let _ = std::fs::remove_file(&missing); // of a run with this number that was killed
    let common = Common {
        in_ci,
        deadline: in_ci.then(|| Instant::now() + CI_BUDGET),
        guard: Guard::start(&to_stop_at_the_end(&needs)?)?,
        variables: OnceLock::new(),
        missing,
        report: Mutex::default(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| common.aside(plans.iter().flat_map(|plan| plan.aside)));
        common.steps_of(&plans, &not_given(&needs));
    });
    common.report_missing();
    let Common { guard, report, .. } = common;
    guard.finish();
    Ok(report.into_inner().unwrap_or_else(PoisonError::into_inner).print(begun.elapsed()))
}

/// `(name, about)` of each part, for the help text.
pub(crate) fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    plans::PARTS.iter().map(|plan| (plan.name, plan.about))
}

/// The topologies whose addresses are not given in environment variables.
fn not_given(needs: &[&'static str]) -> Vec<&'static Topology> {
    let needed = needs.iter().filter_map(|name| servers::topology(name).ok());
    needed.filter(|topology| std::env::var_os(topology.env).is_none()).collect()
}

/// The topologies that are not running yet: those that are were started by the user, and stay.
fn to_stop_at_the_end(needs: &[&'static str]) -> Outcome<Vec<&'static str>> {
    let mut names = Vec::new();
    for name in needs {
        if !servers::runs(name)? {
            names.push(*name);
        }
    }
    Ok(names)
}

/// The file in which tests note what they lack (`holdline_testkit::missing`): one for each run.
fn missing_file() -> PathBuf {
    std::env::temp_dir().join(format!("holdline-missing-{}", std::process::id()))
}

/// The common state of all steps.
struct Common {
    in_ci: bool,
    deadline: Option<Instant>,
    guard: Guard,
    /// Environment variables for the steps: the servers' addresses.
    variables: OnceLock<Vec<(&'static str, String)>>,
    /// The tests that were not run.
    missing: PathBuf,
    report: Mutex<Report>,
}

impl Common {
    fn steps_of(&self, plans: &[&'static Plan], needed: &[&'static Topology]) {
        std::thread::scope(|scope| {
            scope.spawn(|| servers::install(needed));
            for step in plans.iter().flat_map(|plan| plan.first) {
                self.step(step);
            }
        });
        self.start_servers(needed);
        for plan in plans.iter().filter(|plan| !plan.tools.is_empty()) {
            self.look_for(plan.tools);
        }
        for step in plans.iter().flat_map(|plan| plan.steps) {
            self.step(step);
        }
    }

    /// Starts what the tests need. Each topology is a row of the final table.
    fn start_servers(&self, needed: &[&'static Topology]) {
        let mut variables = Vec::new();
        for topology in needed {
            report::heading(&format!("servers: {}", topology.name));
            let begun = Instant::now();
            let verdict = match topology.missing() {
                Some(what) if self.in_ci => Verdict::Failed(what),
                Some(what) => Verdict::NotRun(what),
                None => match servers::start(topology) {
                    Ok(started) => {
                        println!("{}={}", topology.env, started.url);
                        if let Some(remark) = started.remark {
                            println!("{remark}");
                        }
                        variables.push((topology.env, started.url));
                        Verdict::Passed
                    }
                    Err(message) => Verdict::Failed(message),
                },
            };
            self.report().add(&format!("servers: {}", topology.name), begun.elapsed(), verdict);
        }
        self.variables.get_or_init(|| variables);
    }

    /// Tools are a row of the final table.
    fn look_for(&self, tools: &[&[Tool]]) {
        let begun = Instant::now();
        let verdict = tools::look(tools, self.in_ci);
        self.report().add("tools", begun.elapsed(), verdict);
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, step: &Step) {
        if let Work::Beside(first, waiting, others) = step.work {
            return self.beside(first, waiting, others);
        }
        // In CI nobody watches, and the table names the failed tests by their output.
        if self.in_ci {
            return self.logged(step);
        }
        report::heading(step.name);
        let begun = Instant::now();
        let verdict = self.run(step, None);
        self.report().add(step.name, begun.elapsed(), verdict);
    }

    /// Runs the first steps, then several of the waiting ones at a time if there are several
    /// processors; and beside all of them the other steps, on processors that no test uses. The
    /// output of a step is shown when it has ended.
    fn beside(&self, first: &[Step], waiting: &[Step], others: &[Step]) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let at_once = if cores > 1 { AT_ONCE } else { 1 };
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| self.aside(others));
            for step in first {
                self.announced(step);
            }
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(step) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.announced(step);
                    }
                });
            }
        });
    }

    /// Runs steps one after another, while a processor is idle.
    fn aside<'a>(&self, steps: impl IntoIterator<Item = &'a Step>) {
        lower_priority();
        for step in steps {
            self.announced(step);
        }
    }

    fn announced(&self, step: &Step) {
        if !self.in_ci {
            println!("... {} begins", step.name);
        }
        self.logged(step);
    }

    fn logged(&self, step: &Step) {
        let begun = Instant::now();
        let log = tempfile::NamedTempFile::new();
        let mut verdict = match &log {
            Ok(log) => self.run(step, Some(log.as_file())),
            Err(e) => Verdict::Failed(format!("there is no room for what it prints: {e}")),
        };
        if let (Verdict::Failed(why), Ok(log)) = (&mut verdict, &log)
            && let Ok(text) = File::open(log.path())
        {
            why.push_str(&report::failures(BufReader::new(text)));
        }
        // Steps print one at a time.
        let mut report = self.report();
        report::heading(step.name);
        if let Ok(mut text) = log.and_then(|log| File::open(log.path())) {
            let _ = std::io::copy(&mut text, &mut std::io::stdout());
        }
        report.add(step.name, begun.elapsed(), verdict);
    }

    fn run(&self, step: &Step, log: Option<&File>) -> Verdict {
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Verdict::Failed(out_of_time()),
            _ => steps::run(step, &Run { common: self, log }),
        }
    }

    /// Tests that lacked something are a row of the final table.
    fn report_missing(&self) {
        let notes = std::fs::read_to_string(&self.missing).unwrap_or_default();
        let _ = std::fs::remove_file(&self.missing);
        if !notes.is_empty() {
            let verdict = Verdict::NotRun(format!("\n{notes}"));
            let name = format!("{} tests", notes.lines().count());
            self.report().add(&name, Duration::ZERO, verdict);
        }
    }
}

/// A step in progress.
pub(crate) struct Run<'a> {
    common: &'a Common,
    /// The file for its output, if that is not the terminal.
    log: Option<&'a File>,
}

impl Run<'_> {
    /// Whether a missing tool is a failure.
    pub(crate) fn in_ci(&self) -> bool {
        self.common.in_ci
    }

    /// Runs one cargo command of a step.
    pub(crate) fn cargo(&self, args: &[&str], variables: &[(&str, &str)]) -> Verdict {
        let mut command = crate::workspace::cargo();
        command.args(args).envs(variables.iter().copied());
        self.run(command, &format!("cargo {}", args.join(" ")))
    }

    /// The same with another program, in the root of the workspace.
    pub(crate) fn command(&self, program: &Path, args: &[&str]) -> Verdict {
        let mut command = Command::new(program);
        command.args(args).current_dir(crate::workspace::root());
        self.run(command, &format!("{} {}", program.display(), args.join(" ")))
    }

    /// Runs any command, which is shown like this.
    pub(crate) fn run(&self, mut command: Command, shown: &str) -> Verdict {
        let Common { in_ci, deadline, guard, variables, missing, .. } = self.common;
        let mut said = Ok(());
        match self.log {
            None => println!("$ {shown}"),
            Some(log) => {
                said = writeln!(&*log, "$ {shown}");
                for give in [Command::stdout::<File>, Command::stderr::<File>] {
                    said =
                        said.and_then(|()| log.try_clone().map(|log| _ = give(&mut command, log)));
                }
            }
        }
        command.envs(variables.get().into_iter().flatten().map(|(name, url)| (*name, url)));
        // In CI nothing is noted: there a test that lacks something fails. And incremental
        // compilation, which helps a second build, would only make the first one slower.
        if *in_ci {
            command.env("CARGO_INCREMENTAL", "0");
        } else {
            command.env("HOLDLINE_TEST_MISSING", missing);
        }
        match said.and_then(|()| guard.run(&mut command, *deadline)) {
            Ok(Some(status)) if status.success() => Verdict::Passed,
            Ok(Some(status)) => Verdict::Failed(format!("`{shown}`: {status}")),
            Ok(None) => Verdict::Failed(out_of_time()),
            Err(e) => Verdict::Failed(format!("`{shown}` could not be started: {e}.")),
        }
    }
}

/// Gives this thread the lowest priority, and the processes that it starts: they run only while a
/// processor is idle. Without it they only disturb more. Elsewhere than on Linux this would be the
/// priority of the whole program.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        let thread = rustix::thread::gettid().to_string();
        let _ = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).output();
        let _ = rustix::process::setpriority_process(None, 19);
    }
}

fn out_of_time() -> String {
    format!("out of time: CI gives the whole run {} minutes", CI_BUDGET.as_secs() / 60)
}
