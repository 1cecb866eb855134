//! Writes a history: one `write(2)` in append mode per event.
//!
//! Append mode makes the kernel choose the position, so several processes may share one file. A
//! written event survives `kill -9`, because it is in the page cache and not in a buffer of the
//! process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::Event;

/// Nanoseconds of a clock that all processes of this machine share and that is never set.
///
/// It includes suspended time where the system has such a clock.
pub fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    // Neither clock is ever negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A process's writer of a history file. Threads may share it.
#[derive(Debug)]
pub struct Writer {
    file: File,
    run: String,
    process: String,
    pid: u32,
    next: AtomicU64,
}

impl Writer {
    /// Opens the file for appending, and creates it if it does not exist.
    pub fn open(path: &Path, run: &str, process: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file,
            run: run.to_owned(),
            process: process.to_owned(),
            pid: std::process::id(),
            next: AtomicU64::new(1),
        })
    }

    /// A number for the next attempt, unique in this writer.
    pub fn next_n(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stamps the event with run, process, pid and time, writes it, and returns the time.
    pub fn write(&self, mut event: Event) -> io::Result<u64> {
        event.run.clone_from(&self.run);
        event.process.clone_from(&self.process);
        event.pid = self.pid;
        event.t = now();
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        // Not `write_all`: a second write could land after another process's event.
        let written = (&self.file).write(&line)?;
        if written < line.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "The history took only a part of an event. Is the disk full?",
            ));
        }
        Ok(event.t)
    }
}
