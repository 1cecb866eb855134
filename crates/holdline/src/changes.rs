//! Waiting for the next look at a lock.

use crate::clock;
use crate::store::{Lines, Store, Subscription};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

/// The changes of a lock, or of all locks with a prefix: when to look again. Made by
/// [`Client::changes`](crate::Client::changes).
#[derive(Debug)]
pub struct Changes {
    store: Arc<dyn Store>,
    lines: Lines,
    subscription: Option<Subscription>,
    /// When the caller was last told to look.
    told: Option<Time>,
}

/// The time after which a look is due although nothing was told, by a store that tells all.
const RECHECK: Duration = Duration::from_secs(5);
/// The shortest time between two looks that notices ask for.
const GAP: Duration = Duration::from_millis(10);

impl Changes {
    pub(crate) fn new(store: Arc<dyn Store>, lines: Lines) -> Self {
        Changes { store, lines, subscription: None, told: None }
    }

    /// Waits until it is time to look again: soon after a change where the store tells of changes
    /// (etcd, ZooKeeper, a file, memory), and after `poll` at the latest; or after 5 s if that is
    /// longer, where the store also tells of what ends by time (etcd, ZooKeeper).
    ///
    /// Look first, and then call this, again and again. The first call subscribes, and asks for one
    /// more look soon, for what came in between. However many changes there are, looks are due
    /// 10 ms apart at least.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self, poll: Duration) {
        let began = clock::now();
        let subscription =
            self.subscription.get_or_insert_with(|| self.store.subscribe(&self.lines));
        if let Some(told) = self.told {
            clock::sleep_until(told.after(GAP.min(poll))).await;
        }
        // One that begins to listen, or ceases to, is noticed here by what it tells.
        let limit = if subscription.tells_all() { RECHECK.max(poll) } else { poll };
        let _ = clock::within(began.after(limit), subscription.changed()).await;
        self.told = Some(clock::now());
    }
}
