//! The loss notice: how a task without the guard learns that the lock has ended.

use crate::held_lock::HeldLock;
use crate::loss::Loss;
use crate::sync::contained;
use futures_util::future::select;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

const GUARDED: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2;

/// How one guard ended, kept only if a notice was requested.
#[derive(Debug, Default)]
pub(crate) struct GuardEnd(OnceLock<Arc<End>>);

#[derive(Debug, Default)]
struct End {
    state: AtomicU8,
    notify: Notify,
}

impl GuardEnd {
    pub(crate) fn notice(&self, held: &Arc<HeldLock>) -> LossNotice {
        LossNotice { held: Arc::clone(held), end: Arc::clone(self.0.get_or_init(Arc::default)) }
    }

    /// Tells the notices that the guard is gone.
    pub(crate) fn end(&self, lost: bool) {
        if let Some(end) = self.0.get() {
            end.state.store(if lost { LOST } else { RELEASED }, Ordering::Release);
            contained(|| end.notify.notify_waiters()); // the drop of a guard goes on
        }
    }
}

/// A notice of the loss of one lock, for a task, thread or handler that does not own the guard.
/// Created by [`Guard::loss_notice`](crate::Guard::loss_notice). It does not keep the lock; clones
/// are cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// # let client = holdline::open("memory:").await?;
/// let guard = holdline::Mutex::new(&client, "nightly-report").lock().await?;
/// let notice = guard.loss_notice();
/// let watcher = tokio::spawn(async move {
///     match notice.ended().await {
///         Some(loss) => eprintln!("lost: {loss}"),
///         None => eprintln!("released"),
///     }
/// });
/// guard.unlock().await?;
/// # watcher.await.unwrap(); Ok(()) }
/// ```
#[derive(Clone)]
pub struct LossNotice {
    held: Arc<HeldLock>,
    end: Arc<End>,
}

impl LossNotice {
    /// Whether the guard still exists and its lock is certainly still held. Once false, it stays
    /// false.
    pub fn is_valid(&self) -> bool {
        self.end.state.load(Ordering::Acquire) == GUARDED && self.held.is_valid()
    }

    /// Resolves when the lock ends: with the cause (as [`Guard::loss`](crate::Guard::loss)) if it
    /// was lost, or with `None` if the guard released it before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn ended(&self) -> Option<Loss> {
        loop {
            let mut over = pin!(self.end.notify.notified());
            over.as_mut().enable();
            match self.end.state.load(Ordering::Acquire) {
                RELEASED => return None,
                LOST => return Some(self.held.cause().await),
                _ if self.held.is_valid() => _ = select(over, pin!(self.held.gone())).await,
                _ if self.held.is_lost() => return Some(self.held.cause().await),
                // It is being released, and how that ends is not known yet.
                _ => over.await,
            }
        }
    }
}

impl fmt::Debug for LossNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossNotice")
            .field("name", &self.held.line)
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}
