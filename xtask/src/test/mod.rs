//! `cargo xtask test`: everything that must pass, in one command, here and in CI alike.

mod deny;
pub(crate) mod guard;
mod plans;
mod report;
mod steps;
mod tools;

use crate::{Outcome, servers};
use guard::Guard;
use report::{Report, Verdict};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use steps::Step;

/// The most that the whole run may take in CI, so that one that hangs ends: twice of what it takes
/// on a quiet machine. On one's own machine there is no limit.
const CI_BUDGET: Duration = Duration::from_secs(60 * 60);

/// `cargo xtask test [--quick | PART...]`; `Ok(false)` if anything failed.
pub(crate) fn main(words: &[&str]) -> Outcome<bool> {
    let plans = plans::chosen(words)?;
    let mut needs: Vec<&'static str> = Vec::new();
    for name in plans.iter().flat_map(|plan| plan.needs) {
        if !needs.contains(name) {
            needs.push(name);
        }
    }
    let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    let mut run = Run {
        in_ci,
        deadline: in_ci.then(|| Instant::now() + CI_BUDGET),
        guard: Guard::start(&to_stop_at_the_end(&needs)?)?,
        variables: Vec::new(),
        missing: missing_file(),
        report: Report::default(),
    };
    run.start_servers(&needs);
    if plans.iter().any(|plan| plan.languages) {
        run.look_for_tools();
    }
    for step in plans.iter().flat_map(|plan| plan.steps) {
        run.step(step);
    }
    run.report_missing();
    let Run { guard, report, .. } = run;
    guard.finish();
    Ok(report.print())
}

/// `(name, about)` of each part, for the help text.
pub(crate) fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    plans::PARTS.iter().map(|plan| (plan.name, plan.about))
}

/// The topologies that do not run yet: what runs already was started by the user, and stays.
fn to_stop_at_the_end(needs: &[&'static str]) -> Outcome<Vec<&'static str>> {
    let mut names = Vec::new();
    for name in needs {
        if !servers::runs(name)? {
            names.push(*name);
        }
    }
    Ok(names)
}

/// Where tests note that they lack something (`holdline_testkit::missing`): one file for each run.
fn missing_file() -> PathBuf {
    std::env::temp_dir().join(format!("holdline-missing-{}", std::process::id()))
}

/// A run under way.
struct Run {
    in_ci: bool,
    deadline: Option<Instant>,
    guard: Guard,
    /// Environment variables for the steps: the servers' addresses.
    variables: Vec<(&'static str, String)>,
    /// Which tests were not run.
    missing: PathBuf,
    report: Report,
}

impl Run {
    /// Starts what the tests need. Each topology is a row of the final table.
    fn start_servers(&mut self, needs: &[&'static str]) {
        let needed = needs.iter().filter_map(|name| servers::topology(name).ok());
        let needed: Vec<_> = needed.filter(|t| std::env::var_os(t.env).is_none()).collect();
        if !needed.is_empty() {
            servers::install(&needed);
        }
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
                        self.variables.push((topology.env, started.url));
                        Verdict::Passed
                    }
                    Err(message) => Verdict::Failed(message),
                },
            };
            self.report.add(&format!("servers: {}", topology.name), begun.elapsed(), verdict);
        }
    }

    /// The languages of other clients are a row of the final table.
    fn look_for_tools(&mut self) {
        let begun = Instant::now();
        let verdict = tools::look(self.in_ci);
        self.report.add("languages of other clients", begun.elapsed(), verdict);
    }

    fn step(&mut self, step: &Step) {
        report::heading(step.name);
        let begun = Instant::now();
        let verdict = match self.deadline {
            Some(deadline) if deadline <= begun => Verdict::Failed(out_of_time()),
            _ => steps::run(step, self),
        };
        self.report.add(step.name, begun.elapsed(), verdict);
    }

    /// Runs one cargo command of a step, its output streaming through.
    fn cargo(&mut self, args: &[&str], variables: &[(&str, &str)]) -> Verdict {
        let mut command = crate::workspace::cargo();
        command.args(args).envs(variables.iter().copied());
        self.run(command, &format!("cargo {}", args.join(" ")))
    }

    /// The same with another program, in the root of the workspace.
    fn command(&mut self, program: &Path, args: &[&str]) -> Verdict {
        let mut command = Command::new(program);
        command.args(args).current_dir(crate::workspace::root());
        self.run(command, &format!("{} {}", program.display(), args.join(" ")))
    }

    fn run(&mut self, mut command: Command, shown: &str) -> Verdict {
        println!("$ {shown}");
        command.envs(self.variables.iter().map(|(name, url)| (*name, url)));
        // In CI nobody takes notes: there a test that lacks something fails.
        if !self.in_ci {
            command.env("HOLDLINE_TEST_MISSING", &self.missing);
        }
        match self.guard.run(&mut command, self.deadline) {
            Ok(Some(status)) if status.success() => Verdict::Passed,
            Ok(Some(status)) => Verdict::Failed(format!("`{shown}`: {status}")),
            Ok(None) => Verdict::Failed(out_of_time()),
            Err(e) => Verdict::Failed(format!("`{shown}` could not be started: {e}.")),
        }
    }

    /// Tests that lacked something are a row of the final table.
    fn report_missing(&mut self) {
        let notes = std::fs::read_to_string(&self.missing).unwrap_or_default();
        let _ = std::fs::remove_file(&self.missing);
        if !notes.is_empty() {
            let verdict = Verdict::NotRun(format!("\n{notes}"));
            let name = format!("{} tests", notes.lines().count());
            self.report.add(&name, Duration::ZERO, verdict);
        }
    }
}

fn out_of_time() -> String {
    format!("out of time: CI gives the whole run {} minutes", CI_BUDGET.as_secs() / 60)
}
