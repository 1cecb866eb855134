//! The recipes: the kinds of lock. Each is one file: a weight and a capacity for the admission
//! rule.
//!
//! | recipe | capacity | weight |
//! | --- | --- | --- |
//! | [`Mutex`], [`ReentrantMutex`], [`Election`] | 1 | 1 |
//! | [`Semaphore`] of n | n | permits asked for |
//! | [`RwLock`] | 2^30 | read 1, write 2^30 |
//! | [`Multi`] | several mutexes, in name order | all or none |
//! | [`Group`] | more than its members | 1 |

mod election;
mod group;
mod multi;
mod mutex;
mod reentrant;
mod rwlock;
mod semaphore;

pub use election::{Election, Leader, Leadership, Observer};
pub use group::{Group, Member, Members, MembersObserver, Ownership, Route};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use reentrant::{Owner, ReentrantGuard, ReentrantMutex};
pub use rwlock::{RwLock, WriteGuard};
pub use semaphore::Semaphore;

use crate::client::Client;
use crate::error::Result;
use crate::guard::Guard;
use crate::names::Name;
use crate::options::{Options, Wait};

/// Acquires `weight` of `capacity`, for all recipes.
async fn acquire(
    client: &Client,
    options: &Options,
    name: Name,
    numbers: (u32, u32),
    wait: Wait,
) -> Result<Option<Guard>> {
    let metrics = client.lock_metrics(options.recipe, &name);
    let store = &**client.store();
    let request = options.request(store, client.bounds(), name, numbers, wait, metrics)?;
    let guard = client.acquire(request, options.handoff).await?;
    Ok(guard.map(|guard| guard.on_loss(options.on_loss)))
}

/// Unwraps the result of [`Wait::Forever`], which is never `None`.
fn expect_acquired<T>(found: Option<T>) -> T {
    found.expect("waiting for ever ends with the lock or an error")
}
