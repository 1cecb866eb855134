//! One session with ZooKeeper, and until when the servers are certain to keep it.
//!
//! # How long it lasts
//!
//! The leader ends a session that it has not heard of for its length. But an answer from a server
//! does not mean that the leader has heard of us: a follower answers reads and pings by itself,
//! even while it is cut off from the others, and tells the leader only every half tick which
//! sessions it has seen. So we count the time ourselves, from *heartbeats*: requests that are
//! answered only after a quorum has agreed on them (a transaction that checks a version, and
//! changes nothing).
//!
//! An answered heartbeat shows that the leader at that moment knew our server, and had received
//! everything that the server had sent earlier. That includes the report of an earlier heartbeat,
//! if that was answered long enough before this one was sent for the server to have passed it on
//! ([`TOUCH_INTERVAL`] is more than half a tick). So the leader has heard of us no earlier than
//! that earlier heartbeat was sent, and keeps the session for its length from then. A new leader
//! restarts the time of all sessions; a deposed one cannot get a quorum; and connecting to another
//! server informs the leader at once.

use crate::client::{Client, Past};
use crate::config::Config;
use crate::connection::State;
use crate::error::Error;
use futures_util::FutureExt;
use holdline_base::clock;
use holdline_base::liveness::{self, Liveness};
use holdline_base::sync::contained;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time after which a server has told the leader of us, if its tick is no longer than 2.5 s.
const TOUCH_INTERVAL: Duration = Duration::from_millis(1500);
/// The duration of a round trip that does not delay a renewal.
const TRIP: Duration = Duration::from_millis(400);

/// A session. A task must [`run`](Self::run) it; that keeps it open until [`end`](Self::end). The
/// session is closed when the last reference to it is dropped.
pub struct Session {
    /// The session's requests.
    pub client: Client,
    /// The session's id.
    pub id: i64,
    /// How long the servers keep the session without hearing from us.
    pub length: Duration,
    /// The node that heartbeats refer to.
    root: String,
    liveness: Liveness,
    /// Whether the servers say that there is no such session, and so no nodes of it.
    ended: AtomicBool,
}

/// The time after which a heartbeat has been passed on, in a session of this length: by default, a
/// tick is at most half of the shortest session that a server grants.
fn touch_interval(length: Duration) -> Duration {
    TOUCH_INTERVAL.min(length * 3 / 10)
}

/// The longest time that a session of this length can always guarantee at once.
pub fn longest_lease(length: Duration) -> Duration {
    let since_heard = touch_interval(length) * 2 + TRIP.min(length / 10);
    liveness::certain(length).saturating_sub(since_heard)
}

impl Session {
    /// Opens a session, on a connection whose task runs on the current Tokio runtime. `past` is the
    /// history of earlier attempts.
    ///
    /// # Errors
    ///
    /// [`Error::NoHosts`] if all addresses refused the connection, [`Error::NoAddress`] if the name
    /// of one of them is unknown; [`Error::UnexpectedServer`] if another kind of server answers;
    /// [`Error::AuthFailed`] if the user or the password is wrong, or missing;
    /// [`Error::Untrusted`] if the certificate of a server is not trusted;
    /// [`Error::ConnectionLoss`] if no server grants a session for another reason.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a session that it has opened expires.
    pub async fn open(config: &Config, past: Past) -> Result<Self, Error> {
        let silence =
            (config.session / 12).clamp(Duration::from_millis(400), Duration::from_millis(1250));
        let sent = clock::now();
        let client = Client::connect(config, silence, past).await?;
        Ok(Session {
            id: client.id,
            length: client.length,
            root: config.root.clone(),
            // The leader itself has started it, after a quorum agreed.
            liveness: Liveness::new(sent, client.length),
            client,
            ended: AtomicBool::new(false),
        })
    }

