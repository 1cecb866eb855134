//! A step of `cargo xtask test`, and the few that are more than a cargo command.

use super::Run;
use super::report::Verdict;
use crate::{Outcome, tidy, workspace};

/// The features of the library that are stores. Each is built alone, as a user would have it.
const STORES: &[&str] =
    &["memory", "sqlite", "redis", "quorum", "etcd", "zookeeper", "postgres", "mysql"];

/// One row of the final table.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// What the headings and the summary call it.
    pub(super) name: &'static str,
    pub(super) work: Work,
}

#[derive(Clone, Copy)]
pub(super) enum Work {
    /// A cargo command, and environment variables for it.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// Tests: what to choose from all of the workspace. One choice of features for all of them,
    /// so that a part uses what the whole has built.
    Tests(&'static [&'static str]),
    /// A part of this program.
    Own(fn(&mut Run) -> Outcome<Verdict>),
}

/// Runs one step.
pub(super) fn run(step: &Step, run: &mut Run) -> Verdict {
    match &step.work {
        Work::Cargo(args, variables) => run.cargo(args, variables),
        Work::Tests(args) => {
            let all = ["test", "--workspace", "--all-features", "--no-fail-fast"];
            run.cargo(&[&all, *args].concat(), &[])
        }
        Work::Own(work) => work(run).unwrap_or_else(Verdict::Failed),
    }
}

pub(super) fn tidy_step(_run: &mut Run) -> Outcome<Verdict> {
    Ok(match tidy::print_findings()? {
        0 => Verdict::Passed,
        count => Verdict::Failed(format!("{count} findings")),
    })
}

/// The kernel must build by itself, without the standard library and without anything else.
pub(super) fn kernel_purity(run: &mut Run) -> Outcome<Verdict> {
    let verdict = run.cargo(&["build", "--package", "holdline-kernel"], &[]);
    if verdict != Verdict::Passed {
        return Ok(verdict);
    }
    let tree = ["tree", "--package", "holdline-kernel", "--all-features", "--edges"];
    let tree = workspace::cargo_says(&[&tree[..], &["normal,build", "--prefix", "none"]].concat())?;
    let others: Vec<&str> = tree.lines().skip(1).filter(|line| !line.is_empty()).collect();
    if !others.is_empty() {
        return Ok(Verdict::Failed(format!("the kernel depends on {}", others.join(", "))));
    }
    let file = workspace::root().join("crates/kernel/src/lib.rs");
    let text = std::fs::read_to_string(&file)
        .map_err(|e| format!("I cannot read {}: {e}.", file.display()))?;
    if !says_no_std(&text) {
        return Ok(Verdict::Failed("crates/kernel/src/lib.rs does not say #![no_std]".to_owned()));
    }
    println!("the kernel is no_std, and depends on nothing");
    Ok(Verdict::Passed)
}

fn says_no_std(text: &str) -> bool {
    let attributes = ["#![no_std]", "#![cfg_attr(not(test), no_std)]"];
    text.lines().any(|line| attributes.contains(&line.trim()))
}

/// The library must compile with no store, and with each one alone.
pub(super) fn each_store_alone(run: &mut Run) -> Outcome<Verdict> {
    let features = workspace::features("holdline")?;
    let base = ["check", "--package", "holdline", "--no-default-features"];
    let mut failed = Vec::new();
    if run.cargo(&base, &[]) != Verdict::Passed {
        failed.push("none");
    }
    for store in STORES.iter().filter(|store| features.iter().any(|f| f == *store)) {
        if run.cargo(&[&base[..], &["--features", store]].concat(), &[]) != Verdict::Passed {
            failed.push(store);
        }
    }
    Ok(if failed.is_empty() {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("does not build with features: {}", failed.join("; ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_std_must_be_said_in_earnest() {
        assert!(says_no_std("//! Doc.\n#![no_std]\n"));
        assert!(says_no_std("#![cfg_attr(not(test), no_std)]"));
        assert!(!says_no_std("//! It is #![no_std] in spirit.\n"));
    }
}
