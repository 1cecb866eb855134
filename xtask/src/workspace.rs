//! The workspace: its location, and how to call cargo and read its output.

use crate::Outcome;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// The root of the workspace. Cargo sets the variable at run time too, so a moved checkout works.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = PathBuf::from(here).parent().map_or_else(|| PathBuf::from("."), PathBuf::from);
    // One name for one folder: records of servers are compared by it.
    root.canonicalize().unwrap_or(root)
}

/// Cargo's target folder; our own state files are beside it, and are never committed.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The same cargo that started us, in the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command =
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".to_owned().into()));
    command.current_dir(root());
    // The variables that `cargo run` set for *our* package are not meant for the packages built
    // now.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The output of a quiet cargo command, or an error that contains its message.
pub(crate) fn cargo_says(args: &[&str]) -> Outcome<String> {
    let shown = args.join(" ");
    let output = cargo()
        .args(args)
        .output()
        .map_err(|e| format!("`cargo {shown}` could not be started: {e}."))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`cargo {shown}` failed: {}", error.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names of all test binaries.
pub(crate) fn test_targets() -> Outcome<BTreeSet<String>> {
    let packages = packages()?;
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"][0] == "test");
    Ok(tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}

/// The packages that are published, as `cargo metadata` describes them.
pub(crate) fn published() -> Outcome<Vec<serde_json::Value>> {
    let is_private =
        |package: &serde_json::Value| package["publish"].as_array().is_some_and(Vec::is_empty);
    Ok(packages()?.into_iter().filter(|package| !is_private(package)).collect())
}

/// All packages of the workspace, as `cargo metadata` describes them.
pub(crate) fn packages() -> Outcome<Vec<serde_json::Value>> {
    let text = cargo_says(&["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| format!("What `cargo metadata` printed is not JSON: {e}."))?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}
