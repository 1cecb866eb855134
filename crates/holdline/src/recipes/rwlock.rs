//! The read-write lock: many readers or one writer.

use super::{acquire, expect_acquired};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::metrics::Recipe;
use crate::names::Name;
use crate::options::{Options, Wait, option_methods};
use std::ops::Deref;
use std::time::Duration;

/// The weight of a writer, and the capacity: the most readers at once.
const CAPACITY: u32 = crate::store::READ_WRITE;

/// A read-write lock, across all processes that use the store: many readers share it, or one writer
/// has it exclusively. It is fair: readers that arrive after a waiting writer wait behind it.
///
/// There is no upgrade from reading to writing, because two upgrading readers would deadlock. There
/// is a [downgrade](WriteGuard::downgrade), which admits no other writer in between.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// let client = holdline::open("memory:").await?;
/// let table = holdline::RwLock::new(&client, "table");
/// let writer = table.write().await?;
/// assert!(table.try_read().await?.is_none());
/// let reader = writer.downgrade().await.map_err(|(_, error)| error)?;
/// let another = table.read().await?;
/// # drop((reader, another)); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    client: Client,
    name: String,
    options: Options,
}

/// The guard of a held write lock: a [`Guard`] that can be downgraded to a read lock.
#[derive(Debug)]
#[must_use = "dropping the guard at once releases the lock at once"]
pub struct WriteGuard(Guard);

impl RwLock {
    /// Creates a handle of the lock of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        RwLock { client: client.clone(), name, options: Options::new(Recipe::RwLock) }
    }

    option_methods!();

    /// Acquires the read lock, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the store has no read-write locks;
    /// otherwise as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn read(&self) -> Result<Guard> {
        self.take(1, Wait::Forever).await.map(expect_acquired)
    }

    /// Acquires the read lock if that requires no waiting. `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, if it was acquired.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.take(1, Wait::Not).await
    }

    /// Acquires the read lock, waiting up to `time`. `None` if it was not acquired.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn read_within(&self, time: Duration) -> Result<Option<Guard>> {
        self.take(1, Wait::Within(time)).await
    }

    /// Acquires the write lock, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn write(&self) -> Result<WriteGuard> {
        self.take(CAPACITY, Wait::Forever).await.map(expect_acquired).map(WriteGuard)
    }

    /// Acquires the write lock if that requires no waiting. `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, if it was acquired.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.take(CAPACITY, Wait::Not).await?.map(WriteGuard))
    }

    /// Acquires the write lock, waiting up to `time`. `None` if it was not acquired.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn write_within(&self, time: Duration) -> Result<Option<WriteGuard>> {
        Ok(self.take(CAPACITY, Wait::Within(time)).await?.map(WriteGuard))
    }

    async fn take(&self, weight: u32, wait: Wait) -> Result<Option<Guard>> {
        let name = Name::new(&self.name)?;
        acquire(&self.client, &self.options, name, (weight, CAPACITY), wait).await
    }
}

impl WriteGuard {
    /// Downgrades to a read lock without admitting another writer in between. The token stays the
    /// same.
    ///
    /// # Errors
    ///
    /// The guard is returned with the error; `.map_err(|(_, error)| error)?` drops it, and so
    /// releases the lock. [`Unsupported`](crate::ErrorKind::Unsupported) if the store has no
    /// downgrade (PostgreSQL's `advisory`): it is still the write lock. Otherwise the
    /// store could not be asked within 5 s, or the lock is lost, and from then on the guard
    /// protects reading only: the store may have downgraded the lock, and the next renewal does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    #[allow(clippy::result_large_err, reason = "the guard must come back")]
    pub async fn downgrade(mut self) -> Result<Guard, (Self, Error)> {
        match self.0.downgrade(1).await {
            Ok(()) => Ok(self.0),
            Err(error) => Err((self, error)),
        }
    }

    /// Releases the lock, as [`Guard::unlock`] does.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    pub async fn unlock(self) -> Result<()> {
        self.0.unlock().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}
