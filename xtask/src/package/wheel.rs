//! The Python wheel: the program for `pip install` and `uvx`, distributed like ruff and uv.

use super::{dist, emptied, program, run, says_text, source_date, sources, version};
use crate::Outcome;
use std::path::PathBuf;
use std::process::Command;

/// The tag in the file name: any Python 3, on any Linux with glibc or musl of this processor.
const TAG: &str = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64";

/// Builds the wheel. The same program gives the same file: its timestamps are the last commit's.
pub(super) fn pack() -> Outcome<PathBuf> {
    let (program, version) = (program::build()?, version()?);
    let wheel = dist()?.join(format!("holdline-{version}-{TAG}.whl"));
    let mut write = Command::new("python3");
    write.arg(sources().join("python/wheel.py")).args([&version, TAG]).arg(&program).arg(&wheel);
    run(write.env("SOURCE_DATE_EPOCH", source_date()?))?;
    Ok(wheel)
}

pub(super) fn make(check: bool) -> Outcome<String> {
    let wheel = pack()?;
    if !check {
        return Ok(wheel.display().to_string());
    }
    let folder = emptied("venv")?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = ["-m", "pip", "install", "--quiet", "--no-index"];
    run(Command::new(folder.join("bin/python")).args(pip).arg(&wheel))?;
    let store = format!("sqlite:{}", folder.join("locks.db").display());
    let words = ["run", "--store", &store, "x", "--", "echo", "ours"];
    let said = says_text(Command::new(folder.join("bin/holdline")).args(words))?;
    if said != "ours" {
        return Err(format!("the installed program said {said:?}"));
    }
    run(Command::new(folder.join("bin/python")).args(["-m", "holdline", "--version"]))?;
    run(Command::new(folder.join("bin/python")).args([
        "-m",
        "pip",
        "uninstall",
        "-q",
        "-y",
        "holdline",
    ]))?;
    if folder.join("bin/holdline").exists() {
        return Err("`pip uninstall` leaves the program behind".to_owned());
    }
    Ok(format!("{}; installed, run and uninstalled in a venv", wheel.display()))
}
