//! The same locks without async: for threads, scripts and tests.
//!
//! Every call is the async one, driven to its end on the calling thread by a runtime that this
//! module keeps; the documentation of the async method holds word for word, but for cancellation.
//! Inside an async task use the async API: blocking there panics, as it would stop the executor.
//!
//! ```
//! use holdline::blocking;
//! let client = blocking::open("memory:")?;
//! let guard = client.mutex("nightly-report").lock()?;
//! println!("holding with token {}", guard.token());
//! guard.unlock()?;
//! # Ok::<(), holdline::Error>(())
//! ```

#[macro_use]
mod macros;
mod group;

pub use group::{BlockingMember, BlockingMembersObserver, BlockingOwnership, BlockingRoute, Group};

use crate::error::{Error, Result};
use crate::loss_notice::LossNotice;
use crate::recipes::{self, Owner, WriteGuard};
use crate::store::{Lines, TicketId};
use crate::thread;
use crate::{
    Changes, ConnectOptions, Guard, Leadership, LockInfo, Loss, MultiGuard, Name, ReentrantGuard,
};
use std::future::Future;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The runtime that serves the connections, with a thread of its own.
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

/// Drives a future to its end on this thread.
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

/// Opens a store by its parts, as [`ConnectOptions::open`] does.
///
/// # Errors
///
/// As [`open`].
pub fn connect(options: &ConnectOptions) -> Result<Client> {
    runtime()?;
    Ok(Client(wait(options.open())?))
}

/// Installs what locks in a database need. See [`schema::install`](crate::schema::install).
pub fn install_schema(url: &str) -> Result<()> {
    runtime()?;
    wait(crate::schema::install(url))
}

/// Removes from a database what no lock needs any more. See
/// [`schema::sweep`](crate::schema::sweep).
pub fn sweep(url: &str, idle: Duration) -> Result<u64> {
    runtime()?;
    wait(crate::schema::sweep(url, idle))
}

/// Looks at a store, and says what is wrong with it. See
/// [`doctor::examine`](crate::doctor::examine()).
#[cfg(feature = "doctor")]
pub fn examine(url: &str, wanted: &crate::doctor::Examination) -> Result<crate::doctor::Report> {
    runtime()?;
    wait(crate::doctor::examine(url, wanted))
}

/// A connection to a store. See [`holdline::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// The blocking side of an async client.
    ///
    /// # Panics
    ///
    /// The first call of a method panics if the system gives no thread; [`open`] gives an error.
    pub fn new(client: crate::Client) -> Self {
        Client(client)
    }

    /// The async client behind this one: for a recipe with options, as in
    /// `Mutex::new(holdline::Mutex::new(client.as_async(), "name").lease(time))`.
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

    /// The mutexes of these names as one.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Multi {
        Multi::new(recipes::Multi::new(&self.0, names))
    }

    /// The election of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(recipes::Election::new(&self.0, name))
    }

    /// The holders and waiters of a lock.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        wait(self.0.inspect(name))
    }

    /// The names of locks that somebody holds or waits for.
    pub fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        wait(self.0.list(prefix))
    }

    /// Takes a lock away from one holder. See [`force_unlock`](crate::Client::force_unlock).
    pub fn force_unlock(
        &self,
        name: impl AsRef<str>,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<u64>> {
        wait(self.0.force_unlock(name, id, reason))
    }

    /// The changes of these locks. See [`changes`](crate::Client::changes).
    pub fn changes(&self, lines: Lines) -> BlockingChanges {
        BlockingChanges(self.0.changes(lines))
    }

    /// Waits until everything dropped has been given up in the store.
    pub fn settle(&self) {
        wait(self.0.settle());
    }
}

/// When to look at locks again. See [`Changes`].
#[derive(Debug)]
pub struct BlockingChanges(Changes);

