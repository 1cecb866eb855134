//! Checks that a second build gives the same bytes.

use super::{debian, emptied, program, run, wheel};
use crate::{Outcome, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the contents of git's index again from scratch, from a copy of the sources in another
/// folder, and compares; then packs the program twice. The compilers and the machine are the same:
/// differences between machines are not tested here.
pub(super) fn make(check: bool) -> Outcome<String> {
    if !check {
        return Ok("only with --check: it builds the program a second time".to_owned());
    }
    let first = program::build()?;
    let folder = emptied("second-build")?;
    let sources = folder.join("of/the/same");
    let mut copy = Command::new("git");
    copy.args(["checkout-index", "--all", "--force"]);
    copy.arg(format!("--prefix={}/", sources.display())).current_dir(workspace::root());
    run(&mut copy)?;
    let second = program::compile(&sources, &folder.join("target"))?;
    let size = same(&first, &second)?;
    let packages = [packed_twice(debian::pack)?, packed_twice(wheel::pack)?];
    std::fs::remove_dir_all(&folder)
        .map_err(|e| format!("I cannot remove {}: {e}.", folder.display()))?;
    Ok(format!("the same {size} bytes from two folders; {}", packages.join(" and ")))
}

/// Makes a package twice, at least a second apart, and compares.
fn packed_twice(pack: fn() -> Outcome<PathBuf>) -> Outcome<String> {
    let package = pack()?;
    let before = package.with_extension("before");
    std::fs::rename(&package, &before)
        .map_err(|e| format!("I cannot rename {}: {e}.", package.display()))?;
    std::thread::sleep(std::time::Duration::from_millis(2_100)); // ZIP counts in two seconds
    same(&before, &pack()?)?;
    std::fs::remove_file(&before).map_err(|e| format!("{}: {e}", before.display()))?;
    let kind = package.extension().unwrap_or_default().to_string_lossy().into_owned();
    Ok(format!("the same .{kind}"))
}

/// The size of two files, if they are identical.
fn same(first: &Path, second: &Path) -> Outcome<usize> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|e| format!("I cannot read {}: {e}.", file.display()))
    };
    let (one, other) = (read(first)?, read(second)?);
    if one == other {
        return Ok(one.len());
    }
    let at = one.iter().zip(&other).position(|(a, b)| a != b).unwrap_or_default();
    Err(format!(
        "{} and {} differ: {} and {} bytes, first at {at}",
        first.display(),
        second.display(),
        one.len(),
        other.len()
    ))
}
