//! The blocking API: the same locks without async, for threads, scripts and tests.
//!
//! Every call drives the async method to completion on the calling thread, with a runtime that this
//! module owns. The async method's documentation applies, its errors included, except for
//! cancellation. Inside an async task use the async API: blocking there panics, because it would
//! stop the executor.
//!
//! ```
//! use holdline::blocking;
//! use std::time::Duration;
//! let client = blocking::open("memory:")?;
//! let report = client.mutex("nightly-report").lease(Duration::from_secs(30)).label("cron");
//!
//! let guard = report.lock()?; // or try_lock(), lock_within(time)
//! println!("holding with token {}", guard.token());
//! drop(guard); // or guard.unlock(), which reports the result
//! # Ok::<(), holdline::Error>(())
//! ```
//!
//! Dropping a guard waits for the release, as its `unlock` does: for a third of the lease, and from
//! 250 ms to 5 s, if the store is silent. So a lock whose guard is dropped at the end of `main` is
//! free when the process has ended. On a thread of a Tokio runtime the lock is released in the
//! background: call [`Client::settle`] outside of it before the process ends. `process::exit` drops
//! nothing.

#[macro_use]
mod macros;
mod group;
mod release;

pub use group::{BlockingMember, BlockingMembersObserver, BlockingOwnership, BlockingRoute, Group};

use crate::error::{Error, Result};
use crate::loss_notice::LossNotice;
use crate::recipes::{self, Owner, WriteGuard};
use crate::store::{Lines, TicketId};
use crate::thread;
use crate::{
    Backoff, Changes, ConnectOptions, Guard, Leadership, LockInfo, Loss, MultiGuard, Name, OnLoss,
    ReentrantGuard,
};
use release::{Held, Release};
use std::future::{Future, ready};
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The runtime that serves connections, on a thread of its own.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let name = "holdline-blocking";
    thread::made_once(&RUNTIME, || {
        thread::build(
            Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all(),
            name,
        )
    })
}

/// Drives a future to completion on this thread.
fn wait<F: Future>(future: F) -> F::Output {
    runtime().expect("opening a store makes it").block_on(future)
}

/// Opens the store at this URL, as [`holdline::open`](crate::open()) does.
///
/// # Errors
///
/// As [`holdline::open`](crate::open()); [`Unavailable`](crate::ErrorKind::Unavailable) if the
/// system is short of threads or file descriptors.
pub fn open(url: &str) -> Result<Client> {
    runtime()?;
    Ok(Client(wait(crate::open(url))?))
}

/// Opens the default store, as [`holdline::open_default`](crate::open_default) does.
///
/// # Errors
///
/// As [`holdline::open_default`](crate::open_default), and as [`open`] if the system is short of
/// threads or file descriptors.
pub fn open_default() -> Result<Client> {
    runtime()?;
    Ok(Client(crate::open_default()?))
}

/// Opens a store by its connection options, as [`ConnectOptions::open`] does.
///
/// # Errors
///
/// As [`open`].
pub fn connect(options: &ConnectOptions) -> Result<Client> {
    runtime()?;
    Ok(Client(wait(options.open())?))
}

/// Installs the tables and functions that locks in a database need. See
/// [`schema::install`](crate::schema::install).
pub fn install_schema(url: &str) -> Result<String> {
    runtime()?;
    wait(crate::schema::install(url))
}

/// Removes data that no lock needs from a database. See [`schema::sweep`](crate::schema::sweep).
pub fn sweep(url: &str, idle: Duration) -> Result<u64> {
    runtime()?;
    wait(crate::schema::sweep(url, idle))
}

/// Examines a store, and reports what is wrong with it. See
/// [`doctor::examine`](crate::doctor::examine()).
#[cfg(feature = "doctor")]
pub fn examine(url: &str, wanted: &crate::doctor::Examination) -> Result<crate::doctor::Report> {
    runtime()?;
    wait(crate::doctor::examine(url, wanted))
}

