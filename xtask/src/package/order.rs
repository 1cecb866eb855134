//! The order of the program's functions: those that `holdline run` needs stand together.
//!
//! The system maps a program in pieces of 64 KB as they are used. A run uses 1,300 functions, which
//! would be spread over half of all pieces; mapping those took a fifth of its time. They are listed
//! in a script for the linker, which is made by watching a run in an emulator. A name that is not
//! there any more does no harm, so the list is made anew only when many are.

use super::{emptied, program, run, says_text, sources};
use crate::Outcome;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The part that makes the list, which is no package.
pub(super) const PART: &str = "order";

/// The script, as the linker is told of it, which is started in the folder of the workspace. A path
/// from the root would be part of what the program's names are made of.
pub(super) const SCRIPT: &str = "packaging/program/first.ld";

/// The script of these functions.
fn script(names: &BTreeSet<String>) -> String {
    let first = "/* The functions that `holdline run` needs, side by side: made by `cargo xtask \
                 package order`. */\nSECTIONS { .text.first : {\n";
    let sections: String = names.iter().flat_map(|name| ["*(.text.", name, ")\n"]).collect();
    format!("{first}{sections}}} }} INSERT BEFORE .text;\n")
}

/// Makes the list anew.
pub(super) fn make(_check: bool) -> Outcome<String> {
    let program = program::build()?;
    let folder = emptied("order")?;
    let log = folder.join("log");
    let mut emulator = Command::new("qemu-x86_64");
    emulator.args(["-d", "in_asm", "-D"]).arg(&log).arg(&program);
    emulator.args(["run", "x", "--", "/bin/true"]).env("HOME", &folder);
    run(&mut emulator).map_err(|e| format!("{e} It needs `apt-get install qemu-user`."))?;
    let log = std::fs::read(&log).map_err(|e| format!("I cannot read {}: {e}.", log.display()))?;
    let names = used(&String::from_utf8_lossy(&log));
    let path = sources().join("program/first.ld");
    super::write(&path, script(&names).as_bytes(), 0o644)?;
    Ok(format!("{}: {} functions", path.display(), names.len()))
}

/// The functions in an emulator's log, as patterns.
fn used(log: &str) -> BTreeSet<String> {
    let names = log.lines().filter_map(|line| line.strip_prefix("IN: "));
    names.filter(|name| !name.trim().is_empty()).map(pattern).collect()
}

/// A pattern for a symbol's section: without the hashes, which differ from version to version,
/// without what the compilers add after a point, and without `$`, which scripts use.
fn pattern(symbol: &str) -> String {
    let symbol = symbol.trim();
    let name = match symbol.rfind("17h") {
        Some(at) if symbol.starts_with("_ZN") => &symbol[..at + 3],
        _ => symbol.split('.').next().unwrap_or(symbol),
    };
    let star = if name.len() < symbol.len() { "*" } else { "" };
    if !name.starts_with("_R") {
        return name.replace('$', "?") + star;
    }
    // Names of the newer kind have each crate's hash between `Cs` and `_`.
    let mut parts = name.split("Cs");
    let first = parts.next().unwrap_or_default().to_owned();
    let others =
        parts.map(|part| "Cs*_".to_owned() + part.split_once('_').map_or("", |(_, end)| end));
    first + &others.collect::<String>() + star
}

/// How many of the listed functions a program has; an error if it is less than half.
pub(super) fn check(program: &Path) -> Outcome<String> {
    let path = sources().join("program/first.ld");
    let listed = std::fs::read_to_string(&path)
        .map_err(|e| format!("I cannot read {}: {e}.", path.display()))?;
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("*(.text.")?.strip_suffix(')'))
        .collect();
    let symbols = says_text(Command::new("nm").arg(program))?;
    let symbols: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split(' ').nth(2)).map(pattern).collect();
    let found = listed.iter().filter(|name| symbols.contains(**name)).count();
    if found * 2 < listed.len() {
        return Err(format!(
            "the program has {found} of the {} functions in {SCRIPT}; `cargo xtask package order` \
             makes the list anew",
            listed.len()
        ));
    }
    Ok(format!("{found} of {} functions in order", listed.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_in_every_build() {
        let symbol = "_ZN8holdline4open28_$u7b$$u7b$closure$u7d$$u7d$17hce44573009edc07fE.llvm.7";
        assert_eq!(pattern(symbol), "_ZN8holdline4open28_?u7b??u7b?closure?u7d??u7d?17h*");
        let symbol = "_RNvNtCsaz6eC2DG7lh_3std2rt10lang_start.llvm.7";
        assert_eq!(pattern(symbol), "_RNvNtCs*_3std2rt10lang_start*");
        assert_eq!(pattern("sqlite3_step"), "sqlite3_step");
        assert_eq!(pattern("wherePathSolver.isra.0"), "wherePathSolver*");
    }
}
