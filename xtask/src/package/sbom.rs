//! The software bill of materials: all crates in the program, with versions and licences.

use super::{dist, install, run, says_text, tool, version};
use crate::{Outcome, workspace};
use std::process::Command;

/// The version of cargo-cyclonedx that is installed if there is none.
const VERSION: &str = "0.5.9";

pub(super) fn make(check: bool) -> Outcome<String> {
    if tool("cargo-cyclonedx").is_none() {
        let tools = workspace::target().join("tools");
        let mut install = workspace::cargo();
        install.args(["install", "cargo-cyclonedx", "--version", VERSION, "--locked", "--root"]);
        run(install.arg(tools))?;
    }
    let tool = tool("cargo-cyclonedx").ok_or("cargo-cyclonedx is missing")?;
    let mut make = Command::new(tool);
    make.args(["cyclonedx", "--format", "json", "--describe", "binaries", "--no-build-deps"]);
    make.args(["--features", "full", "--target", "x86_64-unknown-linux-musl"]);
    make.args(["--spec-version", "1.5", "--manifest-path", "crates/cli/Cargo.toml"]);
    run(make.current_dir(workspace::root()))?;
    // It writes beside each manifest.
    let made = workspace::root().join("crates/cli/holdline_bin.cdx.json");
    let sbom = dist()?.join(format!("holdline-{}.cdx.json", version()?));
    install(&made, &sbom, 0o644)?;
    let status = ["status", "--porcelain", "--ignored", "--", "*.cdx.json"];
    let all = says_text(Command::new("git").args(status).current_dir(workspace::root()))?;
    for file in all.lines().filter_map(|line| line.split_once(' ')) {
        let _ = std::fs::remove_file(workspace::root().join(file.1.trim()));
    }
    let count = components(&std::fs::read(&sbom).unwrap_or_default())?;
    if check && count < 50 {
        return Err(format!("{} lists only {count} crates", sbom.display()));
    }
    Ok(format!(
        "{}: {count} crates; C sources in them (SQLite, ring) are not listed",
        sbom.display()
    ))
}

fn components(text: &[u8]) -> Outcome<usize> {
    let sbom: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| format!("the SBOM is not JSON: {e}"))?;
    Ok(sbom["components"].as_array().map_or(0, Vec::len))
}
