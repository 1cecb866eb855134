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

/// The weight of a writer, and the capacity: the most readers that can hold at once.
const CAPACITY: u32 = crate::store::READ_WRITE;

/// A read-write lock: many readers share it, or one writer has it alone, over all processes that
/// use the store. First come, first served: readers that arrive after a waiting writer wait behind
/// it.
///
/// There is no upgrade from reading to writing: two readers that upgrade would deadlock. There is a
/// [downgrade](WriteGuard::downgrade), which admits no other writer in between.
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

/// A held write lock: a [`Guard`] that can be downgraded to a read lock.
#[derive(Debug)]
#[must_use = "dropping the guard at once releases the lock at once"]
pub struct WriteGuard(Guard);

impl RwLock {
    /// The lock of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        RwLock { client: client.clone(), name, options: Options::new(Recipe::RwLock) }
    }

    option_methods!();

    /// Locks for reading, waiting as long as it takes. Errors as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn read(&self) -> Result<Guard> {
        self.take(1, Wait::Forever).await.map(expect_acquired)
    }

    /// Locks for reading if that needs no wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, if it was acquired, in the background.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.take(1, Wait::Not).await
    }

    /// Locks for reading, waiting up to `time`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn read_within(&self, time: Duration) -> Result<Option<Guard>> {
        self.take(1, Wait::Within(time)).await
    }

    /// Locks for writing, waiting as long as it takes. Errors as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn write(&self) -> Result<WriteGuard> {
        self.take(CAPACITY, Wait::Forever).await.map(expect_acquired).map(WriteGuard)
    }

    /// Locks for writing if that needs no wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, if it was acquired, in the background.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.take(CAPACITY, Wait::Not).await?.map(WriteGuard))
    }

    /// Locks for writing, waiting up to `time`.
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
    /// Downgrades to a read lock, without admitting another writer in between. The token stays.
    ///
    /// # Errors
    ///
    /// The store could not be asked, or the lock is lost. The guard comes back with the error; it
    /// may have been downgraded already.
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