    /// Whether the session has ended for the servers, or was given up. Until then it may be over
    /// all the same, if the servers confirm nothing: [`good_for`](Self::good_for) tells.
    pub fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none()
    }

    /// Declares the session lost.
    pub fn lose(&self) {
        self.liveness.lose();
    }

    /// Handles a server's error that ends the session.
    pub fn fail(&self, why: &Error) {
        if *why == Error::SessionExpired {
            self.ended.store(true, Ordering::Release);
        }
        self.lose();
    }

    /// Whether the session has ended for the servers, too, and all of its nodes are gone.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Requests the end of the heartbeats and of [`run`](Self::run): the session is not used any
    /// more.
    pub fn end(&self) {
        self.liveness.retire();
    }

    /// Waits until the servers are certain to keep it until `until`. `false` if it is lost. That
    /// takes a while if `until` is later than [`longest_lease`] from now, and for ever unless
    /// [`run`](Self::run) runs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn good_for(&self, until: Time) -> bool {
        self.liveness.good_for(until).await
    }

    /// Records that the servers have left a request unanswered, and sends a heartbeat.
    pub fn doubt(&self) {
        self.liveness.doubt();
    }

    /// Waits until the servers answer heartbeats, or the session is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn answers(&self) {
        self.liveness.answers().await;
    }

    /// Sends heartbeats until the session is lost, and then calls `lost` with its id; or until
    /// [`end`](Self::end), which does not call it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the heartbeats end.
    pub async fn run(self: Arc<Self>, lost: impl Fn(i64)) {
        // A panic, say of a subscriber, must not leave a session that nobody can rely on in use.
        let unused = AssertUnwindSafe(self.send_heartbeats()).catch_unwind().await;
        if unused.unwrap_or(false) {
            return;
        }
        self.lose();
        lost(self.id);
    }

    /// Sends heartbeats until the session is lost, or is no longer used. Returns whether the latter
    /// is the reason.
    async fn send_heartbeats(&self) -> bool {
        let touch_interval = touch_interval(self.length);
        let limit = (self.length / 6).min(Duration::from_secs(2));
        let mut states = self.client.states();
        let mut heartbeats = Heartbeats::default();
        loop {
            tokio::select! {
                () = self.liveness.retired() => return true,
                () = clock::pause(touch_interval) => {}
                () = self.liveness.wanted.notified() => {
                    clock::pause(Duration::from_millis(20)).await;
                }
                changed = states.changed() => {
                    let state = *states.borrow();
                    if state == State::Ended {
                        self.fail(&Error::SessionExpired);
                    }
                    if changed.is_err() || matches!(state, State::Over | State::Ended) {
                        return false;
                    }
                }
            }
            if self.is_lost() {
                return false;
            }
            let sent = clock::now();
            let outcome = clock::timeout(limit, self.heartbeat()).await;
            self.liveness.note(matches!(outcome, Some(Ok(()))));
            match outcome {
                Some(Ok(())) => {
                    if let Some(heard) = heartbeats.answered(sent, clock::now(), touch_interval) {
                        self.liveness.confirm(heard);
                    }
                }
                Some(Err(error)) if error.is_over() => {
                    self.fail(&error);
                    return false;
                }
                Some(Err(error)) => {
                    contained(|| tracing::debug!(%error, "a heartbeat was not answered"));
                    clock::pause(Duration::from_millis(50)).await;
                }
                None => contained(|| tracing::debug!("a heartbeat was not answered in time")),
            }
        }
    }

    /// A transaction that changes nothing, but needs a quorum.
    async fn heartbeat(&self) -> Result<(), Error> {
        // A refusal by a quorum is as good.
        self.client.check(&self.root).await.map(drop)
    }
}

/// The answered heartbeats that a later one may confirm.
#[derive(Default)]
struct Heartbeats(VecDeque<(Time, Time)>);

impl Heartbeats {
    /// Records an answered heartbeat. Returns the latest time since which the leader has certainly
    /// heard of us, if known.
    fn answered(&mut self, sent: Time, answered: Time, touch_interval: Duration) -> Option<Time> {
        let mut heard = None;
        while let Some((first, answer)) = self.0.front()
            && answer.after(touch_interval) <= sent
        {
            heard = Some(*first);
            self.0.pop_front();
        }
        self.0.push_back((sent, answered));
        heard
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_vouches_for_less_than_its_length() {
        let table = [(15_000, 11_448), (40_000, 36_198), (4000, 1158), (2000, 578)];
        for (length, lease) in table {
            let longest = longest_lease(Duration::from_millis(length));
            assert_eq!(longest, Duration::from_millis(lease), "{length} ms");
        }
    }

    #[test]
    fn a_heartbeat_counts_when_a_later_one_shows_that_it_was_passed_on() {
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut heartbeats = Heartbeats::default();
        let mut answered =
            |sent, answer| heartbeats.answered(at(sent), at(answer), Duration::from_millis(100));
        assert_eq!(answered(0, 10), None);
        assert_eq!(answered(50, 60), None, "too soon after the first");
        assert_eq!(answered(109, 120), None, "by a hair");
        assert_eq!(answered(160, 300), Some(at(50)), "not the first only");
        assert_eq!(answered(399, 410), Some(at(109)), "what was answered late came late");
        assert_eq!(answered(400, 410), Some(at(160)));
    }
}
