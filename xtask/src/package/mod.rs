//! `cargo xtask package`: builds and tests what users install: crates, a static program, a Debian
//! package, a Python wheel, a container image, and the examples that go with them.
//!
//! Everything is built in `target/dist` from one build of the program.

mod crates;
mod debian;
mod image;
mod lint;
mod order;
mod program;
mod reproduce;
mod sbom;
mod trial;
mod wheel;

pub(crate) use crates::step as crates_step;
pub(crate) use lint::step as lint_step;
pub(crate) use trial::step as trial_step;

use crate::{Outcome, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// One part to build.
struct Part {
    name: &'static str,
    about: &'static str,
    /// Builds it, and with `true` tests it. Reports what was done, and what was not tested.
    make: fn(bool) -> Outcome<String>,
}

const PARTS: &[Part] = &[
    Part { name: "lint", about: "the files below packaging/", make: lint::make },
    Part { name: "crates", about: "every crate, as `cargo publish` sends it", make: crates::make },
    Part { name: "program", about: "the static program with all stores", make: program::make },
    Part { name: order::PART, about: "if named: the list of what a run needs", make: order::make },
    Part { name: "deb", about: "the Debian package", make: debian::make },
    Part { name: "wheel", about: "the Python wheel", make: wheel::make },
    Part { name: "image", about: "the container image", make: image::make },
    Part { name: "sbom", about: "what the program is made of (CycloneDX)", make: sbom::make },
    Part { name: "reproduce", about: "a second build, compared", make: reproduce::make },
];

/// `(name, about)` of each part, for the help text.
pub(crate) fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    PARTS.iter().map(|part| (part.name, part.about))
}

/// `cargo xtask package [--check] [PART...]`; `Ok(false)` if a part failed.
pub(crate) fn main(words: &[&str]) -> Outcome<bool> {
    let check = words.contains(&"--check");
    let words: Vec<&str> = words.iter().copied().filter(|word| *word != "--check").collect();
    if let Some(unknown) = words.iter().find(|word| !PARTS.iter().any(|part| part.name == **word)) {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        return Err(format!(
            "package: there is no part {unknown:?}; there are {}.",
            known.join(", ")
        ));
    }
    let mut rows = Vec::new();
    let all = |part: &Part| words.is_empty() && part.name != order::PART;
    for part in PARTS.iter().filter(|part| all(part) || words.contains(&part.name)) {
        println!("\n=== {} ===", part.name);
        let begun = Instant::now();
        let (good, text) = match (part.make)(check) {
            Ok(text) => (true, text),
            Err(error) => (false, error),
        };
        rows.push((good, format!("{:<10} {:>5.0?}  {text}", part.name, begun.elapsed())));
    }
    println!("\n=== summary ===");
    for (good, row) in &rows {
        println!("{} {row}", if *good { "passed" } else { "FAILED" });
    }
    Ok(rows.iter().all(|(good, _)| *good))
}

/// The folder of all results.
fn dist() -> Outcome<PathBuf> {
    let folder = workspace::target().join("dist");
    std::fs::create_dir_all(&folder)
        .map_err(|e| format!("I cannot make {}: {e}.", folder.display()))?;
    Ok(folder)
}

/// The project files that packages contain.
fn sources() -> PathBuf {
    workspace::root().join("packaging")
}

/// An empty folder in `target/dist`.
fn emptied(name: &str) -> Outcome<PathBuf> {
    let folder = dist()?.join(name);
    let made = match std::fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => std::fs::create_dir_all(&folder),
    };
    made.map_err(|e| format!("I cannot empty {}: {e}.", folder.display()))?;
    Ok(folder)
}

/// Copies a file, makes the folders above it, and sets its mode.
fn install(from: &Path, to: &Path, mode: u32) -> Outcome<()> {
    let text =
        std::fs::read(from).map_err(|e| format!("I cannot read {}: {e}.", from.display()))?;
    write(to, &text, mode)
}

/// Writes a file, makes the folders above it, and sets its mode.
fn write(to: &Path, text: &[u8], mode: u32) -> Outcome<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(to, text))
        .and_then(|()| std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)))
        .map_err(|e| format!("I cannot write {}: {e}.", to.display()))
}

/// Runs a command to its end, showing what it prints.
fn run(command: &mut Command) -> Outcome<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("`{shown}` could not be started: {e}."))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}`: {status}")) }
}

/// The stdout of a command, if it succeeds.
fn says(command: &mut Command) -> Outcome<Vec<u8>> {
    let shown = shown(command);
    println!("$ {shown}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("`{shown}` could not be started: {e}."))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    Err(format!("`{shown}`: {}: {}", output.status, String::from_utf8_lossy(&all).trim()))
}

/// The same as text without the final line end.
pub(crate) fn says_text(command: &mut Command) -> Outcome<String> {
    Ok(String::from_utf8_lossy(&says(command)?).trim_end().to_owned())
}

/// A command as a person would type it, without its environment.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether this process may install packages, in roots of its own.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program of another project, if it is installed.
fn tool(name: &str) -> Option<PathBuf> {
    let own = workspace::target().join("tools/bin").join(name);
    if own.is_file() { Some(own) } else { crate::servers::in_path(name) }
}

/// The version of all crates.
fn version() -> Outcome<String> {
    let text = workspace::cargo_says(&["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| format!("`cargo metadata` is not JSON: {e}."))?;
    let found = metadata["packages"].as_array().into_iter().flatten();
    let found = found.into_iter().find(|package| package["name"] == "holdline-cli");
    let version = found.and_then(|package| package["version"].as_str());
    version.map(str::to_owned).ok_or_else(|| "The workspace has no holdline-cli.".to_owned())
}

/// The timestamp in packages: that of the last commit, so that it is the same in every build.
fn source_date() -> Outcome<String> {
    let root = workspace::root();
    says_text(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))
}

/// A virtual environment of Python with the packages of a requirements file, created once.
fn python(name: &str, requirements: &Path) -> Outcome<PathBuf> {
    let folder = workspace::target().join("tools").join(name);
    let (python, stamp) = (folder.join("bin/python"), folder.join("requirements"));
    let wanted = std::fs::read(requirements)
        .map_err(|e| format!("I cannot read {}: {e}.", requirements.display()))?;
    if std::fs::read(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--only-binary=:all:", "-r"];
    run(Command::new(&python).args(install).arg(requirements))?;
    write(&stamp, &wanted, 0o644)?;
    Ok(python)
}