impl BlockingChanges {
    /// Waits until it is time to look again, after `poll` where the store tells of no changes.
    pub fn wait(&mut self, poll: Duration) {
        wait(self.0.next(poll));
    }
}

one_lock!(BlockingGuard);
one_lock!(BlockingWriteGuard);
one_lock!(BlockingReentrantGuard);
one_lock!(BlockingLeader);

impl LossNotice {
    /// [`ended`](LossNotice::ended) for a thread.
    pub fn wait(&self) -> Option<Loss> {
        wait(self.ended())
    }
}

guard! {
    /// A held lock. See [`Guard`].
    BlockingGuard, Guard
}
guard! {
    /// A held write lock. See [`WriteGuard`].
    BlockingWriteGuard, WriteGuard
}
guard! {
    /// A held re-entrant mutex. See [`ReentrantGuard`].
    BlockingReentrantGuard, ReentrantGuard
}
guard! {
    /// Several held locks. See [`MultiGuard`].
    BlockingMultiGuard, MultiGuard
}

recipe! {
    /// See [`holdline::Mutex`](crate::Mutex).
    Mutex
}

impl Mutex {
    /// Locks, waiting as long as it takes.
    pub fn lock(&self) -> Result<BlockingGuard> {
        wait(self.0.lock()).map(BlockingGuard)
    }

    /// Locks if that needs no wait.
    pub fn try_lock(&self) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingGuard))
    }

    /// Locks, waiting up to `time`.
    pub fn lock_within(&self, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.lock_within(time))?.map(BlockingGuard))
    }
}

recipe! {
    /// See [`holdline::RwLock`](crate::RwLock).
    RwLock
}

impl RwLock {
    /// Locks for reading, waiting as long as it takes.
    pub fn read(&self) -> Result<BlockingGuard> {
        wait(self.0.read()).map(BlockingGuard)
    }

    /// Locks for reading, waiting up to `time`.
    pub fn read_within(&self, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.read_within(time))?.map(BlockingGuard))
    }

    /// Locks for reading if that needs no wait.
    pub fn try_read(&self) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_read())?.map(BlockingGuard))
    }

    /// Locks for writing if that needs no wait.
    pub fn try_write(&self) -> Result<Option<BlockingWriteGuard>> {
        Ok(wait(self.0.try_write())?.map(BlockingWriteGuard))
    }

    /// Locks for writing, waiting as long as it takes.
    pub fn write(&self) -> Result<BlockingWriteGuard> {
        wait(self.0.write()).map(BlockingWriteGuard)
    }

    /// Locks for writing, waiting up to `time`.
    pub fn write_within(&self, time: Duration) -> Result<Option<BlockingWriteGuard>> {
        Ok(wait(self.0.write_within(time))?.map(BlockingWriteGuard))
    }
}

impl BlockingWriteGuard {
    /// Becomes a reader without letting another writer in between.
    #[allow(clippy::result_large_err, reason = "the guard must come back")]
    pub fn downgrade(self) -> Result<BlockingGuard, (Self, Error)> {
        wait(self.0.downgrade()).map(BlockingGuard).map_err(|(guard, error)| (Self(guard), error))
    }
}

recipe! {
    /// See [`holdline::Semaphore`](crate::Semaphore).
    Semaphore
}

impl Semaphore {
    /// Takes `n` permits, waiting as long as it takes.
    pub fn acquire(&self, n: u32) -> Result<BlockingGuard> {
        wait(self.0.acquire(n)).map(BlockingGuard)
    }

    /// Takes `n` permits if they are free and nobody waits.
    pub fn try_acquire(&self, n: u32) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.try_acquire(n))?.map(BlockingGuard))
    }

    /// Takes `n` permits, waiting up to `time`.
    pub fn acquire_within(&self, n: u32, time: Duration) -> Result<Option<BlockingGuard>> {
        Ok(wait(self.0.acquire_within(n, time))?.map(BlockingGuard))
    }
}