/// A client of a store. See [`holdline::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// Wraps an async client.
    ///
    /// # Panics
    ///
    /// The first call of a method panics if the system cannot start a thread; [`open`] returns an
    /// error.
    pub fn new(client: crate::Client) -> Self {
        Client(client)
    }

    /// The underlying async client.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// The mutex of this name.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(recipes::Mutex::new(&self.0, name))
    }

    /// The read-write lock of this name.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(recipes::RwLock::new(&self.0, name))
    }

    /// The semaphore of this name.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(recipes::Semaphore::new(&self.0, name, permits))
    }

    /// The re-entrant mutex of this name.
    pub fn reentrant(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex::new(recipes::ReentrantMutex::new(&self.0, name))
    }

    /// The mutexes of these names, locked together.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Multi {
        Multi::new(recipes::Multi::new(&self.0, names))
    }

    /// The election of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(recipes::Election::new(&self.0, name))
    }

    /// Returns the holders and waiters of a lock. See [`inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        wait(self.0.inspect(name))
    }

    /// Returns the names of the locks in use. See [`list`](crate::Client::list).
    pub fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        wait(self.0.list(prefix))
    }

    /// Takes a lock away from one holder or waiter. See
    /// [`force_unlock`](crate::Client::force_unlock).
    pub fn force_unlock(
        &self,
        name: impl AsRef<str>,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<u64>> {
        wait(self.0.force_unlock(name, id, reason))
    }

    /// Watches locks for changes. See [`changes`](crate::Client::changes).
    pub fn changes(&self, lines: Lines) -> BlockingChanges {
        BlockingChanges(self.0.changes(lines))
    }

    /// Waits until the store has released every dropped lock and abandoned acquisition. See
    /// [`settle`](crate::Client::settle).
    pub fn settle(&self) {
        wait(self.0.settle());
    }
}

/// A watch on the changes of locks. See [`Changes`].
#[derive(Debug)]
pub struct BlockingChanges(Changes);

impl BlockingChanges {
    /// Waits until it is time to look again. See [`Changes::next`].
    pub fn wait(&mut self, poll: Duration) {
        wait(self.0.next(poll));
    }
}

one_lock!(BlockingGuard);
one_lock!(BlockingWriteGuard);
one_lock!(BlockingReentrantGuard);
one_lock!(BlockingLeader);

impl LossNotice {
    /// Blocking [`ended`](LossNotice::ended).
    pub fn wait(&self) -> Option<Loss> {
        wait(self.ended())
    }
}

guard! {
    /// The guard of a held lock. See [`Guard`].
    BlockingGuard, Guard
}
guard! {
    /// The guard of a held write lock. See [`WriteGuard`].
    BlockingWriteGuard, WriteGuard
}
guard! {
    /// The guard of a held re-entrant mutex. See [`ReentrantGuard`].
    BlockingReentrantGuard, ReentrantGuard
}
guard! {
    /// The guard of several held locks. See [`MultiGuard`].
    BlockingMultiGuard, MultiGuard
}

recipe! {
    /// See [`holdline::Mutex`](crate::Mutex).
    Mutex
}
options!(Mutex: handoff(most: u32, time: Duration));

impl Mutex {
    /// Acquires the lock, waiting as long as it takes.
    pub fn lock(&self) -> Result<BlockingGuard> {
        wait(self.0.lock()).map(BlockingGuard::new)
    }

    /// Acquires the lock if it is free and has no waiters.
    pub fn try_lock(&self) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingGuard::new))
    }

    /// Acquires the lock, waiting up to `time`.
    pub fn lock_within(&self, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.lock_within(time))?.map(BlockingGuard::new))
    }
}

recipe! {
    /// See [`holdline::RwLock`](crate::RwLock).
    RwLock
}

impl RwLock {
    /// Acquires the read lock, waiting as long as it takes.
    pub fn read(&self) -> Result<BlockingGuard> {
        wait(self.0.read()).map(BlockingGuard::new)
    }

    /// Acquires the read lock, waiting up to `time`.
    pub fn read_within(&self, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.read_within(time))?.map(BlockingGuard::new))
    }

    /// Acquires the read lock if that requires no waiting.
    pub fn try_read(&self) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_read())?.map(BlockingGuard::new))
    }

    /// Acquires the write lock if that requires no waiting.
    pub fn try_write(&self) -> Result<Option<BlockingWriteGuard>> {
        Ok(wait(self.0.try_write())?.map(BlockingWriteGuard::new))
    }

    /// Acquires the write lock, waiting as long as it takes.
    pub fn write(&self) -> Result<BlockingWriteGuard> {
        wait(self.0.write()).map(BlockingWriteGuard::new)
    }

    /// Acquires the write lock, waiting up to `time`.
    pub fn write_within(&self, time: Duration) -> Result<Option<BlockingWriteGuard>> {
        Ok(wait(self.0.write_within(time))?.map(BlockingWriteGuard::new))
    }
}

impl BlockingWriteGuard {
    /// Downgrades to a read lock without admitting another writer in between.
    #[allow(clippy::result_large_err, reason = "the guard must come back")]
    pub fn downgrade(self) -> Result<BlockingGuard, (Self, Error)> {
        wait(self.0.take().downgrade())
            .map(BlockingGuard::new)
            .map_err(|(guard, error)| (Self::new(guard), error))
    }
}

recipe! {
    /// See [`holdline::Semaphore`](crate::Semaphore).
    Semaphore
}

impl Semaphore {
    /// Acquires `n` permits, waiting as long as it takes.
    pub fn acquire(&self, n: u32) -> Result<BlockingGuard> {
        wait(self.0.acquire(n)).map(BlockingGuard::new)
    }

