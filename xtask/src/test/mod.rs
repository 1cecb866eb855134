//! `cargo xtask test`: everything that must pass, in one command, here and in CI alike.

pub(crate) mod guard;
mod report;
mod steps;
mod tools;

use crate::{Outcome, servers};
use guard::Guard;
use report::{Report, Verdict};
use std::time::{Duration, Instant};
use steps::{STEPS, Step, TEST_NEEDS};

/// What the whole run may take in CI. On one's own machine there is no limit.
const CI_BUDGET: Duration = Duration::from_secs(40 * 60);

/// `cargo xtask test [--quick]`; `Ok(false)` if anything failed.
pub(crate) fn main(words: &[&str]) -> Outcome<bool> {
    let quick = match words {
        [] => false,
        ["--quick"] => true,
        other => {
            return Err(format!("test: I know --quick, but not {:?}.", other.join(" ")));
        }
    };
    let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    let mut run = Run {
        in_ci,
        deadline: in_ci.then(|| Instant::now() + CI_BUDGET),
        guard: Guard::start(&to_stop_at_the_end()?)?,
        variables: Vec::new(),
        report: Report::default(),
    };
    run.start_servers(quick);
    run.look_for_tools(quick);
    for step in STEPS.iter().filter(|step| !quick || step.quick) {
        run.step(step);
    }
    let Run { guard, report, .. } = run;
    guard.finish();
    Ok(report.print())
}

/// The topologies that do not run yet: what runs already was started by the user, and stays.
fn to_stop_at_the_end() -> Outcome<Vec<&'static str>> {
    let mut names = Vec::new();
    for name in TEST_NEEDS {
        if !servers::runs(servers::topology(name)?.name)? {
            names.push(*name);
        }
    }
    Ok(names)
}

/// A run under way.
struct Run {
    in_ci: bool,
    deadline: Option<Instant>,
    guard: Guard,
    /// Environment variables for the steps: the servers' addresses.
    variables: Vec<(&'static str, String)>,
    report: Report,
}

impl Run {
    /// Starts what the tests need. Each topology is a row of the final table.
    fn start_servers(&mut self, quick: bool) {
        let needed = TEST_NEEDS.iter().filter_map(|name| servers::topology(name).ok());
        let needed: Vec<_> = needed.filter(|t| std::env::var_os(t.env).is_none()).collect();
        if !quick && !needed.is_empty() {
            servers::install(&needed);
        }
        for topology in needed {
            report::heading(&format!("servers: {}", topology.name));
            let begun = Instant::now();
            let verdict = match servers::missing(topology) {
                Some(what) if self.in_ci => Verdict::Failed(what),
                Some(what) => Verdict::NotRun(what),
                None => match servers::start(topology) {
                    Ok(started) => {
                        println!("{}={}", topology.env, started.url);
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
    fn look_for_tools(&mut self, quick: bool) {
        let begun = Instant::now();
        let verdict = tools::look(!quick, self.in_ci);
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
        println!("$ cargo {}", args.join(" "));
        let mut command = crate::workspace::cargo();
        command.args(args).envs(variables.iter().copied());
        command.envs(self.variables.iter().map(|(name, url)| (*name, url)));
        match self.guard.run(&mut command, self.deadline) {
            Ok(Some(status)) if status.success() => Verdict::Passed,
            Ok(Some(status)) => Verdict::Failed(format!("`cargo {}`: {status}", args.join(" "))),
            Ok(None) => Verdict::Failed(out_of_time()),
            Err(e) => Verdict::Failed(format!("cargo could not be started: {e}.")),
        }
    }
}

fn out_of_time() -> String {
    format!("out of time: CI gives the whole run {} minutes", CI_BUDGET.as_secs() / 60)
}
