//! Cleans up after `test`, however it ends: Ctrl-C, a crash, even `kill -9`.
//!
//! A second process of this program holds the reading end of a pipe. When the run ends, in any way,
//! the system closes the pipe; the guard then kills the running steps, with everything that they
//! started, and stops the servers. No signal handler could guarantee that.

use crate::Outcome;
use crate::servers::{self, Process};
use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The hidden subcommand that the guard runs as.
pub(crate) const VERB: &str = "guard-of-test";

/// The poll interval of a step under a time limit.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The guard's handle in the run that it guards.
pub(super) struct Guard {
    process: Child,
    pipe: Mutex<ChildStdin>,
}

impl Guard {
    /// Starts a guard that will stop these topologies.
    pub(super) fn start(names: &[&str]) -> Outcome<Self> {
        let start = || {
            let mut process = Command::new(std::env::current_exe()?)
                .arg(VERB)
                .args(names)
                .stdin(Stdio::piped())
                // In its own group: Ctrl-C is for the run, and the guard must outlive it.
                .process_group(0)
                .spawn()?;
            let pipe = process.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
            Ok(Self { process, pipe: Mutex::new(pipe) })
        };
        start().map_err(|e: std::io::Error| format!("The clean-up guard cannot start: {e}."))
    }

    /// Runs a command to its end, or to the deadline: then kills it and returns `None`.
    pub(super) fn run(
        &self,
        command: &mut Command,
        deadline: Option<Instant>,
    ) -> std::io::Result<Option<ExitStatus>> {
        // In a group of its own, so that all of it can be killed, including tests.
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
        let process = Process::find(child.id().cast_signed());
        if let Some(process) = &process
            && let Err(error) = self.tell("step", process)
        {
            // Without a guard nothing would end it.
            process.kill();
            child.wait()?;
            return Err(error);
        }
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    process.as_ref().map(Process::kill);
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        if let Some(process) = &process {
            self.tell("done", process)?;
        }
        Ok(status)
    }

    fn tell(&self, word: &str, process: &Process) -> std::io::Result<()> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipe, "{word} {process}")
    }

    /// Tells the guard that the run is over, lets it clean up, and waits for it.
    pub(super) fn finish(self) {
        let Self { mut process, pipe } = self;
        drop(pipe);
        if !process.wait().is_ok_and(|status| status.success()) {
            eprintln!("xtask: not all servers could be stopped; see `cargo xtask servers status`.");
        }
    }
}

/// The main function of the guard: `names` are the topologies to stop.
pub(crate) fn main(names: &[&str]) -> bool {
    let mut steps = BTreeSet::new();
    // An unreadable line means that the run is over, too.
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("step", process)) => _ = steps.insert(process.to_owned()),
            Some((_, process)) => _ = steps.remove(process),
            None => {}
        }
    }
    for process in steps.iter().filter_map(|step| Process::parse(step)) {
        process.kill();
    }
    let mut all_well = true;
    for name in names {
        if let Err(message) = servers::stop(name) {
            eprintln!("xtask: {message}");
            all_well = false;
        }
    }
    all_well
}
