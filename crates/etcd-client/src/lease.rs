//! One lease in etcd, which all locks of the process with the same length of lease share.
//!
//! The server is asked for a little more than the lease, and is told often enough that we live
//! that, at any moment, what is left is no less than the lease. So entering and keeping a lock say
//! nothing about time to the server: both are answered from the last heartbeat that it confirmed,
//! and if that is too old, await the next, which all callers share.
//!
//! A leader answers a heartbeat by itself, without asking the other members whether it still
//! leads (before etcd 3.4.30 and 3.5.13). One that was frozen, cut off or stuck at its disk while
//! another was elected goes on saying yes, and the other lets the lease run out. So with each
//! heartbeat goes a read that a majority must answer: the heartbeat counts only if no newer
//! leadership than that of its answer had begun when it was sent.
//!
//! Such a leader may also have a lease revoked that has run out by its own clock, seconds after it
//! goes on, although the one that leads now has prolonged it (before the same versions). So a lease
//! is trusted with new places only under the leadership that granted it, which alone has counted
//! its time; under a later one, places are moved to a new lease. And one of which nothing was heard
//! for as long as it lasts is given up, whatever is said of it afterwards.

use super::cluster::{Answer, Cluster};
use super::errors;
use super::grpc::Status;
use super::layout;
use super::proto::{self, AliveAnswer, Grant, GrantAnswer, LeaseId, RangeAnswer, RevokeAnswer};
use super::slot::Slots;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::ephemeral::liveness::Liveness;
use crate::sync::Mutex;
use futures_util::FutureExt;
use holdline_kernel::{Backoff, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lease.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: i64,
    /// The seconds that the server was asked for.
    pub(super) seconds: u64,
    /// How long the server keeps it after a heartbeat.
    ttl: Duration,
    /// The term of the leadership that granted it.
    term: u64,
    /// A key that we may read.
    key: Vec<u8>,
    liveness: Liveness,
    /// A write that named it was never answered, so it is not for new places any more.
    tainted: AtomicBool,
    /// By what begins the keys of a line.
    pub(super) slots: Mutex<HashMap<Vec<u8>, Slots>>,
}

/// How a stream of heartbeats ended.
enum End {
    Lost,
    Over,
    Broken(String),
}

/// How long it is tried to give a lease back. After that it runs out.
const GIVE_BACK: Duration = Duration::from_secs(120);

/// How long to wait after so many failures in a row.
fn pause(failures: u32) -> Duration {
    let most = Duration::from_millis(500);
    Backoff::exponential(Duration::from_millis(10), most)
        .jitter(50)
        .pause(failures, fastrand::u64(..))
}

/// How many whole seconds to ask of the server for a lease.
pub(super) fn seconds_for(lease: Duration) -> u64 {
    let slack = (lease / 10).max(Duration::from_millis(500));
    let length = lease + slack;
    (length.as_secs() + u64::from(length.subsec_nanos() > 0)).max(2)
}

/// A lease that was granted.
pub(super) struct Granted {
    pub(super) id: i64,
    /// The seconds that the server gave it.
    seconds: u64,
    /// The term of the leadership under which it was asked for.
    term: u64,
}

/// A new lease of so many seconds.
pub(super) async fn lease(cluster: &Cluster, seconds: u64, limit: Duration) -> Result<Granted> {
    // Our own number, so that asking again after a lost answer makes no second lease.
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system gave no random numbers, without which no lock is safe";
        Error::because(ErrorKind::Denied, message, error)
    })?;
    let id = (i64::from_be_bytes(bytes) & i64::MAX).max(1);
    // An election may come before the answer: the term of before is the one to be sure of.
    let term = cluster.term();
    let grant = Grant { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id };
    match cluster.call::<_, GrantAnswer>(proto::GRANT, &grant, limit).await {
        Ok(Answer { body: GrantAnswer { header, ttl }, .. }) => {
            let term = if term == 0 { header.unwrap_or_default().raft_term } else { term };
            Ok(Granted { id, seconds: u64::try_from(ttl).unwrap_or(0), term })
        }
        Err(error) if errors::is_lease_there(&error) => Ok(Granted { id, seconds, term }),
        Err(error) => Err(error),
    }
}

