//! The pending releases of one client: how many places are still to be released in the background,
//! and how many release requests are sent at once.

use crate::clock;
use holdline_kernel::Time;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// At this many pending releases a client takes no new places.
pub(crate) const MOST: usize = 512;
/// At this many it takes new ones again.
const FEW: usize = 256;
/// The most concurrent release requests from one client to a store.
pub(crate) const UNDER_WAY: usize = 64;

/// The pending releases of one client.
#[derive(Debug)]
pub(crate) struct Undone {
    count: watch::Sender<Count>,
    turns: Semaphore,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    places: usize,
    /// Whether there are too many, so that acquisitions wait.
    crowded: bool,
}

impl Default for Undone {
    fn default() -> Self {
        Undone { count: watch::Sender::default(), turns: Semaphore::new(UNDER_WAY) }
    }
}

impl Undone {
    pub(crate) fn add(&self) {
        self.count.send_if_modified(|count| {
            count.places += 1;
            count.crowded |= count.places >= MOST;
            false
        });
    }

    pub(crate) fn remove(&self) {
        self.count.send_if_modified(|count| {
            count.places -= 1;
            let opens = count.crowded && count.places <= FEW;
            count.crowded &= !opens;
            opens || count.places == 0
        });
    }

    /// The number of places that are still to be released.
    #[cfg(feature = "testing")]
    pub(crate) fn places(&self) -> usize {
        self.count.borrow().places
    }

    /// Waits until there is room for one more place that may need a release. Returns whether there
    /// was room in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn room(&self, limit: Time) -> bool {
        if !self.count.borrow().crowded {
            return true;
        }
        let mut changes = self.count.subscribe();
        clock::within(limit, changes.wait_for(|count| !count.crowded)).await.is_some()
    }

    /// Waits until no release is pending.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn none_left(&self) {
        // The sender lives as long as this value, so this cannot fail.
        let _ = self.count.subscribe().wait_for(|count| count.places == 0).await;
    }

    /// Waits for the turn to send a release request.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn acquisitions_wait_while_too_much_is_left_behind() {
        let undone = Undone::default();
        let open = || undone.room(Time::NEVER).now_or_never();
        for _ in 0..MOST {
            assert_eq!(open(), Some(true));
            undone.add();
        }
        let mut waits = Box::pin(undone.room(Time::NEVER));
        let mut settles = Box::pin(undone.none_left());
        assert_eq!(undone.room(Time(0)).now_or_never(), Some(false), "its limit is over");
        for _ in FEW..MOST {
            assert_eq!((&mut waits).now_or_never(), None);
            undone.remove();
        }
        assert_eq!((&mut waits).now_or_never(), Some(true));
        for _ in 0..FEW {
            assert_eq!((&mut settles).now_or_never(), None);
            undone.remove();
        }
        assert_eq!((&mut settles).now_or_never(), Some(()));
    }
}
