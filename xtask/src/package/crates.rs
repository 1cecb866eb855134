//! The crates, as crates.io would receive them.

use super::run;
use crate::test::{Run, Verdict};
use crate::{Outcome, workspace};
use std::path::Path;

/// Cargo verifies each crate against those packed before it, in a registry that it creates for
/// this, so crates that need each other can be checked before the first of them is published.
pub(super) fn make(check: bool) -> Outcome<String> {
    if let Some(lacks) = lacks_guides()? {
        return Err(lacks);
    }
    let mut cargo = workspace::cargo();
    if check {
        cargo.args(["publish", "--dry-run", "--allow-dirty", "--locked"]).args(chosen()?);
        run(&mut cargo)?;
        return Ok("packed, and each built from its package alone".to_owned());
    }
    run(cargo.args(PACK).args(chosen()?))?;
    Ok("packed; not built from their packages".to_owned())
}

const PACK: &[&str] = &["package", "--no-verify", "--allow-dirty", "--locked", "--quiet"];

/// The crates that are published, as arguments. The others need things that crates.io will never
/// have.
fn chosen() -> Outcome<Vec<String>> {
    let packages = workspace::published()?;
    let names = packages.iter().filter_map(|package| package["name"].as_str());
    Ok(names.map(|name| format!("--package={name}")).collect())
}

/// A step of `cargo xtask test`: checks that every crate can be packed, that it has the metadata
/// that crates.io requires and the texts of its licences, and that the library's package has the
/// guides. It builds nothing, so only `make` finds another file that is left out.
pub(crate) fn step(run: &Run<'_>) -> Outcome<Verdict> {
    let chosen = chosen()?;
    let arguments: Vec<&str> =
        PACK.iter().copied().chain(chosen.iter().map(String::as_str)).collect();
    let verdict = run.cargo(&arguments, &[]);
    if verdict != Verdict::Passed {
        return Ok(verdict);
    }
    let mut lacks: Vec<String> = workspace::published()?.iter().filter_map(lacks).collect();
    lacks.extend(lacks_guides()?);
    Ok(if lacks.is_empty() { Verdict::Passed } else { Verdict::Failed(lacks.join("; ")) })
}

/// What the manifest of a published crate lacks.
fn lacks(package: &serde_json::Value) -> Option<String> {
    let is_empty = |key: &&str| match &package[*key] {
        serde_json::Value::Null => true,
        serde_json::Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let keys = ["description", "license", "repository", "readme", "keywords", "categories"];
    let missing: Vec<&str> = keys.iter().copied().filter(|key| is_empty(key)).collect();
    let name = package["name"].as_str().unwrap_or_default();
    if !missing.is_empty() {
        return Some(format!("{name} has no {}", missing.join(", ")));
    }
    if package["rust_version"].is_null() {
        return Some(format!("{name} has no rust-version"));
    }
    let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent()?;
    let missing = LICENCES.iter().find(|licence| !folder.join(licence).is_file());
    missing.map(|licence| format!("{name} has no {licence}"))
}

/// The licences ask that their text is with each copy.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The guides that the library's package lacks: docs.rs renders them as pages, and has only the
/// package. Building the package does not need them.
fn lacks_guides() -> Outcome<Option<String>> {
    let list = ["package", "--list", "--allow-dirty", "--package=holdline"];
    let packed = workspace::cargo_says(&list)?;
    let folder = workspace::root().join("docs/guides");
    let guides = std::fs::read_dir(&folder)
        .map_err(|e| format!("I cannot read {}: {e}.", folder.display()))?;
    let names = guides.flatten().map(|guide| format!("guides/{}", guide.file_name().display()));
    let lacking: Vec<String> =
        names.filter(|name| !packed.lines().any(|line| line == name)).collect();
    Ok(Some(format!("holdline's package lacks {}", lacking.join(", ")))
        .filter(|_| !lacking.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_that_crates_io_would_refuse_is_found() {
        let manifest = workspace::root().join("crates/holdline/Cargo.toml");
        let mut package = json!({
            "manifest_path": manifest,
            "name": "a", "description": "d", "license": "MIT", "repository": "r", "readme": "f",
            "keywords": ["k"], "categories": ["c"], "rust_version": "1.95",
        });
        assert_eq!(lacks(&package), None);
        package["description"] = json!(null);
        package["keywords"] = json!([]);
        assert_eq!(lacks(&package).unwrap(), "a has no description, keywords");
    }
}