recipe! {
    /// See [`holdline::ReentrantMutex`](crate::ReentrantMutex).
    ReentrantMutex
}

impl ReentrantMutex {
    /// Locks, waiting as long as it takes; at once if `owner` holds it.
    pub fn lock(&self, owner: &Owner) -> Result<BlockingReentrantGuard> {
        wait(self.0.lock(owner)).map(BlockingReentrantGuard)
    }

    /// Locks if that needs no wait.
    pub fn try_lock(&self, owner: &Owner) -> Result<Option<BlockingReentrantGuard>> {
        Ok(wait(self.0.try_lock(owner))?.map(BlockingReentrantGuard))
    }

    /// Locks, waiting up to `time`.
    pub fn lock_within(
        &self,
        owner: &Owner,
        time: Duration,
    ) -> Result<Option<BlockingReentrantGuard>> {
        Ok(wait(self.0.lock_within(owner, time))?.map(BlockingReentrantGuard))
    }
}

recipe! {
    /// See [`holdline::Multi`](crate::Multi).
    Multi
}

impl Multi {
    /// Locks all, waiting as long as it takes.
    pub fn lock(&self) -> Result<BlockingMultiGuard> {
        wait(self.0.lock()).map(BlockingMultiGuard)
    }

    /// Locks all if none needs a wait; otherwise none.
    pub fn try_lock(&self) -> Result<Option<BlockingMultiGuard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingMultiGuard))
    }

    /// Locks all, waiting up to `time` in all; otherwise none.
    pub fn lock_within(&self, time: Duration) -> Result<Option<BlockingMultiGuard>> {
        Ok(wait(self.0.lock_within(time))?.map(BlockingMultiGuard))
    }
}

recipe! {
    /// See [`holdline::Election`](crate::Election).
    Election
}

/// Being the leader. See [`Leader`](crate::Leader).
#[derive(Debug)]
#[must_use = "dropping the leadership at once resigns at once"]
pub struct BlockingLeader(recipes::Leader);

may_be_lost!(BlockingLeader, "leadership");
works!(BlockingLeader, "it leads");

impl Election {
    /// Stands for election, and waits until elected.
    pub fn campaign(&self, value: impl Into<String>) -> Result<BlockingLeader> {
        wait(self.0.campaign(value)).map(BlockingLeader)
    }

    /// Is elected at once, or not.
    pub fn try_campaign(&self, value: impl Into<String>) -> Result<Option<BlockingLeader>> {
        Ok(wait(self.0.try_campaign(value))?.map(BlockingLeader))
    }

    /// Stands for election for up to `time`.
    pub fn campaign_within(
        &self,
        value: impl Into<String>,
        time: Duration,
    ) -> Result<Option<BlockingLeader>> {
        Ok(wait(self.0.campaign_within(value, time))?.map(BlockingLeader))
    }

    /// A follower of the election's changes.
    pub fn observe(&self) -> BlockingObserver {
        BlockingObserver(self.0.observe())
    }

    /// The present leader, if there is one.
    pub fn leader(&self) -> Result<Option<Leadership>> {
        wait(self.0.leader())
    }
}

/// A follower of an election's changes. See [`Observer`](crate::Observer).
#[derive(Debug)]
pub struct BlockingObserver(recipes::Observer);

impl BlockingObserver {
    /// Sets the poll interval.
    pub fn every(self, every: Duration) -> Self {
        BlockingObserver(self.0.every(every))
    }

    /// Waits for the next change; the first call returns the current leader at once.
    pub fn next_change(&mut self) -> Result<Option<Leadership>> {
        wait(self.0.next())
    }
}

impl BlockingLeader {
    /// Changes the value that others see.
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        wait(self.0.proclaim(value))
    }

    /// Resigns.
    pub fn resign(self) -> Result<()> {
        wait(self.0.resign())
    }
}

impl Deref for BlockingLeader {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}
