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

use crate::error::{Error, Result};
use crate::recipes::{self, Owner, WriteGuard};
use crate::store::TicketId;
use crate::thread;
use crate::{Guard, Leadership, LockInfo, Loss, MultiGuard, Name, ReentrantGuard};
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

    /// Waits until everything dropped has been given up in the store.
    pub fn settle(&self) {
        wait(self.0.settle());
    }
}

/// Defines a recipe's blocking side: the async recipe, made with its options, in a newtype.
macro_rules! recipe {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(recipes::$name);

        impl $name {
            /// The blocking side of an async recipe, with the options that it was given.
            pub fn new(recipe: recipes::$name) -> Self {
                $name(recipe)
            }
        }
    };
}

/// Defines a guard's blocking side: everything of the async guard that does not wait, and `unlock`.
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "dropping the guard at once releases the lock at once"]
        pub struct $name($inner);

        impl $name {
            /// Releases the lock, and says how that went.
            pub fn unlock(self) -> Result<()> {
                wait(self.0.unlock())
            }

            /// Waits until the lock is lost, or for `time`; says whether it is lost.
            pub fn lost_within(&self, time: Duration) -> bool {
                wait(async { tokio::time::timeout(time, self.0.lost()).await.is_ok() })
            }

            /// Why the lock was lost; `None` while it is held.
            pub fn loss(&self) -> Option<Loss> {
                wait(self.0.loss())
            }

            /// Does `work` if the lock is held, and says whether it was still held at the end.
            /// A thread cannot be stopped from outside: long work should ask `is_valid` between its
            /// steps.
            pub fn protect<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
                wait(self.0.protect(async { work() }))
            }
        }

        impl Deref for $name {
            type Target = $inner;
            fn deref(&self) -> &$inner {
                &self.0
            }
        }
    };
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

impl Election {
    /// Stands for election, and waits until elected.
    pub fn campaign(&self, value: impl Into<String>) -> Result<BlockingLeader> {
        wait(self.0.campaign(value)).map(BlockingLeader)
    }

    /// Is elected at once, or not.
    pub fn try_campaign(&self, value: impl Into<String>) -> Result<Option<BlockingLeader>> {
        Ok(wait(self.0.try_campaign(value))?.map(BlockingLeader))
    }

    /// The present leader, if there is one.
    pub fn leader(&self) -> Result<Option<Leadership>> {
        wait(self.0.leader())
    }
}

impl BlockingLeader {
    /// Changes the value that others see.
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        wait(self.0.proclaim(value))
    }

    /// Waits until the leadership is lost, or for `time`; says whether it is lost.
    pub fn lost_within(&self, time: Duration) -> bool {
        wait(async { tokio::time::timeout(time, self.0.lost()).await.is_ok() })
    }

    /// Why the leadership was lost; `None` while it lasts.
    pub fn loss(&self) -> Option<Loss> {
        wait(self.0.loss())
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
