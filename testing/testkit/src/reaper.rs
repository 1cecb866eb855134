//! The reaper: a small process alongside this one, which kills the servers that this one has
//! started and removes their data if this one ends without doing so, for example by a signal.
//!
//! It reads its orders from a pipe, which closes when this process ends. It ignores whatever is
//! gone by then, so nothing need be withdrawn but a folder that is kept.

use crate::process::Process;
use crate::{Outcome, cannot};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SCRIPT: &str = include_str!("reaper.sh");

/// The pipe to the reaper, once there is one. Only the end of the process closes it: child
/// processes do not inherit it.
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Kills a child of this process when this process ends, however it does. A child that has ended by
/// then is ignored, and so is another process that has reused its id.
///
/// # Errors
///
/// There is no shell to run the reaper.
pub fn end_with_us(child: &Child) -> Outcome<()> {
    // It may have ended already.
    Process::find(child.id().cast_signed()).map_or(Ok(()), |process| tell("process", process))
}

/// Removes a folder when this process ends, if it still exists.
pub(crate) fn remove(folder: &Path) -> Outcome<()> {
    tell("folder", folder.display())
}

/// Keeps a folder after all.
pub(crate) fn keep(folder: &Path) -> Outcome<()> {
    tell("kept", folder.display())
}

/// Sends a line to the reaper, which is started on first use.
fn tell(word: &str, what: impl Display) -> Outcome<()> {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        *pipe = start().map_err(|e| cannot("run", Path::new("sh"), &e))?.stdin;
    }
    let line = format!("{word} {what}\n");
    // If someone has killed the reaper, this process still does everything itself.
    let _ = pipe.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
    Ok(())
}

/// Starts the reaper, in its own process group: signals to ours are not meant for it.
fn start() -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "holdline-reaper"]).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
