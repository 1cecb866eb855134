//! The liveness of a session: until when the store keeps its entries, by what it has confirmed.

use holdline_kernel::Time;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The last news of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// The store counts the session's time from then on, or from later.
    Alive(Time),
    Lost,
}

/// The liveness of a session. The task that gives the heartbeats confirms it, and others wait for
/// that.
#[derive(Debug)]
pub(super) struct Liveness {
    life: watch::Sender<Life>,
    /// The time for which the store keeps the session without a heartbeat.
    length: Duration,
    /// Notified when a heartbeat is wanted before it is due.
    pub(super) wanted: Notify,
    retired: watch::Sender<bool>,
}

impl Liveness {
    pub(super) fn new(begun: Time, length: Duration) -> Self {
        Liveness {
            life: watch::Sender::new(Life::Alive(begun)),
            length,
            wanted: Notify::new(),
            retired: watch::Sender::new(false),
        }
    }

    /// The time until which the store keeps the session. `None` if it is lost.
    pub(super) fn good_until(&self) -> Option<Time> {
        match *self.life.borrow() {
            Life::Alive(since) => Some(since.after(self.length)),
            Life::Lost => None,
        }
    }

    /// Waits until the store is sure to keep the session until then. `false` if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn good_for(&self, until: Time) -> bool {
        let mut life = self.life.subscribe();
        loop {
            match self.good_until() {
                None => return false,
                Some(good) if good >= until => return true,
                Some(_) => self.wanted.notify_one(),
            }
            if life.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Notes that the store counts the session's time from then on. A lost session stays lost.
    pub(super) fn confirm(&self, at: Time) {
        self.life.send_if_modified(|life| match life {
            Life::Alive(since) if *since < at => {
                *since = at;
                true
            }
            _ => false,
        });
    }

    /// Notes that the session is lost.
    pub(super) fn lose(&self) {
        self.life.send_replace(Life::Lost);
    }

    /// Has the heartbeats end, when the session is not used any more.
    pub(super) fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Waits for [`retire`](Self::retire).
    pub(super) async fn retired(&self) {
        let _ = self.retired.subscribe().wait_for(|retired| *retired).await;
    }
}
