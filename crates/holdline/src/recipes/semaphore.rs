//! The semaphore: a limited number of permits.

use super::{acquire, expect_acquired};
use crate::client::Client;
use crate::error::Result;
use crate::guard::Guard;
use crate::metrics::Recipe;
use crate::names::Name;
use crate::options::{Options, Wait, option_methods};
use std::time::Duration;

/// A semaphore: a number of permits that holders share, across all processes that use the store.
/// All users of a name must give the same number. It is fair: a request for many permits is not
/// starved by requests for few.
///
/// To change the number, put it into the name (`uploads-6`): while old and new processes run side
/// by side, each number bounds its own. Or keep the name, and retry
/// [`Mismatch`](crate::ErrorKind::Mismatch) until the users of the old number have left.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// let client = holdline::open("memory:").await?;
/// let uploads = holdline::Semaphore::new(&client, "uploads", 3);
/// let one = uploads.acquire(1).await?;
/// let two = uploads.acquire(2).await?;
/// assert!(uploads.try_acquire(1).await?.is_none());
/// # drop((one, two)); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    name: String,
    permits: u32,
    options: Options,
}

impl Semaphore {
    /// Creates a handle of the semaphore of this name, with this many permits in total.
    pub fn new(client: &Client, name: impl AsRef<str>, permits: u32) -> Self {
        let name = name.as_ref().to_owned();
        Semaphore {
            client: client.clone(),
            name,
            permits,
            options: Options::new(Recipe::Semaphore),
        }
    }

    option_methods!();

    /// Acquires `n` permits, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if `n` is 0 or more than the total;
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if others use the name with another total;
    /// otherwise as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn acquire(&self, n: u32) -> Result<Guard> {
        self.take(n, Wait::Forever).await.map(expect_acquired)
    }

    /// Acquires `n` permits if they are free and there are no waiters. `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the permits in the background, if they were acquired.
    pub async fn try_acquire(&self, n: u32) -> Result<Option<Guard>> {
        self.take(n, Wait::Not).await
    }

    /// Acquires `n` permits, waiting up to `time`. `None` if they were not acquired.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn acquire_within(&self, n: u32, time: Duration) -> Result<Option<Guard>> {
        self.take(n, Wait::Within(time)).await
    }

    async fn take(&self, n: u32, wait: Wait) -> Result<Option<Guard>> {
        let name = Name::new(&self.name)?;
        acquire(&self.client, &self.options, name, (n, self.permits), wait).await
    }
}
