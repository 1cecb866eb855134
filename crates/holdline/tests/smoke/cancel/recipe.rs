//! All that can be acquired, as one thing.

use super::setup::PATIENT;
use holdline::{
    Backoff, Client, Election, Guard, Leader, Multi, MultiGuard, Mutex, Owner, ReentrantGuard,
    ReentrantMutex, Result, RwLock, Semaphore, WriteGuard,
};
use std::time::Duration;

/// All that can be acquired.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipe {
    Try,
    Lock,
    Within,
    Unfair,
    Poll,
    Handoff,
    Read,
    Write,
    Semaphore,
    Multi,
    Election,
    Reentrant,
}

pub(crate) const RECIPES: [Recipe; 12] = [
    Recipe::Try,
    Recipe::Lock,
    Recipe::Within,
    Recipe::Unfair,
    Recipe::Poll,
    Recipe::Handoff,
    Recipe::Read,
    Recipe::Write,
    Recipe::Semaphore,
    Recipe::Multi,
    Recipe::Election,
    Recipe::Reentrant,
];

pub(crate) enum AnyGuard {
    Plain(Guard),
    Write(WriteGuard),
    Multi(MultiGuard),
    Leader(Leader),
    Reentrant(ReentrantGuard),
}

impl Recipe {
    /// Acquires; nothing if it is only a try.
    pub(crate) async fn take(self, client: &Client, name: &str) -> Result<Option<AnyGuard>> {
        let mutex = Mutex::new(client, name);
        let often = Backoff::fixed(Duration::from_millis(1));
        Ok(Some(match self {
            Recipe::Try => return Ok(mutex.try_lock().await?.map(AnyGuard::Plain)),
            Recipe::Lock => AnyGuard::Plain(mutex.lock().await?),
            Recipe::Within => return Ok(mutex.lock_within(PATIENT).await?.map(AnyGuard::Plain)),
            Recipe::Unfair => AnyGuard::Plain(mutex.unfair().poll(often).lock().await?),
            Recipe::Poll => AnyGuard::Plain(mutex.poll(often).lock().await?),
            Recipe::Handoff => AnyGuard::Plain(mutex.handoff(3, PATIENT).lock().await?),
            Recipe::Read => AnyGuard::Plain(RwLock::new(client, name).read().await?),
            Recipe::Write => AnyGuard::Write(RwLock::new(client, name).write().await?),
            Recipe::Semaphore => AnyGuard::Plain(Semaphore::new(client, name, 3).acquire(2).await?),
            Recipe::Multi => {
                let names = [name.to_owned(), format!("{name} 2"), format!("{name} 3")];
                AnyGuard::Multi(Multi::new(client, names).lock().await?)
            }
            Recipe::Election => AnyGuard::Leader(Election::new(client, name).campaign("me").await?),
            Recipe::Reentrant => {
                AnyGuard::Reentrant(ReentrantMutex::new(client, name).lock(&Owner::new()).await?)
            }
        }))
    }

    /// What keeps this recipe out.
    pub(crate) async fn rival(self, client: &Client, name: &str) -> Result<AnyGuard> {
        let whole = match self {
            Recipe::Read => Recipe::Write,
            other => other,
        };
        let taken = match whole {
            Recipe::Try | Recipe::Unfair | Recipe::Poll => Recipe::Lock.take(client, name).await?,
            other => other.take(client, name).await?,
        };
        Ok(taken.expect("it is free"))
    }

    /// Whether a store can have it that keeps mutexes only, one at a time and without a queue.
    pub(crate) fn is_plain(self) -> bool {
        !matches!(self, Recipe::Read | Recipe::Write | Recipe::Semaphore)
    }

    /// Whether it keeps a place while it waits for a rival.
    pub(crate) fn queues(self) -> bool {
        !matches!(self, Recipe::Try | Recipe::Unfair)
    }
}

impl AnyGuard {
    pub(crate) async fn unlock(self) -> Result<()> {
        match self {
            AnyGuard::Plain(guard) => guard.unlock().await,
            AnyGuard::Write(guard) => guard.unlock().await,
            AnyGuard::Multi(guard) => guard.unlock().await,
            AnyGuard::Leader(guard) => guard.resign().await,
            AnyGuard::Reentrant(guard) => guard.unlock().await,
        }
    }
}