impl Session {
    /// A new session. `key` is one that the user may read.
    pub(super) async fn grant(
        cluster: &Cluster,
        seconds: u64,
        key: &[u8],
        limit: Duration,
    ) -> Result<Self> {
        let sent = clock::now();
        let granted = lease(cluster, seconds, limit).await?;
        Ok(Session {
            lease: granted.id,
            seconds,
            ttl: Duration::from_secs(granted.seconds),
            term: granted.term,
            key: key.to_vec(),
            liveness: Liveness::new(sent, Duration::from_secs(granted.seconds)),
            tainted: AtomicBool::new(false),
            slots: Mutex::default(),
        })
    }

    /// One that no server knows.
    #[cfg(test)]
    pub(super) fn for_test() -> Self {
        Session {
            lease: 1,
            seconds: 11,
            ttl: Duration::from_secs(11),
            term: 0,
            key: Vec::new(),
            liveness: Liveness::new(clock::now(), Duration::from_secs(11)),
            tainted: AtomicBool::new(false),
            slots: Mutex::default(),
        }
    }

    /// Whether the server has said that it is gone, or nothing for as long as it lasts.
    pub(super) fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none_or(|good| good <= clock::now())
    }

    /// Whether a later leadership has begun than the one that granted it.
    pub(super) fn is_outdated(&self, cluster: &Cluster) -> bool {
        self.term < cluster.term()
    }

    /// Keeps new places from it: it is given back when the last of the old ones is gone, which
    /// voids all writes with it that are still on their way.
    pub(super) fn taint(&self) {
        self.tainted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Relaxed)
    }

    /// Has the lease given back: it is not used any more.
    pub(super) fn end(&self) {
        self.liveness.retire();
    }

    /// Whether the server keeps it for as long as a lock of this lease needs, at its best.
    pub(super) fn suits(&self, lease: Duration) -> bool {
        lease <= self.ttl
    }

    /// Asks for a heartbeat if the next lock would have to wait for one.
    pub(super) fn refresh(&self, until: Time) {
        if self.liveness.good_until().is_some_and(|good| good < until) {
            self.liveness.wanted.notify_one();
        }
    }

    /// Waits until the server is sure to keep it until then. False if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn good_for(&self, until: Time) -> bool {
        !self.is_lost() && self.liveness.good_for(until).await
    }

    /// Asks the server whether it is there.
    pub(super) async fn is_alive(&self) -> bool {
        // Only a heartbeat sent from now on is good for that long.
        self.good_for(clock::now().after(self.ttl)).await
    }

    /// How long after a heartbeat the next one is due.
    fn pause(&self, busy: bool) -> Duration {
        if busy { self.ttl / 22 } else { self.ttl / 5 }
            .clamp(Duration::from_millis(200), Duration::from_secs(30))
    }

    /// How long to wait for the confirmation of a heartbeat before asking another member.
    fn limit(&self) -> Duration {
        (self.ttl / 8).clamp(Duration::from_millis(300), Duration::from_secs(1))
    }

    /// Gives heartbeats until the lease is lost or not needed any more; then gives it back.
    /// `turned` is called when another member is chosen, `lost` when nothing can be held by it
    /// any more, `over` when the server does not have it any more.
    pub(super) async fn run(
        self: Arc<Self>,
        cluster: Arc<Cluster>,
        turned: impl Fn(),
        lost: impl Fn(),
        over: impl Fn(),
    ) {
        let mut failures = 0;
        while self.liveness.retired().now_or_never().is_none() && !self.is_lost() {
            let member = cluster.chosen();
            let before = self.liveness.good_until();
            match self.stream(&cluster, member).await {
                End::Lost => {
                    self.liveness.lose();
                    lost();
                    over();
                    return;
                }
                End::Over => break,
                End::Broken(why) => {
                    tracing::debug!(why, lease = self.lease, "the keep-alive stream broke");
                    cluster.avoid(member);
                    turned();
                    failures = if before == self.liveness.good_until() { failures + 1 } else { 0 };
                }
            }
            tokio::time::sleep(pause(failures)).await;
        }
        if self.is_lost() {
            tracing::debug!(lease = self.lease, "nothing was heard of a lease while it lasted");
            self.liveness.lose();
            lost();
        }
        self.give_back(&cluster).await;
        over();
    }

    /// Has the lease revoked, with all that is on it or may still come; or lets it run out.
    async fn give_back(&self, cluster: &Cluster) {
        let id = LeaseId { id: self.lease };
        let until = clock::now().after(GIVE_BACK);
        for failures in 0.. {
            let revoked = cluster.call::<_, RevokeAnswer>(proto::REVOKE, &id, self.limit()).await;
            let Err(error) = revoked.map(drop) else { return };
            if errors::is_lease_gone(&error) {
                return;
            }
            tracing::debug!(%error, lease = self.lease, "a lease was not given back");
            if !error.retryable() || clock::now() >= until {
                return tokio::time::sleep(self.ttl).await;
            }
            tokio::time::sleep(pause(failures)).await;
        }
    }

    /// Gives heartbeats to one member.
    async fn stream(self: &Arc<Self>, cluster: &Cluster, member: usize) -> End {
        let open = tokio::time::timeout(self.limit(), cluster.stream(proto::KEEP_ALIVE, member));
        let (out, mut answers) = match open.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(status)) => return broken(cluster, &status),
            Err(_) => return End::Broken("it did not open in time".to_owned()),
        };
        let mut sent = clock::now();
        out.send(&LeaseId { id: self.lease });
        loop {
            let (answer, led) = tokio::join!(
                tokio::time::timeout(self.limit(), answers.message::<AliveAnswer>()),
                tokio::time::timeout(2 * self.limit(), self.ask_majority(cluster)),
            );
            let answer = match answer {
                Ok(Ok(Some(answer))) => answer,
                Ok(Ok(None)) => return End::Broken("it ended".to_owned()),
                Ok(Err(status)) => return broken(cluster, &status),
                Err(_) => return End::Broken("no answer in time".to_owned()),
            };
            if !matches!(led, Ok(Ok(()))) {
                return End::Broken("no majority says who leads".to_owned());
            }
            if !cluster.is_current(answer.header.unwrap_or_default()) {
                return End::Broken("the answer of a leader of the past".to_owned());
            }
            if answer.ttl <= 0 {
                return End::Lost;
            }
            if self.is_lost() {
                // Later than this is too late: it may be on its way out already.
                return End::Broken("the answer came when the lease was over".to_owned());
            }
            self.liveness.confirm(sent);
            // The table and this task have it; any other reference is a use.
            let busy = Arc::strong_count(self) > 2;
            tokio::select! {
                () = self.liveness.retired() => return End::Over,
                () = tokio::time::sleep(self.pause(busy)) => {}
                () = self.liveness.wanted.notified() => {}
            }
            sent = clock::now();
            out.send(&LeaseId { id: self.lease });
        }
    }

    /// Asks something that only a majority can answer, so that the newest leadership is known.
    async fn ask_majority(&self, cluster: &Cluster) -> Result<()> {
        let (read, known) = (layout::one(&self.key), cluster.term());
        let answer = cluster.call::<_, RangeAnswer>(proto::RANGE, &read, self.limit()).await?;
        let term = answer.body.header.unwrap_or_default().raft_term;
        if term < known {
            cluster.go_back(known, term);
        }
        Ok(())
    }
}

/// A stream that failed so; logged in anew next time if that is why.
fn broken(cluster: &Cluster, status: &Status) -> End {
    if errors::judge(status) == errors::Verdict::Login {
        cluster.forget_token();
    }
    End::Broken(status.to_string())
}

#[cfg(test)]
mod tests {
    use super::seconds_for;
    use std::time::Duration;

    #[test]
    fn the_server_is_asked_for_a_little_more() {
        let table = [(1000, 2), (1500, 2), (1501, 3), (2000, 3), (10_000, 11), (60_000, 66)];
        for (lease, seconds) in table {
            assert_eq!(seconds_for(Duration::from_millis(lease)), seconds, "{lease} ms");
        }
    }
}
