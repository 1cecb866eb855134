//! The liveness of a session: how long its servers keep it, according to their confirmations.

use holdline_kernel::Time;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The latest state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The servers count the session's time from this instant, or a later one.
    Alive(Time),
    Lost,
}

/// The liveness of a session. The task that sends the heartbeats confirms it, and others wait for
/// that.
#[derive(Debug)]
pub struct Liveness {
    state: watch::Sender<State>,
    /// How long the servers keep the session without a heartbeat.
    length: Duration,
    /// Notified when a heartbeat is requested before it is due.
    pub wanted: Notify,
    retired: watch::Sender<bool>,
}

impl Liveness {
    /// The liveness of a session that the servers keep for `length`, counted from `begun` or later.
    pub fn new(begun: Time, length: Duration) -> Self {
        Liveness {
            state: watch::Sender::new(State::Alive(begun)),
            length,
            wanted: Notify::new(),
            retired: watch::Sender::new(false),
        }
    }

    /// Until when the servers keep the session. `None` if it is lost.
    pub fn good_until(&self) -> Option<Time> {
        match *self.state.borrow() {
            State::Alive(since) => Some(since.after(self.length)),
            State::Lost => None,
        }
    }

    /// Waits until the servers are certain to keep the session until `until`. `false` if it is
    /// lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn good_for(&self, until: Time) -> bool {
        let mut state = self.state.subscribe();
        loop {
            match self.good_until() {
                None => return false,
                Some(good) if good >= until => return true,
                Some(_) => self.wanted.notify_one(),
            }
            if state.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Records that the servers count the session's time from `at` on. A lost session stays lost.
    pub fn confirm(&self, at: Time) {
        self.state.send_if_modified(|state| match state {
            State::Alive(since) if *since < at => {
                *since = at;
                true
            }
            _ => false,
        });
    }

    /// Records that the session is lost.
    pub fn lose(&self) {
        self.state.send_replace(State::Lost);
    }

    /// Requests the end of the heartbeats, once the session is unused.
    pub fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Waits for [`retire`](Self::retire).
    pub async fn retired(&self) {
        let _ = self.retired.subscribe().wait_for(|retired| *retired).await;
    }
}
