//! Whether a second build gives the same bytes.

use super::{dist, program};
use crate::Outcome;
use std::path::Path;

/// Builds again from nothing, in another folder, and compares. The compiler, the C compiler and
/// the machine are the same: what differs between machines is not tried here.
pub(super) fn make(check: bool) -> Outcome<String> {
    if !check {
        return Ok("only with --check: it builds the program a second time".to_owned());
    }
    let first = program::build()?;
    let folder = dist()?.join("second-build");
    let second = program::compile(&folder)?;
    let read = |file: &Path| {
        std::fs::read(file).map_err(|e| format!("I cannot read {}: {e}.", file.display()))
    };
    let (first, second) = (read(&first)?, read(&second)?);
    if first == second {
        let _ = std::fs::remove_dir_all(&folder);
        return Ok(format!("the same {} bytes, from two folders on this machine", first.len()));
    }
    let at = first.iter().zip(&second).position(|(a, b)| a != b).unwrap_or_default();
    Err(format!(
        "two builds differ: {} and {} bytes, first at {at}; the second is in {}",
        first.len(),
        second.len(),
        folder.display()
    ))
}
