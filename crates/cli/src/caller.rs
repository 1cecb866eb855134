//! The processes above this one, by what `/proc` says of them: mainly the caller of `acquire`.
//!
//! Usually that is the parent. But in `$(...)` with a redirection, `||` or a pipe inside, a shell
//! calls the program from a subshell, which ends at once; the script is the shell that reads what
//! the subshell prints.

use rustix::process::{Pid, getpid, getppid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// Linux's flag for a process that was forked and has not executed a program since.
const FORKED: u64 = 0x40;
/// How often and at what intervals a process that has a pipe open is looked at until it sleeps:
/// for a second.
const LOOKS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(2);
/// The program's name.
const NAME: &str = "holdline";

/// A pipe, as `/proc` names it: unlike other pipes.
#[derive(Debug, PartialEq, Eq)]
struct Pipe(PathBuf);

/// Whether `/proc` tells of the processes that this one can name: in a PID namespace of its own it
/// may be that of another, where our ids are other processes'.
pub(crate) fn proc_is_ours() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.to_str() == Some(&getpid().as_raw_nonzero().to_string()))
}

/// The process that called this one. `None` if it has ended, or if it cannot be told from a
/// subshell of it.
pub(crate) fn find() -> Option<Pid> {
    let parent = getppid().filter(|_| proc_is_ours())?;
    let Some(ours) = Pipe::at(getpid(), 1) else { return not_init(parent) };
    match reader_of_subshell(parent) {
        // A subshell that reads what we print goes on with it.
        Some(script) if ours.is_awaited_by(parent) != Some(true) => Some(script),
        Some(_) => Some(parent),
        None if ours.is_read_by(parent) => Some(parent),
        None => not_init(parent),
    }
}

/// A parent; `None` for the process that adopts those whose parent has ended.
fn not_init(parent: Pid) -> Option<Pid> {
    Some(parent).filter(|parent| *parent != Pid::INIT)
}

/// The shell that reads what this process prints, if this is a subshell of it.
fn reader_of_subshell(subshell: Pid) -> Option<Pid> {
    let printed = Pipe::at(subshell, 1)?;
    let mut above = subshell;
    loop {
        above = forked_by(above)?;
        if printed.is_awaited_by(above) != Some(false) {
            return Some(above);
        }
    }
}

/// Whether our stderr is a pipe or a socket whose reader may wait for its end: the reader of our
/// parent's stdout, the process that called our parent, or this owner.
pub(crate) fn stderr_is_awaited(owner: Option<Pid>) -> bool {
    let parent = getppid();
    let caller = parent.and_then(|parent| Process::find(parent)?.parent);
    if let Some(pipe) = Pipe::at(getpid(), 2) {
        let mut readers = [owner, caller].into_iter().flatten();
        let stdout = parent.and_then(|parent| Pipe::at(parent, 1));
        return stdout.is_some_and(|stdout| stdout == pipe)
            || readers.any(|reader| pipe.is_read_by(reader));
    }
    // Node.js makes sockets for what the programs that it starts print. One that the owner has as
    // its own stderr was not made for us, nor is one of systemd's, which leads to the journal.
    let Some(ours) = file(getpid(), 2) else { return false };
    let maker = owner.filter(|owner| Some(*owner) == caller);
    let theirs = maker.and_then(|maker| file(maker, 2));
    ours.to_string_lossy().starts_with("socket:") && theirs.is_some_and(|theirs| theirs != ours)
}

/// The file that a process has open at this number, as `/proc` names it.
fn file(process: Pid, number: i32) -> Option<PathBuf> {
    if !proc_is_ours() {
        return None;
    }
    fs::read_link(format!("/proc/{}/fd/{number}", process.as_raw_nonzero())).ok()
}

/// The parent of a process that has executed no program since it was forked.
fn forked_by(process: Pid) -> Option<Pid> {
    Process::find(process).filter(|found| found.flags & FORKED != 0)?.parent
}

/// The processes above this one, its parent first.
pub(crate) fn above() -> impl Iterator<Item = Pid> {
    std::iter::successors(getppid(), |pid| Process::find(*pid)?.parent)
}

/// The programs of our name above this process.
pub(crate) fn holdlines_above() -> Vec<u32> {
    let ours = above().filter(|pid| Process::find(*pid).is_some_and(|found| found.name == NAME));
    ours.map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect()
}

/// A process, as `/proc` describes it.
struct Process {
    name: String,
    parent: Option<Pid>,
    sleeps: bool,
    flags: u64,
}

impl Process {
    fn find(process: Pid) -> Option<Process> {
        if !proc_is_ours() {
            return None;
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
        // The name is in parentheses, and may contain parentheses itself.
        let (head, fields) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let mut fields = fields.split_ascii_whitespace();
        let sleeps = fields.next()? == "S";
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        Some(Process { name, parent, sleeps, flags: fields.nth(4)?.parse().ok()? })
    }
}

impl Pipe {
    /// The pipe that a process has open at this number.
    fn at(process: Pid, number: i32) -> Option<Pipe> {
        let file = file(process, number)?;
        file.to_str()?.starts_with("pipe:").then_some(Pipe(file))
    }

    /// Whether this process waits for what comes through the pipe, as a shell does in `$(...)`. A
    /// shell that starts the programs of a pipeline has the pipe open, too, for a moment in which
    /// it does not sleep. `None` if it did not sleep in time.
    fn is_awaited_by(&self, process: Pid) -> Option<bool> {
        for _ in 0..LOOKS {
            // Looked at first: if it sleeps, it has open what it will have open.
            let sleeps = Process::find(process).is_some_and(|found| found.sleeps);
            if !self.is_read_by(process) {
                return Some(false);
            }
            if sleeps {
                return Some(true);
            }
            sleep(PAUSE);
        }
        None
    }

    /// Whether this process has the pipe open for reading.
    fn is_read_by(&self, process: Pid) -> bool {
        let entries = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()));
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        // The mode of the link says how the file is open.
        let reads = |about: fs::Metadata| about.mode() & 0o400 != 0;
        paths.into_iter().any(|path| {
            fs::read_link(&path).is_ok_and(|file| file == self.0)
                && fs::symlink_metadata(&path).is_ok_and(reads)
        })
    }
}
