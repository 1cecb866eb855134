//! The reaper: a small process beside this one, which kills the servers that this one has started
//! and removes their data if this one ends without having done so; by a signal, for example.
//!
//! It reads from a pipe what there is, and finds the pipe closed when this process has ended. What
//! is gone by then it leaves alone, so that nothing need be taken back but a folder that is kept.

use crate::process::Process;
use crate::{Outcome, cannot};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SCRIPT: &str = include_str!("reaper.sh");

/// The pipe to the reaper, once there is one. The end of the process closes it, as nothing else
/// does: processes that are started do not inherit it.
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Kills a child of this process when this process ends, however that comes. One that has ended by
/// then is left alone, and so is another process that has got its id.
///
/// # Errors
///
/// There is no shell to run the reaper.
pub fn end_with_us(child: &Child) -> Outcome<()> {
    // It may have ended already.
    Process::find(child.id().cast_signed()).map_or(Ok(()), |process| tell("process", process))
}

/// Removes a folder when this process ends, if it is still there.
pub(crate) fn remove(folder: &Path) -> Outcome<()> {
    tell("folder", folder.display())
}

/// Leaves a folder where it is after all.
pub(crate) fn keep(folder: &Path) -> Outcome<()> {
    tell("kept", folder.display())
}

/// Says a line to the reaper, which is started for the first.
fn tell(word: &str, what: impl Display) -> Outcome<()> {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        *pipe = start().map_err(|e| cannot("run", Path::new("sh"), &e))?.stdin;
    }
    let line = format!("{word} {what}\n");
    // Without a reaper, which somebody has killed, this process still does all of it itself.
    let _ = pipe.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
    Ok(())
}

/// Starts it, in a process group of its own: signals to ours are not meant for it.
fn start() -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "holdline-reaper"]).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
