//! One session with ZooKeeper, which all locks of a store share.
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

use super::address::Address;
use super::client::{Client, Past};
use super::connection::State;
use super::errors::{self, ZkError};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::ephemeral::liveness::Liveness;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After this time a server has told the leader of us, if its tick is no longer than 2.5 s.
const TOUCH_INTERVAL: Duration = Duration::from_millis(1500);
/// The duration of a round trip that makes no renewal wait.
const TRIP: Duration = Duration::from_millis(400);

/// How often it is looked for nodes of which nothing is known; or more rarely, if there are so many
/// nodes that this takes longer.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_EACH: Duration = Duration::from_millis(2);

/// A session.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) id: i64,
    /// How long the servers keep it without hearing of us.
    pub(super) length: Duration,
    /// Where to give heartbeats.
    root: String,
    liveness: Liveness,
    /// The servers say that there is no such session, and so no nodes of it.
    ended: AtomicBool,
    /// When to look next whether it has nodes of which nothing is known. None while that is done.
    look: Mutex<Option<Time>>,
}

/// After what time a heartbeat has been passed on, in a session of this length: a tick is never
/// longer than half of the shortest session that a server gives, unless it is told otherwise.
fn touch_interval(length: Duration) -> Duration {
    TOUCH_INTERVAL.min(length * 3 / 10)
}

/// The longest lease that a session of this length can always vouch for.
pub(super) fn longest_lease(length: Duration) -> Duration {
    length.saturating_sub(touch_interval(length) * 2).saturating_sub(TRIP.min(length / 10))
}

impl Session {
    /// A new session. [`ZkError::NoHosts`] is that all addresses refused the connection.
    pub(super) async fn open(address: &Address, past: Past) -> Result<Self, ZkError> {
        let silence =
            (address.session / 12).clamp(Duration::from_millis(400), Duration::from_millis(1250));
        let sent = clock::now();
        let client = Client::connect(address, silence, past).await?;
        let root = if address.root.is_empty() { "/" } else { &address.root };
        Ok(Session {
            id: client.id,
            length: client.length,
            root: root.to_owned(),
            // The leader itself has begun it, after a quorum had agreed.
            liveness: Liveness::new(sent, client.length),
            client,
            ended: AtomicBool::new(false),
            look: Mutex::new(Some(sent.after(LOOK))),
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none()
    }

    /// Makes it known that it is over.
    pub(super) fn lose(&self) {
        self.liveness.lose();
    }

    /// A server has said something by which it is over.
    pub(super) fn fail(&self, why: &ZkError) {
        if *why == ZkError::SessionExpired {
            self.ended.store(true, Ordering::Release);
        }
        self.lose();
    }

    /// Whether it is over for the servers, too, and all of its nodes are gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether to look now for nodes of which nothing is known. [`looked`](Self::looked) ends that.
    pub(super) fn wants_look(&self, now: Time) -> bool {
        self.look.lock().take_if(|due| *due <= now).is_some()
    }

    /// That was done, and it has so many nodes.
    pub(super) fn looked(&self, nodes: usize) {
        let pause = LOOK.max(LOOK_EACH * u32::try_from(nodes).unwrap_or(u32::MAX));
        *self.look.lock() = Some(clock::now().after(pause));
    }

    /// Has the heartbeats end: the session is not used any more.
    pub(super) fn end(&self) {
        self.liveness.retire();
    }

    /// Waits until the servers are sure to keep it until then. `false` if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn good_for(&self, until: Time) -> bool {
        self.liveness.good_for(until).await
    }

    /// Gives heartbeats until it is lost or over.
    pub(super) async fn run(self: Arc<Self>, lost: impl Fn(i64)) {
        let touch_interval = touch_interval(self.length);
        let limit = (self.length / 6).min(Duration::from_secs(2));
        let mut states = self.client.states();
        let mut heartbeats = Heartbeats::default();
        loop {
            tokio::select! {
                () = self.liveness.retired() => return,
                () = tokio::time::sleep(touch_interval) => {}
                () = self.liveness.wanted.notified() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                changed = states.changed() => {
                    let state = *states.borrow();
                    if state == State::Ended {
                        self.fail(&ZkError::SessionExpired);
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
            let outcome = tokio::time::timeout(limit, self.heartbeat()).await;
            match outcome {
                Ok(Ok(())) => {
                    if let Some(heard) = heartbeats.answered(sent, clock::now(), touch_interval) {
                        self.liveness.confirm(heard);
                    }
                }
                Ok(Err(error)) if errors::is_over(&error) => {
                    self.fail(&error);
                    break;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a heartbeat was not answered");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(_) => tracing::debug!("a heartbeat was not answered in time"),
            }
        }
        self.lose();
        lost(self.id);
    }

    /// A transaction that changes nothing, but needs a quorum.
    async fn heartbeat(&self) -> Result<(), ZkError> {
        // Refused by a quorum is as good.
        self.client.check(&self.root).await.map(drop)
    }

    /// Refuses a lease that it cannot vouch for.
    pub(super) fn check(&self, address: &Address, lease: Duration) -> Result<()> {
        let longest = longest_lease(self.length);
        if lease <= longest {
            return Ok(());
        }
        let message = format!(
            "a lease of {lease:?} is refused: {address} gives sessions of {:?}, which keep locks \
             for {longest:?}; ask for a shorter lease, or raise maxSessionTimeout of the servers",
            self.length
        );
        Err(Error::new(ErrorKind::Invalid, message))
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