    /// Acquires `n` permits if they are free and there are no waiters.
    pub fn try_acquire(&self, n: u32) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_acquire(n))?.map(BlockingGuard::new))
    }

    /// Acquires `n` permits, waiting up to `time`.
    pub fn acquire_within(&self, n: u32, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.acquire_within(n, time))?.map(BlockingGuard::new))
    }
}

recipe! {
    /// See [`holdline::ReentrantMutex`](crate::ReentrantMutex).
    ReentrantMutex
}

impl ReentrantMutex {
    /// Acquires the lock, waiting as long as it takes; at once if `owner` holds it.
    pub fn lock(&self, owner: &Owner) -> Result<BlockingReentrantGuard> {
        wait(self.0.lock(owner)).map(BlockingReentrantGuard::new)
    }

    /// Acquires the lock if that requires no waiting.
    pub fn try_lock(&self, owner: &Owner) -> Result<Option<BlockingReentrantGuard>> {
        Ok(wait(self.0.try_lock(owner))?.map(BlockingReentrantGuard::new))
    }

    /// Acquires the lock, waiting up to `time`.
    pub fn lock_within(
        &self,
        owner: &Owner,
        time: Duration,
    ) -> Result<Option<BlockingReentrantGuard>> {
        Ok(wait(self.0.lock_within(owner, time))?.map(BlockingReentrantGuard::new))
    }
}

recipe! {
    /// See [`holdline::Multi`](crate::Multi).
    Multi
}

impl Multi {
    /// Acquires all locks, waiting as long as it takes.
    pub fn lock(&self) -> Result<BlockingMultiGuard> {
        wait(self.0.lock()).map(BlockingMultiGuard::new)
    }

    /// Acquires all locks if none requires waiting; otherwise none.
    pub fn try_lock(&self) -> Result<Option<BlockingMultiGuard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingMultiGuard::new))
    }

    /// Acquires all locks, waiting up to `time` in total; otherwise none.
    pub fn lock_within(&self, time: Duration) -> Result<Option<BlockingMultiGuard>> {
        Ok(wait(self.0.lock_within(time))?.map(BlockingMultiGuard::new))
    }
}

recipe! {
    /// See [`holdline::Election`](crate::Election).
    Election
}

/// The leadership, while held. See [`Leader`](crate::Leader).
#[derive(Debug)]
#[must_use = "dropping the leadership at once resigns at once"]
pub struct BlockingLeader(Held<recipes::Leader>);

may_be_lost!(BlockingLeader, "leadership");
works!(BlockingLeader, "it leads");

impl Election {
    /// Campaigns, and waits until elected.
    pub fn campaign(&self, value: impl Into<String>) -> Result<BlockingLeader> {
        wait(self.0.campaign(value)).map(BlockingLeader::new)
    }

    /// Campaigns without waiting.
    pub fn try_campaign(&self, value: impl Into<String>) -> Result<Option<BlockingLeader>> {
        Ok(wait(self.0.try_campaign(value))?.map(BlockingLeader::new))
    }

    /// Campaigns for up to `time`.
    pub fn campaign_within(
        &self,
        value: impl Into<String>,
        time: Duration,
    ) -> Result<Option<BlockingLeader>> {
        Ok(wait(self.0.campaign_within(value, time))?.map(BlockingLeader::new))
    }

    /// Creates an observer of the election.
    pub fn observe(&self) -> BlockingObserver {
        BlockingObserver(self.0.observe())
    }

    /// Returns the current leader, if there is one.
    pub fn leader(&self) -> Result<Option<Leadership>> {
        wait(self.0.leader())
    }
}

/// An observer of an election's changes. See [`Observer`](crate::Observer).
#[derive(Debug)]
pub struct BlockingObserver(recipes::Observer);

impl BlockingObserver {
    /// Sets the poll interval, used if the store does not report changes.
    pub fn every(self, every: Duration) -> Self {
        BlockingObserver(self.0.every(every))
    }

    /// Waits for the next change; the first call returns the current leader at once.
    pub fn next_change(&mut self) -> Result<Option<Leadership>> {
        wait(self.0.next())
    }
}

impl Release for recipes::Leader {
    fn release(self) -> impl Future<Output = Result<()>> {
        self.resign()
    }
}

impl BlockingLeader {
    fn new(leader: recipes::Leader) -> Self {
        BlockingLeader(Held::new(leader))
    }

    /// Changes the published value.
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        wait(self.0.proclaim(value))
    }

    /// Resigns, and reports the result.
    #[doc(alias = "unlock")]
    pub fn resign(self) -> Result<()> {
        wait(self.0.take().resign())
    }
}

impl Deref for BlockingLeader {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}
