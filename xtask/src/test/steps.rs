//! The steps of `cargo xtask test`, as a table, and the few that are more than a cargo command.

use super::Run;
use super::report::Verdict;
use crate::{Outcome, servers, tidy, workspace};

/// The topologies that the tests need (`cargo xtask servers --help` lists them). A store whose
/// tests need a real server adds its own here.
pub(super) const TEST_NEEDS: &[&str] = &[
    "redis-single",
    "redis-events",
    "redis-five",
    "redis-oldest",
    "valkey",
    "redis-sentinel",
    "redis-cluster",
    "etcd-single",
    "etcd-three",
    "zookeeper-single",
    "zookeeper-three",
];

/// The features of the library that are stores. Each is built alone, as a user would have it.
const STORES: &[&str] =
    &["memory", "sqlite", "redis", "quorum", "etcd", "zookeeper", "postgres", "mysql"];

/// One row of the table.
pub(super) struct Step {
    /// What the headings and the summary call it.
    pub(super) name: &'static str,
    /// Is it part of `--quick`?
    pub(super) quick: bool,
    work: Work,
}

enum Work {
    /// A cargo command, and environment variables for it.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// A part of this program.
    Own(fn(&mut Run) -> Outcome<Verdict>),
}

const fn quick(name: &'static str, work: Work) -> Step {
    Step { name, quick: true, work }
}

const fn full(name: &'static str, work: Work) -> Step {
    Step { name, quick: false, work }
}

/// Everything that must pass, cheap and telling steps first.
pub(super) const STEPS: &[Step] = &[
    quick("format", Work::Cargo(&["fmt", "--all", "--check"], &[])),
    quick(
        "clippy",
        Work::Cargo(
            &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
            &[],
        ),
    ),
    quick("tidy", Work::Own(tidy_step)),
    quick("tests", Work::Cargo(&["test", "--workspace", "--all-features", "--no-fail-fast"], &[])),
    full(
        "documentation",
        Work::Cargo(
            &["doc", "--workspace", "--no-deps", "--all-features"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
    ),
    full("kernel purity", Work::Own(kernel_purity)),
    full("each store alone", Work::Own(each_store_alone)),
    full("licences and advisories", Work::Own(cargo_deny)),
    full(
        "simulation",
        Work::Cargo(
            &["run", "--release", "--package", "holdline-sim", "--", "--seeds", "300"],
            &[],
        ),
    ),
];

/// Runs one step.
pub(super) fn run(step: &Step, run: &mut Run) -> Verdict {
    match &step.work {
        Work::Cargo(args, variables) => run.cargo(args, variables),
        Work::Own(work) => work(run).unwrap_or_else(Verdict::Failed),
    }
}

fn tidy_step(_run: &mut Run) -> Outcome<Verdict> {
    Ok(match tidy::print_findings()? {
        0 => Verdict::Passed,
        count => Verdict::Failed(format!("{count} findings")),
    })
}

/// The kernel must build by itself, without the standard library and without anything else.
fn kernel_purity(run: &mut Run) -> Outcome<Verdict> {
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

/// The library must build with no store, and with each one alone.
fn each_store_alone(run: &mut Run) -> Outcome<Verdict> {
    let features = workspace::features("holdline")?;
    let base = ["build", "--package", "holdline", "--no-default-features"];
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

#[expect(clippy::unnecessary_wraps, reason = "it has the type that all steps have")]
fn cargo_deny(run: &mut Run) -> Outcome<Verdict> {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let in_home = home.is_some_and(|home| home.join("bin/cargo-deny").is_file());
    if !in_home && servers::in_path("cargo-deny").is_none() {
        let advice = "cargo-deny is missing; cargo install cargo-deny";
        return Ok(Verdict::NotRun(advice.to_owned()));
    }
    Ok(run.cargo(&["deny", "--all-features", "check"], &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_need_is_known() {
        for name in TEST_NEEDS {
            servers::topology(name).unwrap();
        }
    }

    #[test]
    fn quick_leaves_out_only_the_end() {
        let quick: Vec<bool> = STEPS.iter().map(|step| step.quick).collect();
        assert!(quick.is_sorted_by(|a, b| a >= b), "{quick:?}");
        assert!(quick[0] && !quick[STEPS.len() - 1]);
    }

    #[test]
    fn no_std_must_be_said_in_earnest() {
        assert!(says_no_std("//! Doc.\n#![no_std]\n"));
        assert!(says_no_std("#![cfg_attr(not(test), no_std)]"));
        assert!(!says_no_std("//! It is #![no_std] in spirit.\n"));
    }
}
