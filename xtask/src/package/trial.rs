//! A step of `cargo xtask test`: packs the program, and installs and uses each package.
//!
//! It is `cargo xtask package --check` for everything that a machine without a container engine can
//! test, with a program that is compiled quickly: its speed is not measured.

use super::program::TARGET;
use crate::Outcome;
use crate::test::tools::{self, PYTHON, Tool};
use crate::test::{Run, Verdict};
use std::process::Command;

const TOOLS: &[Tool] = &[
    PYTHON,
    Tool { name: "musl-gcc", proof: &["musl-gcc", "--version"], package: "musl-tools" },
    Tool { name: "debootstrap", proof: &["debootstrap", "--version"], package: "debootstrap" },
];

/// Options with which it is compiled in a quarter of the time, and packed quickly.
const QUICKLY: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("DPKG_DEB_COMPRESSOR_LEVEL", "1"),
];

pub(crate) fn step(run: &Run<'_>) -> Outcome<Verdict> {
    let tools = tools::look(&[TOOLS], run.in_ci());
    if tools != Verdict::Passed {
        return Ok(tools);
    }
    if !tools::rust_for(TARGET, run)? {
        let words = format!("Rust for {TARGET} is missing, and `rustup target add` cannot add it.");
        return Ok(Verdict::missing(words, run.in_ci()));
    }
    // Not by `cargo xtask`, which would wait for other builds.
    let ours = std::env::current_exe().map_err(|e| format!("I cannot find myself: {e}."))?;
    let args = ["package", "--check", "program", "deb", "wheel"];
    let mut package = Command::new(ours);
    package.args(args).envs(QUICKLY.iter().copied());
    let made = run.run(package, &format!("xtask {}", args.join(" ")));
    Ok(if made == Verdict::Passed { installed(super::is_root(), run.in_ci()) } else { made })
}

/// The verdict on packages that were made: only root can install them, in roots of their own.
fn installed(by_root: bool, in_ci: bool) -> Verdict {
    if by_root {
        return Verdict::Passed;
    }
    Verdict::missing("made, but not installed and used, which needs root".to_owned(), in_ci)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_were_not_installed_have_not_passed() {
        assert_eq!(installed(true, true), Verdict::Passed);
        assert!(matches!(installed(false, true), Verdict::Failed(_)));
        assert!(matches!(installed(false, false), Verdict::NotRun(_)));
    }
}
