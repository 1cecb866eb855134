//! The reentrant mutex: its owner may lock it again.

use super::{acquire, expect_acquired};
use crate::client::{Client, Reentry};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::metrics::Recipe;
use crate::names::{self, Name};
use crate::options::{Options, Wait, option_methods};
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The owner of a reentrant mutex: an explicit identity, passed along or carried by a task-local
/// [scope](Owner::scope). The id of a thread or task would not do, because async code moves between
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u128);

tokio::task_local! {
    static CURRENT: Owner;
}

impl Owner {
    /// Creates a new owner, different from all others.
    ///
    /// # Panics
    ///
    /// If the system provides no random numbers.
    #[allow(clippy::new_without_default, reason = "a default that differs each time surprises")]
    pub fn new() -> Self {
        Owner(names::random().expect("the system gives random numbers"))
    }

    /// Runs `work` as this owner: inside, [`Owner::current`] returns it. Tasks spawned inside do
    /// not inherit it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, work)
    }

    /// The owner of the current scope.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] outside of any scope.
    pub fn current() -> Result<Self> {
        CURRENT.try_with(Owner::clone).map_err(|_| {
            let message = "there is no current owner: run inside Owner::scope, or pass an Owner";
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// A reentrant mutex: its [`Owner`] may lock it again. It is released when all guards of that owner
/// are gone. To all others it is the [`Mutex`](crate::Mutex) of the same name.
///
/// Guards are counted in the client, and in its clones; the store sees one holder. A second client
/// of the same URL does not know of them, and an owner that locks through both waits for itself.
///
/// All guards of an owner have the same token, and the options (lease, label, `on_loss`) of the
/// mutex by which the first of them was acquired: those of a mutex that finds its owner's lock held
/// have no effect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// use holdline::{Owner, ReentrantMutex};
/// let client = holdline::open("memory:").await?;
/// let lock = ReentrantMutex::new(&client, "ledger");
/// let me = Owner::new();
/// let outer = lock.lock(&me).await?;
/// let inner = lock.lock(&me).await?; // does not wait for itself
/// assert_eq!(outer.token(), inner.token());
/// assert!(lock.try_lock(&Owner::new()).await?.is_none());
/// # drop((outer, inner)); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    client: Client,
    name: String,
    options: Options,
}

/// One of its owner's guards of a reentrant mutex. Clones count as guards, too.
#[derive(Clone, Debug)]
#[must_use = "dropping the guard at once releases the lock at once"]
pub struct ReentrantGuard(Arc<Guard>);

impl ReentrantMutex {
    /// Creates a handle of the mutex of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        ReentrantMutex { client: client.clone(), name, options: Options::new(Recipe::Reentrant) }
    }

    option_methods!();

    /// Acquires the lock, waiting as long as it takes; at once if `owner` holds it, and then with
    /// the options with which it was acquired.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if `owner` held it and has lost it; otherwise as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn lock(&self, owner: &Owner) -> Result<ReentrantGuard> {
        self.take(owner, Wait::Forever).await.map(expect_acquired)
    }

    /// Acquires the lock if that requires no waiting. `None` otherwise.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, if it was acquired.
    pub async fn try_lock(&self, owner: &Owner) -> Result<Option<ReentrantGuard>> {
        self.take(owner, Wait::Not).await
    }

    /// Acquires the lock, waiting up to `time`. `None` if it was not acquired.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantMutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, in the background.
    pub async fn lock_within(
        &self,
        owner: &Owner,
        time: Duration,
    ) -> Result<Option<ReentrantGuard>> {
        self.take(owner, Wait::Within(time)).await
    }

    async fn take(&self, owner: &Owner, wait: Wait) -> Result<Option<ReentrantGuard>> {
        let name = Name::new(&self.name)?;
        let entry: Reentry = self.client.reentry(&name, owner.0);
        // The slot stays locked while acquiring, so that two tasks of one owner do not wait for
        // each other's lock.
        let start = clock::now();
        let mut current = match wait {
            Wait::Forever => entry.lock().await,
            Wait::Not => match entry.try_lock() {
                Ok(current) => current,
                Err(_) => return Ok(None),
            },
            Wait::Within(time) => match clock::within(start.after(time), entry.lock()).await {
                Some(current) => current,
                None => return Ok(None),
            },
        };
        if let Some(guard) = current.upgrade() {
            guard.check().await?;
            return Ok(Some(ReentrantGuard(guard)));
        }
        let wait = wait.left_since(start);
        let guard = acquire(&self.client, &self.options, name, (1, 1), wait).await?;
        Ok(guard.map(|guard| {
            let guard = Arc::new(guard);
            *current = Arc::downgrade(&guard);
            ReentrantGuard(guard)
        }))
    }
}

impl ReentrantGuard {
    /// Drops this guard, and releases the lock if it was its owner's last, as [`Guard::unlock`]
    /// does.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    pub async fn unlock(self) -> Result<()> {
        match Arc::into_inner(self.0) {
            Some(guard) => guard.unlock().await,
            None => Ok(()),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}
