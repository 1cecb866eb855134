//! Several locks as one: all or none.

use super::{acquire, expect_acquired};
use crate::client::Client;
use crate::clock;
use crate::driver::SHORTEST_ANSWER;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, protect};
use crate::loss::Loss;
use crate::metrics::Recipe;
use crate::names::Name;
use crate::options::{OnLoss, Options, Wait, option_methods};
use futures_util::future::select_all;
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

/// Several mutexes that are locked together: all or none.
///
/// The mutexes are always locked in the order of their names, so two that share names never
/// deadlock. Each is the same lock as the [`Mutex`](crate::Mutex) of its name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// let client = holdline::open("memory:").await?;
/// let accounts = holdline::Multi::new(&client, ["alice", "bob"]);
/// let both = accounts.lock().await?;
/// assert!(holdline::Mutex::new(&client, "bob").try_lock().await?.is_none());
/// both.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    client: Client,
    names: BTreeSet<String>,
    options: Options,
}

/// The guard of several held locks. Dropping it releases them all in the background.
#[derive(Debug)]
#[must_use = "dropping the guard at once releases the locks at once"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    on_loss: OnLoss,
}

impl Multi {
    /// Creates a handle of the mutexes of these names; duplicates count once.
    pub fn new<N: AsRef<str>>(client: &Client, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Multi { client: client.clone(), names, options: Options::new(Recipe::Multi) }
    }

    option_methods!();

    /// Acquires all locks, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Lost`](ErrorKind::Lost) if one was lost during
    /// the wait for another. After an error those acquired so far are released in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the locks acquired so far, in the background.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.take(Wait::Forever).await.map(expect_acquired)
    }

    /// Acquires all locks if none requires waiting. `None` otherwise; then those acquired so far
    /// are released in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Multi::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the locks acquired so far, in the background.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.take(Wait::Not).await
    }

    /// Acquires all locks, waiting up to `time` in total. `None` if that was too short; then those
    /// acquired so far are released in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Multi::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the locks acquired so far, in the background.
    pub async fn lock_within(&self, time: Duration) -> Result<Option<MultiGuard>> {
        self.take(Wait::Within(time)).await
    }

    async fn take(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        // All names are checked before the first lock is taken.
        let names = self.names.iter().map(Name::new).collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a lock of several names needs at least one name",
            ));
        }
        let (start, mut client) = (clock::now(), self.client.clone());
        let end = start.after(client.bounds().response_timeout);
        let at_least = start.after(SHORTEST_ANSWER); // as for one name, whatever its limit
        let mut guards = Vec::with_capacity(names.len());
        for name in names {
            // All names together have the time limit of one.
            let wait = wait.left_since(start);
            match wait {
                Wait::Within(time)
                    if time.is_zero() && !guards.is_empty() && clock::now() >= at_least =>
                {
                    return Ok(None);
                }
                Wait::Not if clock::now() >= end && !guards.is_empty() => {
                    return Err(client.silence(&name));
                }
                _ => {}
            }
            client = client.response_timeout(clock::now().until(end));
            match acquire(&client, &self.options, name, (1, 1), wait).await? {
                Some(guard) => guards.push(guard),
                None => return Ok(None), // dropping the guards releases them
            }
        }
        let guard = MultiGuard { guards, on_loss: self.options.on_loss };
        // The first may have been lost during the wait for the last.
        if let Some(lost) = guard.guards.iter().find(|guard| !guard.is_valid()) {
            return Err(lost.lost_error().await);
        }
        Ok(Some(guard))
    }
}

impl MultiGuard {
    /// The held locks, in the order of their names, each with its own token.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all locks are certainly still held.
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// Resolves when any of the locks is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await;
    }

    /// The cause of the first loss, as [`Guard::loss`] returns it; `None` while all locks are held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn loss(&self) -> Option<Loss> {
        self.first_lost().loss().await
    }

    /// Runs `work` under all the locks, as [`Guard::protect`] does under one.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the locks stay held.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        match self.protected(work).await {
            Some(output) => Ok(output),
            None => Err(self.first_lost().lost_error().await),
        }
    }

    /// Runs fallible `work` under all the locks, as [`Guard::try_protect`] does under one.
    ///
    /// # Errors
    ///
    /// As [`Guard::try_protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the locks stay held.
    pub async fn try_protect<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.protected(work).await {
            Some(output) => output,
            None => Err(self.first_lost().lost_error().await.into()),
        }
    }

    fn protected<F: Future>(&self, work: F) -> impl Future<Output = Option<F::Output>> {
        protect(self.on_loss, || self.is_valid(), self.lost(), work)
    }

    /// Releases all locks, last first. Tries all of them.
    ///
    /// # Errors
    ///
    /// The first one, as [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the rest in the background.
    pub async fn unlock(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(guard) = self.guards.pop() {
            outcome = outcome.and(guard.unlock().await);
        }
        outcome
    }

    fn first_lost(&self) -> &Guard {
        self.guards.iter().find(|guard| !guard.is_valid()).unwrap_or(&self.guards[0])
    }
}
