//! The executor of transactions: on the caller's thread if possible, otherwise on one worker.
//!
//! A transaction takes 10 to 20 microseconds, less than handing it to another thread. So it runs on
//! the caller's thread, unless the database is busy: then the worker runs it, which can wait
//! without blocking the caller's runtime. While the worker has work queued, all writes are queued
//! behind it, so that a leave runs after an abandoned operation on the same ticket.

use super::database::{OpenDatabase, Site, pause, take_log_pages};
use super::errors::{busy, explain};
use crate::clock;
use crate::error::Result;
use crate::sync::Mutex;
use holdline_kernel::Time;
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The connection, and the number of jobs queued for the worker.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) site: Site,
    open: Mutex<OpenDatabase>,
    pending: Arc<AtomicUsize>,
    /// Whether a checkpoint is due.
    checkpoint_due: AtomicBool,
    /// The length of the log, in pages, at which the next checkpoint is due.
    checkpoint_at: AtomicU32,
    /// The process that opened the store: neither threads nor an open database survive a fork.
    pub(super) pid: u32,
}

/// How many pages the log grows by between checkpoints: SQLite's default.
const CHECKPOINT: u32 = 1000;

/// A job of the worker; counted as pending until it is dropped.
#[derive(Debug)]
pub(super) struct Pending(Arc<AtomicUsize>);

impl Executor {
    pub(super) fn open(site: Site) -> Result<Self> {
        let open = site.open()?;
        let pid = std::process::id();
        Ok(Executor {
            site,
            open: Mutex::new(open),
            pending: Arc::default(),
            checkpoint_due: AtomicBool::new(false),
            checkpoint_at: AtomicU32::new(CHECKPOINT),
            pid,
        })
    }

    /// Whether this is the process that opened the store, and not a forked child.
    pub(super) fn in_opening_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether the worker has no pending jobs.
    pub(super) fn idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Runs a writing transaction now, unless it would have to wait.
    pub(super) fn try_write<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T>> {
        if self.idle() { self.try_read(work) } else { None }
    }

    /// Runs a reading transaction now, unless it would have to wait; even while the worker waits
    /// for the write lock.
    pub(super) fn try_read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T>> {
        let open = self.open.try_lock()?;
        if !self.site.current(&open) {
            return None; // reopening may take time
        }
        let done = work(&open.conn);
        self.note_log();
        match done {
            Err(error) if busy(&error) => None,
            done => Some(done.map_err(|error| explain(&self.site.name, error))),
        }
    }

