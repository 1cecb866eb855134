//! The mutex: one holder at a time.

use super::{acquire, expect_acquired};
use crate::client::Client;
use crate::error::Result;
use crate::guard::Guard;
use crate::names::Name;
use crate::options::{Options, Wait, option_methods};
use crate::request::Handoff;
use std::time::Duration;

/// The most holders that one ticket can serve. Each needs a token of its own, reserved in advance.
const MOST_HOLDERS: u32 = 1 << 16;

/// A mutex: a lock with one holder at a time, across all processes that use the store.
///
/// Creating one sends no request, and clones are cheap. Two mutexes of the same name and store are
/// the same lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// let client = holdline::open("memory:").await?;
/// let report = holdline::Mutex::new(&client, "nightly-report");
///
/// let guard = report.lock().await?;
/// let token = guard.token();
/// let written = guard.protect(async { format!("written under token {token}") }).await?;
/// drop(guard); // or unlock(), which reports the result
/// # assert!(written.starts_with("written"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    client: Client,
    name: String,
    options: Options,
}

impl Mutex {
    /// Creates a handle of the mutex of this name. An invalid name is reported on locking.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        Mutex { client: client.clone(), name, options: Options::default() }
    }

    option_methods!();

    /// Enables local handoff: a release passes the lock, still held, to the next waiting task of
    /// this process without a request to the store. One lock serves up to `most` holders in a row
    /// (at most 65,536); none is passed the lock after `time`. Other processes wait meanwhile, and
    /// `status` shows the first of the holders. If the next task's future is not polled, the lock
    /// is released after 3 s.
    ///
    /// A quorum has no queue: there another process gets the lock only if it asks just after such a
    /// release, before the next task here does. While tasks here are always waiting, that may take
    /// very long.
    ///
    /// Each lock reserves `most` tokens. If it is held for fewer microseconds than that, again and
    /// again, tokens run ahead of the store's clock, and fall if the store loses its data.
    ///
    /// If the next task has not enabled handoff, or uses another lease, margin or renewal interval,
    /// or if the lease was [extended](crate::Guard::extend), the lock is released as usual. A fixed
    /// lease does not begin again: the next task has the rest of it.
    pub fn handoff(mut self, most: u32, time: Duration) -> Self {
        self.options.handoff = Some(Handoff { most: most.min(MOST_HOLDERS), time });
        self
    }

    /// Acquires the lock, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// Never that the lock is held, but:
    ///
    /// - [`Unavailable`](crate::ErrorKind::Unavailable) if the store has never answered, or not for
    ///   as long as the client [waits out an outage](Client::outage); of a try, if it does not
    ///   answer within the client's [time limit](Client::response_timeout); of a wait with a limit,
    ///   if it could not be asked when the limit was reached;
    /// - [`Invalid`](crate::ErrorKind::Invalid) if the name or an option is;
    /// - [`Mismatch`](crate::ErrorKind::Mismatch) if others use the name with another capacity;
    /// - [`Unsupported`](crate::ErrorKind::Unsupported) if the store lacks what an option needs;
    /// - [`Denied`](crate::ErrorKind::Denied) if the store denies access;
    /// - [`Corrupt`](crate::ErrorKind::Corrupt) if the store has unreadable data under the name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background. Until that is done,
    /// the place keeps others out, also tries of this process: [`Client::settle`] waits for it.
    pub async fn lock(&self) -> Result<Guard> {
        self.acquire(Wait::Forever).await.map(expect_acquired)
    }

    /// Acquires the lock if it is free and has no waiters. `None` otherwise, and then nothing is
    /// written.
    ///
    /// A job that several hosts start at one time runs once only if it holds the lock for longer
    /// than their clocks differ: the host that is late must not find it free again. A short job
    /// waits before it releases the lock; the example `cron_job` shows it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, if it was acquired. A try that
    /// follows may meet that place, or the one of another acquisition that was dropped or ran out
    /// of time, and return `None`: await [`Client::settle`] first.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.acquire(Wait::Not).await
    }

    /// Acquires the lock, waiting up to `time`. `None` if it was not acquired; then the place in
    /// the line is given up, in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Mutex::lock).
    pub async fn lock_within(&self, time: Duration) -> Result<Option<Guard>> {
        self.acquire(Wait::Within(time)).await
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        acquire(&self.client, &self.options, Name::new(&self.name)?, (1, 1), wait).await
    }
}
