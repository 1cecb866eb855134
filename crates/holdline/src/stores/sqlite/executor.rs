//! Where operations are carried out: at once on the caller's thread, or else by one worker.
//!
//! A transaction takes 10 to 20 microseconds, less than handing it to another thread. So the
//! caller does it itself, unless the database is busy. Then the worker does, which can wait without
//! holding up the caller's executor. While the worker has anything to do, all that writes goes to
//! it in order: so whoever gave up on an operation and then leaves the line leaves after it.

use super::database::{Open, Site, pause};
use super::errors::{busy, explain};
use crate::clock;
use crate::error::Result;
use crate::sync::Mutex;
use holdline_kernel::Time;
use rusqlite::Connection;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The connection, and how much the worker has to do.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) site: Site,
    open: Mutex<Open>,
    pending: AtomicUsize,
    /// Whose all this is: neither threads nor an open database survive a fork.
    pid: u32,
}

/// Counts as the worker's work until it is dropped.
#[derive(Debug)]
pub(super) struct Pending<'a>(&'a Executor);

impl Executor {
    pub(super) fn open(site: Site) -> Result<Self> {
        let open = site.open()?;
        let pid = std::process::id();
        Ok(Executor { site, open: Mutex::new(open), pending: AtomicUsize::new(0), pid })
    }

    /// Whether this is the process that opened the store, and not a child that it forked.
    pub(super) fn at_home(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether the worker has nothing to do.
    pub(super) fn idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// Does work that writes now, if that takes no waiting.
    pub(super) fn at_once<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T>> {
        if self.idle() { self.beside(work) } else { None }
    }

    /// Does work that only reads now, if that takes no waiting: also while the worker waits for
    /// its turn to write.
    pub(super) fn beside<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T>> {
        let open = self.open.try_lock()?;
        if !self.site.current(&open) {
            return None; // to be opened anew, which may take time
        }
        match work(&open.conn) {
            Err(error) if busy(&error) => None,
            done => Some(done.map_err(|error| explain(&self.site.name, error))),
        }
    }

    /// Does the work, and waits for its turn to write until `limit`, or for as long as it is
    /// `wanted`.
    pub(super) fn in_turn<T>(
        &self,
        limit: Time,
        wanted: impl Fn() -> bool,
        mut work: impl FnMut(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        loop {
            let mut open = self.lock();
            self.renew(&mut open)?;
            let done = work(&open.conn);
            drop(open);
            match done {
                Err(error) if busy(&error) && clock::now() < limit && wanted() => pause(),
                done => return done.map_err(|error| explain(&self.site.name, error)),
            }
        }
    }

    /// Until when work that is ordered now may wait.
    pub(super) fn limit(&self) -> Time {
        clock::now().after(self.site.busy_timeout)
    }

    /// Announces work for the worker.
    pub(super) fn announce(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes up announced work.
    pub(super) fn take_up(&self) -> Pending<'_> {
        Pending(self)
    }

    /// Opens the database anew if somebody has removed or replaced the file.
    fn renew(&self, open: &mut Open) -> Result<()> {
        if !self.site.current(open) {
            *open = self.site.open()?;
        }
        Ok(())
    }

    /// The last user is going.
    pub(super) fn close(&self) {
        if let Some(open) = self.open.try_lock() {
            self.site.tidy(&open);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}