    /// Runs a transaction, and retries while the database is busy: until `limit`, and only while it
    /// is `wanted`.
    pub(super) fn run_with_retry<T>(
        &self,
        limit: Time,
        wanted: impl Fn() -> bool,
        mut work: impl FnMut(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        loop {
            let mut open = self.open.lock();
            self.renew(&mut open)?;
            let done = work(&open.conn);
            self.note_log();
            drop(open);
            match done {
                Err(error) if busy(&error) && clock::now() < limit && wanted() => pause(),
                done => return done.map_err(|error| explain(&self.site.name, error)),
            }
        }
    }

    /// Runs a transaction, and retries for as long as the database may be busy.
    pub(super) fn run<T>(&self, work: impl FnMut(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        self.run_with_retry(self.limit(), || true, work)
    }

    /// The deadline of a transaction that is queued now.
    pub(super) fn limit(&self) -> Time {
        clock::now().after(self.site.busy_timeout)
    }

    /// Counts a job for the worker as pending until the result is dropped.
    pub(super) fn announce(&self) -> Pending {
        self.pending.fetch_add(1, Ordering::AcqRel);
        Pending(Arc::clone(&self.pending))
    }

    /// Reopens the database if the file was removed or replaced.
    fn renew(&self, open: &mut OpenDatabase) -> Result<()> {
        if !self.site.current(open) {
            *open = self.site.open()?;
        }
        Ok(())
    }

    /// Records the length of the log after a transaction. A log that could not be checkpointed is
    /// left until it has grown by as much again.
    fn note_log(&self) {
        let Some(pages) = take_log_pages() else { return };
        if pages < CHECKPOINT {
            self.checkpoint_at.store(CHECKPOINT, Ordering::Relaxed);
        } else if pages >= self.checkpoint_at.load(Ordering::Relaxed) {
            self.checkpoint_at.store(pages.saturating_add(CHECKPOINT), Ordering::Relaxed);
            self.checkpoint_due.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a checkpoint is due. Returns true only once per checkpoint.
    pub(super) fn take_checkpoint(&self) -> bool {
        self.checkpoint_due.load(Ordering::Relaxed)
            && self.checkpoint_due.swap(false, Ordering::Relaxed)
    }

    /// Checkpoints the log, so that it starts anew, unless a reader prevents that or the disk is
    /// slow.
    pub(super) fn checkpoint(&self) {
        let checkpointed = self.open.lock().checkpoint();
        if !matches!(checkpointed, Ok(true)) {
            tracing::debug!(?checkpointed, "the log of the lock database goes on");
        }
    }

    /// Checkpoints the log when the last handle is dropped.
    pub(super) fn close(&self) {
        if let Some(open) = self.open.try_lock() {
            self.site.checkpoint(&open);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Address;
    use super::*;
    use std::io::Read;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    struct World {
        folder: tempfile::TempDir,
        executor: Executor,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let address = Address::of(folder.path().join("locks.db"));
            let executor = Executor::open(Site::find(address).unwrap()).unwrap();
            World { folder, executor }
        }

        fn commit(&self) {
            let sql = "UPDATE meta SET last = last + 1";
            assert_eq!(self.executor.run(|conn| conn.execute(sql, [])).unwrap(), 1);
        }

        /// Commits until a checkpoint is due, and returns the number of commits.
        fn commit_until_due(&self) -> u32 {
            for commits in 1..=2 * CHECKPOINT {
                self.commit();
                if self.executor.take_checkpoint() {
                    return commits;
                }
            }
            panic!("no checkpoint was due");
        }

        /// A number in the head of the log, which rises by one whenever it begins anew.
        fn generation(&self) -> u32 {
            let mut log = std::fs::File::open(self.folder.path().join("locks.db-wal")).unwrap();
            let mut head = [0; 20];
            log.read_exact(&mut head).unwrap();
            u32::from_be_bytes(head[16..].try_into().unwrap())
        }

        /// The pages of the log, and how many of them have been checkpointed.
        fn log(&self) -> (u32, u32) {
            let read = |conn: &Connection| {
                conn.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| {
                    Ok((row.get(1)?, row.get(2)?))
                })
            };
            self.executor.run(read).unwrap()
        }
    }

    #[test]
    fn a_commit_leaves_the_log_to_be_checkpointed() {
        let world = World::new();
        world.commit_until_due();
        let (pages, done) = world.log();
        assert!(pages >= CHECKPOINT && done == 0, "{done} of {pages}");
        assert!(!world.executor.take_checkpoint(), "it was said");
        world.executor.checkpoint();
        // Then the log starts anew.
        world.commit();
        assert!(world.log().0 < 10, "{:?}", world.log());
        assert!(world.commit_until_due() > CHECKPOINT / 2);
    }

    /// A checkpoint beside those who write lets it begin anew in one of twenty cases.
    #[test]
    fn a_log_that_others_write_begins_anew() {
        let world = World::new();
        let over = AtomicBool::new(false);
        let work = || {
            let first = world.generation();
            for _ in 0..60 {
                world.commit_until_due();
                world.executor.checkpoint();
                if world.generation().wrapping_sub(first) >= 20 {
                    return;
                }
            }
            panic!("the log goes on and on");
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let other = world.executor.site.open().unwrap();
                    while !over.load(Ordering::Relaxed) {
                        // Busy, or not.
                        let _ = other.conn.execute("UPDATE meta SET last = last + 1", []);
                    }
                });
            }
            let done = catch_unwind(AssertUnwindSafe(work));
            over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    #[test]
    fn a_log_that_is_in_use_is_left_until_it_has_grown_as_much_again() {
        let world = World::new();
        let reader = Connection::open(world.folder.path().join("locks.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT last FROM meta").unwrap();
        world.commit_until_due();
        world.executor.checkpoint();
        assert!(world.commit_until_due() > CHECKPOINT / 2);
        reader.execute_batch("COMMIT").unwrap();
        world.executor.checkpoint();
        world.commit();
        assert!(world.log().0 < 10, "{:?}", world.log());
    }
}
