//! cargo-deny: checks the licences, crates and sources of our dependencies, by `deny.toml`, and
//! known vulnerabilities.

use super::Run;
use super::report::Verdict;
use crate::{Outcome, servers, workspace};
use std::path::PathBuf;

/// The version that CI installs.
const VERSION: &str = "0.20.2";

/// Runs cargo-deny, and installs it if it is missing.
#[expect(clippy::unnecessary_wraps, reason = "it has the type that all steps have")]
pub(super) fn step(run: &Run<'_>) -> Outcome<Verdict> {
    let Some(program) = find() else { return Ok(install_first(run)) };
    Ok(check(run, &program))
}

fn install_first(run: &Run<'_>) -> Verdict {
    // Without optimization and debug information it is there sooner, and quick enough.
    let mut install = vec!["install", "cargo-deny", "--version", VERSION, "--locked", "--debug"];
    let root = tools().display().to_string();
    // A machine of CI may keep the folder of Cargo's programs for its next run. On other machines
    // nothing is installed outside the project.
    if !run.common.in_ci {
        install.extend(["--root", &root]);
    }
    if std::env::var_os("HOLDLINE_NO_INSTALL").is_some() {
        let advice = format!("cargo-deny is missing; get it by `cargo {}`.", install.join(" "));
        return if run.common.in_ci { Verdict::Failed(advice) } else { Verdict::NotRun(advice) };
    }
    match (run.cargo(&install, &[("CARGO_PROFILE_DEV_DEBUG", "false")]), find()) {
        (Verdict::Passed, Some(program)) => check(run, &program),
        (verdict, _) if run.common.in_ci => verdict,
        _ => Verdict::NotRun("cargo-deny is missing, and could not be installed".to_owned()),
    }
}

fn check(run: &Run<'_>, program: &std::path::Path) -> Verdict {
    let words = |which: &'static [&'static str]| [&["--all-features", "check"], which].concat();
    let verdict = run.command(program, &words(&["licenses", "bans", "sources"]));
    if verdict != Verdict::Passed {
        return verdict;
    }
    // The database is fetched from GitHub, which not every machine can reach.
    if run.command(program, &["--all-features", "fetch", "db"]) != Verdict::Passed {
        let words = "advisories were not checked: their database cannot be reached";
        return Verdict::PassedBut(words.to_owned());
    }
    run.command(program, &words(&["--disable-fetch", "advisories"]))
}

/// The folder of the project's own tools.
fn tools() -> PathBuf {
    workspace::target().join("tools")
}

fn find() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let known = [Some(tools()), home].into_iter().flatten().map(|dir| dir.join("bin/cargo-deny"));
    known.into_iter().find(|file| file.is_file()).or_else(|| servers::in_path("cargo-deny"))
}
