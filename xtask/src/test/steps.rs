//! The steps of `cargo xtask test`, and the few that are more than a cargo command.

use super::report::Verdict;
use super::{Run, plans, tools};
use crate::{Outcome, tidy, workspace};
use std::num::NonZero;

/// The library's features that are stores. Each is built alone, as a user would.
const STORES: &[&str] = &["sqlite", "redis", "etcd", "zookeeper", "postgres", "mysql"];

/// The client crates below the library. Each is built alone as well, without TLS.
const CLIENTS: &[&str] = &[
    "holdline-base",
    "holdline-etcd-client",
    "holdline-zookeeper-client",
    "holdline-redis-client",
];

/// One row of the final table.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Its name in headings and in the summary.
    pub(super) name: &'static str,
    pub(super) work: Work,
}

#[derive(Clone, Copy)]
pub(super) enum Work {
    /// A cargo command, and environment variables for it.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// Tests: a choice from the whole workspace. All use the same features, so that a part uses
    /// what the whole has built.
    Tests(&'static [&'static str]),
    /// All tests that no step of the whole names.
    OtherTests,
    /// A part of this program.
    Own(fn(&Run<'_>) -> Outcome<Verdict>),
    /// Steps that run one after another; then steps of which several run at a time; and beside all
    /// of these, steps of the lowest priority, one after another.
    Beside(&'static [Step], &'static [Step], &'static [Step]),
}

/// Runs one step.
pub(super) fn run(step: &Step, run: &Run<'_>) -> Verdict {
    match &step.work {
        Work::Cargo(args, variables) => run.cargo(args, variables),
        Work::Tests(args) => {
            run.cargo(&[TESTS, *args].concat(), &[("RUST_TEST_THREADS", &threads())])
        }
        Work::OtherTests => other_tests(run).unwrap_or_else(Verdict::Failed),
        Work::Own(work) => work(run).unwrap_or_else(Verdict::Failed),
        Work::Beside(..) => {
            Verdict::Failed("steps beside others cannot stand among them".to_owned())
        }
    }
}

const TESTS: &[&str] = &["test", "--workspace", "--all-features", "--no-fail-fast"];

/// How many tests of a binary run concurrently: several even on a small machine, since most of them
/// wait most of the time; a bounded number on a large one, since most start their own servers.
fn threads() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cores * 3).clamp(4, 8).to_string()
}

fn other_tests(run: &Run<'_>) -> Outcome<Verdict> {
    let all = workspace::test_targets()?;
    let mut args = [TESTS, &["--lib", "--bins", "--examples"]].concat();
    for name in all.iter().filter(|name| !plans::has_a_step(name)) {
        args.extend(["--test", name]);
    }
    let verdict = run.cargo(&args, &[]);
    let documentation = run.cargo(&[TESTS, &["--doc"]].concat(), &[]);
    Ok(if verdict == Verdict::Passed { documentation } else { verdict })
}

/// Builds the documentation as docs.rs does, with the marks of features, which are a nightly
/// feature of rustdoc.
pub(super) fn documentation(run: &Run<'_>) -> Outcome<Verdict> {
    // Only rustdoc may use nightly features: some crates would be built differently.
    let rustdoc = workspace::root().join("xtask/src/test/rustdoc-nightly.sh");
    let rustdoc = rustdoc.to_str().ok_or("the workspace is in a folder whose name is not UTF-8")?;
    let variables = [("RUSTDOC", rustdoc), ("RUSTDOCFLAGS", "--cfg docsrs -D warnings")];
    Ok(run.cargo(&["doc", "--workspace", "--no-deps", "--all-features"], &variables))
}

/// Runs the simulation that was built with the tests. `cargo run --package` would build it, and
/// what it needs, once more with fewer features.
#[expect(clippy::unnecessary_wraps, reason = "it has the type that all steps have")]
pub(super) fn simulation(run: &Run<'_>) -> Outcome<Verdict> {
    let built = run.cargo(&[TESTS, &["--no-run", "--test", "holds"]].concat(), &[]);
    if built != Verdict::Passed {
        return Ok(built);
    }
    let program = workspace::target().join("debug/holdline-sim");
    let usual = run.command(&program, &["--seeds", "300"]);
    // Those of etcd's and ZooKeeper's engine are in a class of their own.
    let entries = run.command(&program, &["--class", "Entries", "--seeds", "100"]);
    Ok(if usual == Verdict::Passed { entries } else { usual })
}

pub(super) fn tidy_step(_run: &Run<'_>) -> Outcome<Verdict> {
    Ok(match tidy::print_findings()? {
        0 => Verdict::Passed,
        count => Verdict::Failed(format!("{count} findings")),
    })
}

/// The kernel must build alone, without the standard library and without any dependency.
pub(super) fn kernel_purity(run: &Run<'_>) -> Outcome<Verdict> {
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

/// The library must compile with no store, and with each one alone; and so must each client.
#[expect(clippy::unnecessary_wraps, reason = "it has the type that all steps have")]
pub(super) fn each_store_alone(run: &Run<'_>) -> Outcome<Verdict> {
    let base = ["check", "--package", "holdline", "--no-default-features"];
    let mut failed = Vec::new();
    if run.cargo(&base, &[]) != Verdict::Passed {
        failed.push("none");
    }
    for store in STORES {
        if run.cargo(&[&base[..], &["--features", store]].concat(), &[]) != Verdict::Passed {
            failed.push(store);
        }
    }
    for client in CLIENTS {
        if run.cargo(&["check", "--package", client, "--no-default-features"], &[])
            != Verdict::Passed
        {
            failed.push(client);
        }
    }
    Ok(if failed.is_empty() {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("does not build with features: {}", failed.join("; ")))
    })
}

/// A Unix that is not Linux.
const OTHER_UNIX: &str = "aarch64-apple-darwin";

/// Checks that the program, with the file store, builds for another Unix: nearly all code that
/// depends on the system is in these. Nothing is linked: a C compiler that makes nothing will do.
pub(super) fn another_unix(run: &Run<'_>) -> Outcome<Verdict> {
    if !tools::rust_for(OTHER_UNIX, run)? {
        let words = format!("nothing was built: `rustup target add {OTHER_UNIX}` failed");
        return Ok(Verdict::PassedBut(words));
    }
    let no_compiler = [("CC_aarch64_apple_darwin", "true"), ("AR_aarch64_apple_darwin", "true")];
    let args = ["check", "--package", "holdline-cli", "--target", OTHER_UNIX];
    Ok(run.cargo(&args, &no_compiler))
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
