//! Change watching: when to look at a lock again.

use crate::clock;
use crate::store::{Lines, Store, Subscription};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

/// A watch on the changes of a lock, or of all locks with a prefix. Created by
/// [`Client::changes`](crate::Client::changes).
#[derive(Debug)]
pub struct Changes {
    store: Arc<dyn Store>,
    lines: Lines,
    subscription: Option<Subscription>,
    /// When `next` last returned.
    told: Option<Time>,
}

/// The longest wait if the store reports every change, as a safety net.
const RECHECK: Duration = Duration::from_secs(5);
/// The shortest time between two looks that notices can cause.
const GAP: Duration = Duration::from_millis(10);

impl Changes {
    pub(crate) fn new(store: Arc<dyn Store>, lines: Lines) -> Self {
        Changes { store, lines, subscription: None, told: None }
    }

    /// Waits until it is time to look again.
    ///
    /// If the store reports changes (etcd, ZooKeeper, a file, memory), returns soon after a change;
    /// otherwise after `poll`, which is also the longest wait. A store that reports expiries too
    /// (etcd, ZooKeeper) raises the longest wait to 5 s, if `poll` is shorter.
    ///
    /// Look first, then call this in a loop. The first call subscribes and, if the store reports
    /// changes, returns soon, to catch those that came in between. Returns are at least 10 ms apart
    /// (or `poll`, if it is shorter), however many changes there are.
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
        // A store that begins or ceases to listen reports a change, so the loop sees it here.
        let limit = if subscription.tells_all() { RECHECK.max(poll) } else { poll };
        let _ = clock::within(began.after(limit), subscription.changed()).await;
        self.told = Some(clock::now());
    }
}
