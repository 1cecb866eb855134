//! One session with ZooKeeper, and until when the servers are sure to keep it.
//!
//! # Until when it lasts
//!
//! The leader ends a session that it has not heard of for its length. But that a server answers us
//! does not mean that the leader hears of us: a follower answers reads and pings by itself, also
//! while it is cut off from the others, and tells the leader only every half tick which sessions it
//! has seen. So we count for ourselves, from *heartbeats*: requests that are answered only after a
//! quorum has agreed on them (a transaction that checks a version, and changes nothing).
//!
//! A heartbeat that was answered shows that the leader of that moment knew our server, and had got
//! from it all that it sent earlier on. That includes the news of an earlier heartbeat, if that was
//! answered long enough before this one was sent for the server to have passed it on
//! ([`TOUCH_INTERVAL`] is more than half a tick). So the leader has heard of us no earlier than
//! that earlier heartbeat was sent, and keeps the session for its length from then. A new leader
//! begins all sessions anew; a deposed one cannot get a quorum; and a connection to another server
//! tells the leader at once.

use crate::client::{Client, Past};
use crate::config::Config;
use crate::connection::State;
use crate::error::Error;
use holdline_base::clock;
use holdline_base::liveness::Liveness;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After this time a server has told the leader of us, if its tick is no longer than 2.5 s.
const TOUCH_INTERVAL: Duration = Duration::from_millis(1500);
/// The duration of a round trip that makes no renewal wait.
const TRIP: Duration = Duration::from_millis(400);

/// A session. Somebody must [`run`](Self::run) it. It is closed when it is dropped.
pub struct Session {
    /// What can be asked on it.
    pub client: Client,
    /// Its number.
    pub id: i64,
    /// How long the servers keep it without hearing of us.
    pub length: Duration,
    /// Where to give heartbeats.
    root: String,
    liveness: Liveness,
    /// The servers say that there is no such session, and so no nodes of it.
    ended: AtomicBool,
}

/// After what time a heartbeat has been passed on, in a session of this length: a tick is never
/// longer than half of the shortest session that a server gives, unless it is told otherwise.
fn touch_interval(length: Duration) -> Duration {
    TOUCH_INTERVAL.min(length * 3 / 10)
}

/// The longest time for which a session of this length can always vouch at once.
pub fn longest_lease(length: Duration) -> Duration {
    length.saturating_sub(touch_interval(length) * 2).saturating_sub(TRIP.min(length / 10))
}

impl Session {
    /// A new session, on a connection that a task of this runtime of Tokio looks after. `past` says
    /// what is known from earlier tries.
    ///
    /// # Errors
    ///
    /// [`Error::NoHosts`] if all addresses refused the connection, [`Error::NoAddress`] if the name
    /// of one of them is not known; [`Error::Stranger`] if something
    /// else answers there; [`Error::AuthFailed`] if the user or the password is wrong.
    ///
    /// # Cancel safety
    ///
    /// A session that was made and that nobody knows of ends by itself.
    pub async fn open(config: &Config, past: Past) -> Result<Self, Error> {
        let silence =
            (config.session / 12).clamp(Duration::from_millis(400), Duration::from_millis(1250));
        let sent = clock::now();
        let client = Client::connect(config, silence, past).await?;
        Ok(Session {
            id: client.id,
            length: client.length,
            root: config.root.clone(),
            // The leader itself has begun it, after a quorum had agreed.
            liveness: Liveness::new(sent, client.length),
            client,
            ended: AtomicBool::new(false),
        })
    }

    /// Whether it is over, or must be taken for that.
    pub fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none()
    }

    /// Makes it known that it is over.
    pub fn lose(&self) {
        self.liveness.lose();
    }

    /// A server has said something by which it is over.
    pub fn fail(&self, why: &Error) {
        if *why == Error::SessionExpired {
            self.ended.store(true, Ordering::Release);
        }
        self.lose();
    }

    /// Whether it is over for the servers, too, and all of its nodes are gone.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Has the heartbeats end: the session is not used any more.
    pub fn end(&self) {
        self.liveness.retire();
    }

    /// Waits until the servers are sure to keep it until then. `false` if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn good_for(&self, until: Time) -> bool {
        self.liveness.good_for(until).await
    }

    /// Gives heartbeats until it is lost or over, and then tells `lost` its number.
    ///
    /// # Cancel safety
    ///
    /// The session ends by itself if the future is dropped.
    pub async fn run(self: Arc<Self>, lost: impl Fn(i64)) {
        let touch_interval = touch_interval(self.length);
        let limit = (self.length / 6).min(Duration::from_secs(2));
        let mut states = self.client.states();
        let mut heartbeats = Heartbeats::default();
        loop {
            tokio::select! {
                () = self.liveness.retired() => return,
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
                        break;
                    }
                }
            }
            if self.is_lost() {
                break;
            }
            let sent = clock::now();
            let outcome = clock::timeout(limit, self.heartbeat()).await;
            match outcome {
                Some(Ok(())) => {
                    if let Some(heard) = heartbeats.answered(sent, clock::now(), touch_interval) {
                        self.liveness.confirm(heard);
                    }
                }
                Some(Err(error)) if error.is_over() => {
                    self.fail(&error);
                    break;
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "a heartbeat was not answered");
                    clock::pause(Duration::from_millis(50)).await;
                }
                None => tracing::debug!("a heartbeat was not answered in time"),
            }
        }
        self.lose();
        lost(self.id);
    }

    /// A transaction that changes nothing, but needs a quorum.
    async fn heartbeat(&self) -> Result<(), Error> {
        // Refused by a quorum is as good.
        self.client.check(&self.root).await.map(drop)
    }
}

/// Heartbeats that were answered, and may show more when a later one is.
#[derive(Default)]
struct Heartbeats(VecDeque<(Time, Time)>);

impl Heartbeats {
    /// Takes in an answered heartbeat. Returns the latest time since which the leader has surely
    /// heard of us, if that is known.
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
        let table = [(15_000, 11_600), (40_000, 36_600), (4000, 1200), (2000, 600)];
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
