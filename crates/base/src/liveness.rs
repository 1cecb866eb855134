//! The liveness of a session: how long its servers keep it, according to their confirmations.

use holdline_kernel::{Lease, Time};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The latest state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Alive {
        /// The servers count the session's time from this instant, or a later one.
        since: Time,
        /// Whether the last heartbeat, or a request after it, was not answered in time.
        silent: bool,
    },
    Lost,
}

/// The liveness of a session. The task that sends the heartbeats confirms it, and others wait for
/// that.
///
/// The servers measure the session's length by their own clock, which may be faster than ours. So
/// the session is relied on for less than that, by the drift allowance of a lease of this length.
#[derive(Debug)]
pub struct Liveness {
    state: watch::Sender<State>,
    /// How long the servers keep the session without a heartbeat, by any clock.
    certain: Duration,
    /// Notified when a heartbeat is requested before it is due.
    pub wanted: Notify,
    retired: watch::Sender<bool>,
}

/// The time for which servers that keep a session for `length` are certain to keep it, by our
/// clock.
pub fn certain(length: Duration) -> Duration {
    length.saturating_sub(Lease::drift_of(length))
}

impl Liveness {
    /// The liveness of a session that the servers keep for `length`, counted from `begun` or later.
    pub fn new(begun: Time, length: Duration) -> Self {
        Liveness {
            state: watch::Sender::new(State::Alive { since: begun, silent: false }),
            certain: certain(length),
            wanted: Notify::new(),
            retired: watch::Sender::new(false),
        }
    }

    /// How long the servers are certain to keep the session after a heartbeat.
    pub fn certain(&self) -> Duration {
        self.certain
    }

    /// Until when the servers are certain to keep the session. `None` if it is lost.
    pub fn good_until(&self) -> Option<Time> {
        match *self.state.borrow() {
            State::Alive { since, .. } => Some(since.after(self.certain)),
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

    /// Waits until the servers answer heartbeats, or the session is lost. Does not wait while the
    /// last one was answered.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn answers(&self) {
        let answers = |state: &State| !matches!(state, State::Alive { silent: true, .. });
        let _ = self.state.subscribe().wait_for(answers).await;
    }

    /// Records that the servers count the session's time from `at` on. A lost session stays lost.
    pub fn confirm(&self, at: Time) {
        self.state.send_if_modified(|state| match state {
            State::Alive { since, .. } if *since < at => {
                *since = at;
                true
            }
            _ => false,
        });
    }

    /// Records that the servers have left a request unanswered, and asks for a heartbeat.
    pub fn doubt(&self) {
        self.note(false);
        self.wanted.notify_one();
    }

    /// Records whether a heartbeat was answered in time.
    pub fn note(&self, answered: bool) {
        self.state.send_if_modified(|state| match state {
            State::Alive { silent, .. } if *silent == answered => {
                *silent = !answered;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// The servers' clock may be 1% faster than ours: ten minutes of theirs are 6 s less of ours.
    #[test]
    fn a_session_is_relied_on_for_less_than_its_length() {
        let (heard, second) = (Time(7), Duration::from_secs(1));
        let liveness = Liveness::new(heard, second * 600);
        let is_good_for = |time: Duration| {
            let good = pin!(liveness.good_for(heard.after(time)));
            good.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!is_good_for(second * 599) && !is_good_for(second * 594));
        assert!(is_good_for(liveness.certain()) && is_good_for(second * 593));
        liveness.confirm(heard.after(second * 6));
        assert!(is_good_for(second * 599));
    }

    #[test]
    fn a_session_answers_until_a_heartbeat_is_missed_and_after_one_is_answered() {
        let liveness = Liveness::new(Time(7), Duration::from_secs(1));
        let answers = || {
            let answers = pin!(liveness.answers());
            answers.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(answers());
        liveness.note(false);
        liveness.confirm(Time(8)); // by an earlier heartbeat
        assert!(!answers());
        liveness.note(true);
        assert!(answers());
        liveness.doubt();
        assert!(!answers());
        liveness.lose();
        assert!(answers(), "nothing more will come");
    }
}
