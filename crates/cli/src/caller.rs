//! The caller of `acquire`, by what `/proc` says of the processes above this one.
//!
//! Usually that is the parent. But in `$(...)` with a redirection, `||` or a pipe inside, a shell
//! calls the program from a subshell, which ends at once; the script is the shell that reads what
//! the subshell prints.

use rustix::process::{Pid, getpid, getppid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Linux's flag for a process that was forked and has not executed a program since.
const FORKED: u64 = 0x40;

/// A pipe, as `/proc` names it: unlike other pipes.
#[derive(Debug, PartialEq, Eq)]
struct Pipe(PathBuf);

/// The process that called this one. `None` if it has ended.
pub(crate) fn find() -> Option<Pid> {
    let parent = getppid()?;
    let ours = Pipe::at(getpid(), 1);
    if ours.as_ref().is_some_and(|ours| ours.is_read_by(parent)) {
        return Some(parent);
    }
    let script = ours.and_then(|_| reader_of_subshell(parent));
    script.or(Some(parent).filter(|parent| *parent != Pid::INIT))
}

/// The shell that reads what this process prints, if this is a subshell of it.
fn reader_of_subshell(subshell: Pid) -> Option<Pid> {
    let printed = Pipe::at(subshell, 1)?;
    let mut above = subshell;
    loop {
        above = forked_by(above)?;
        if printed.is_read_by(above) {
            return Some(above);
        }
    }
}

/// Whether our stderr goes where our parent's stdout goes, to the reader of a pipe.
pub(crate) fn stderr_is_parents_stdout() -> bool {
    let stderr = Pipe::at(getpid(), 2);
    stderr.is_some() && stderr == getppid().and_then(|parent| Pipe::at(parent, 1))
}

/// The parent of a process that has executed no program since it was forked.
fn forked_by(process: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    Pid::from_raw(parent).filter(|_| flags & FORKED != 0)
}

impl Pipe {
    /// The pipe that a process has open at this number.
    fn at(process: Pid, number: i32) -> Option<Pipe> {
        let file = fs::read_link(format!("/proc/{}/fd/{number}", process.as_raw_nonzero())).ok()?;
        file.to_str()?.starts_with("pipe:").then_some(Pipe(file))
    }

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
