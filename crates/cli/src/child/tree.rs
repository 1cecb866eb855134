//! The process tree below a command, including processes that left its process group or session.
//!
//! A nested `holdline run` gives its own command a group; a daemon starts a session, and its parent
//! ends. To keep them below us, the program is a *subreaper* while a command runs: processes that
//! lose their parent become its children instead of those of process 1. This needs Linux and a
//! `/proc` of our PID namespace; elsewhere the process group must suffice.

use crate::caller::proc_is_ours;
use crate::exit::{Exit, Failure};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, wait, waitid, waitpid,
};
use std::collections::HashMap;
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep_until};

/// The minimum time between two checks for adopted processes that have ended.
const REAPING: Duration = Duration::from_secs(1);

/// A process in a snapshot: the start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessKey {
    pid: i32,
    parent: i32,
    group: i32,
    start: u64,
    /// Whether it has ended, and its parent has not waited for it yet.
    ended: bool,
}

/// A snapshot of processes.
#[derive(Debug, Default)]
pub(crate) struct Tree(Vec<ProcessKey>);

/// The processes below this one, except those that existed before the command.
#[derive(Debug)]
pub(crate) struct Descendants {
    /// Earlier processes that are not the command's: for example, those of a shell that replaced
    /// itself with this program by `exec`. Of these, grandchildren may become children later.
    before: Vec<ProcessKey>,
    ends: unix::Signal,
    /// Whether a child has ended since the last check.
    due: bool,
    looked: Instant,
}

impl Descendants {
    /// Becomes a subreaper: from now on orphans below us become our children.
    pub(crate) fn adopt() -> Result<Self, Failure> {
        #[cfg(target_os = "linux")]
        {
            // It does not fail on any Linux in use, and the rest works without it.
            let _ = rustix::process::set_child_subreaper(Some(getpid()));
        }
        let ends = unix::signal(SignalKind::child()).map_err(|error| {
            let message = format!("cannot watch for the end of processes: {error}");
            Failure::new(Exit::INTERNAL, "internal", message)
        })?;
        let before = if has_children() { below(&[]) } else { Vec::new() };
        Ok(Descendants { before, ends, due: false, looked: Instant::now() })
    }

    /// The processes that are alive.
    pub(crate) fn alive(&self) -> Tree {
        let mut found = below(&self.before);
        found.retain(|seen| !seen.ended);
        Tree(found)
    }

    /// Resolves when adopted processes may have ended, at a limited rate.
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn ended(&mut self) {
        if !self.due {
            self.ends.recv().await;
            self.due = true;
        }
        sleep_until(self.looked + REAPING).await;
        self.looked = Instant::now();
        self.due = false;
    }

    /// Reaps adopted processes that have ended, so that none stays a zombie. The command itself is
    /// reaped elsewhere.
    pub(crate) fn reap(command: Pid) {
        let command = command.as_raw_nonzero().get();
        for seen in children() {
            if seen.ended && seen.pid != command {
                let _ = waitpid(Pid::from_raw(seen.pid), WaitOptions::NOHANG);
            }
        }
    }
}

/// Reaps all children that have ended, when the command itself has been waited for.
pub(crate) fn reap_all() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

impl Tree {
    /// The adopted processes and their descendants that are not in this group. `self` has parents
    /// before their children.
    pub(crate) fn adopted_outside(&self, command: Pid) -> Tree {
        let own = getpid().as_raw_nonzero().get();
        let command = command.as_raw_nonzero().get();
        let mut found: Vec<ProcessKey> = Vec::new();
        for seen in self.0.iter().filter(|seen| seen.pid != command) {
            if seen.parent == own || found.iter().any(|parent| parent.pid == seen.parent) {
                found.push(*seen);
            }
        }
        found.retain(|seen| seen.group != command);
        Tree(found)
    }

    /// The process ids.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.0.iter().map(|seen| seen.pid).collect()
    }

    /// Sends a signal to the processes that still exist.
    pub(crate) fn signal(&self, signal: Signal) {
        for seen in &self.0 {
            let there = read_process(seen.pid).is_some_and(|now| now.start == seen.start);
            if let (true, Some(pid)) = (there, Pid::from_raw(seen.pid)) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Whether this process has children. Nearly always there are none, and the kernel says so at once.
fn has_children() -> bool {
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, any), Err(Errno::CHILD))
}

/// The children of this process. To find some, all processes of the system are scanned.
fn children() -> impl Iterator<Item = ProcessKey> {
    let own = getpid().as_raw_nonzero().get();
    let seen = if has_children() { all() } else { Vec::new() };
    seen.into_iter().filter(move |seen| seen.parent == own)
}

/// The processes below this one, without these children and what is below them. Parents are before
/// their children.
fn below(without: &[ProcessKey]) -> Vec<ProcessKey> {
    let own = getpid().as_raw_nonzero().get();
    let mut children: HashMap<i32, Vec<ProcessKey>> = HashMap::new();
    for seen in all() {
        children.entry(seen.parent).or_default().push(seen);
    }
    let mut found = children.remove(&own).unwrap_or_default();
    found.retain(|seen| !without.iter().any(|old| (old.pid, old.start) == (seen.pid, seen.start)));
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.remove(&parent.pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// All visible processes of the system. None if their ids are those of another PID namespace, where
/// a signal would reach other processes.
fn all() -> Vec<ProcessKey> {
    if !proc_is_ours() {
        return Vec::new();
    }
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read_process).collect()
}

fn read_process(pid: i32) -> Option<ProcessKey> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may contain parentheses itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let start = fields.nth(16)?.parse().ok()?;
    Some(ProcessKey { pid, parent, group, start, ended })
}
