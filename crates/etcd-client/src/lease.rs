//! One lease in etcd, which is kept alive; it is known until when it is sure to be.
//!
//! The server is asked for a little more than the caller needs ([`Lease::seconds_for`]), and is
//! told often enough that we live that, at any moment, what is left is no less than that. So most
//! questions whether the lease is good are answered from the last heartbeat that the server
//! confirmed; if that is too old, callers await the next, which they share.
//!
//! A leader answers a heartbeat by itself, without asking the other members whether it still
//! leads (before etcd 3.4.30 and 3.5.13). One that was frozen, cut off or stuck at its disk while
//! another was elected goes on saying yes, and the other lets the lease run out. So with each
//! heartbeat goes a read that a majority must answer: the heartbeat counts only if no newer
//! leadership than that of its answer had begun when it was sent.
//!
//! Such a leader may also have a lease revoked that has run out by its own clock, seconds after it
//! goes on, although the one that leads now has prolonged it (before the same versions). So a lease
//! is to be trusted with new keys only under the leadership that granted it, which alone has
//! counted its time; under a later one ([`Lease::is_outdated`]), keys are better moved to a new
//! lease. And one of which nothing was heard for as long as it lasts is given up, whatever is said
//! of it afterwards.

use crate::cluster::{Answer, Cluster};
use crate::error::{self, is_lease_gone, is_lease_there};
use crate::grpc::Status;
use crate::proto::{
    self, AliveAnswer, Grant, GrantAnswer, LeaseId, Range, RangeAnswer, RevokeAnswer,
};
use futures_util::FutureExt;
use holdline_base::clock;
use holdline_base::liveness::Liveness;
use holdline_base::{Error, ErrorKind, Result};
use holdline_kernel::{Backoff, Time};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A lease. Somebody must [`run`](Self::run) it.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    /// The seconds that the server was asked for.
    seconds: u64,
    /// How long the server keeps it after a heartbeat.
    ttl: Duration,
    /// The term of the leadership that granted it.
    term: u64,
    /// A key that we may read.
    key: Vec<u8>,
    liveness: Liveness,
}

/// The user of a lease: what is asked of it, and what it is told, while the lease is kept alive.
/// None of this may wait.
pub trait LeaseUser: Send + Sync {
    /// Whether something is on the lease: then heartbeats are given more often.
    fn is_busy(&self) -> bool;

    /// Another member was chosen.
    fn turned(&self);

    /// Nothing can be held by the lease any more.
    fn lost(&self);

    /// The server does not have the lease any more.
    fn over(&self);
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

/// The answer to a request for a lease.
struct Granted {
    id: i64,
    /// The seconds that the server gave it.
    seconds: u64,
    /// The term of the leadership under which it was asked for.
    term: u64,
}

/// A new lease of so many seconds.
async fn granted(cluster: &Cluster, seconds: u64, limit: Duration) -> Result<Granted> {
    // Our own number, so that asking again after a lost answer makes no second lease.
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system gave no random numbers, without which no lease is ours alone";
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
        Err(error) if is_lease_there(&error) => Ok(Granted { id, seconds, term }),
        Err(error) => Err(error),
    }
}

impl Lease {
    /// How many whole seconds to ask for, if what is left is never to be less than `needed`.
    pub fn seconds_for(needed: Duration) -> u64 {
        let slack = (needed / 10).max(Duration::from_millis(500));
        let length = needed + slack;
        (length.as_secs() + u64::from(length.subsec_nanos() > 0)).max(2)
    }

    /// A new lease of so many seconds. `key` is one that the user may read; `limit` is the time for
    /// each member.
    ///
    /// # Errors
    ///
    /// Those of [`Cluster::call`]; [`Denied`](ErrorKind::Denied) if the system gives no random
    /// numbers.
    ///
    /// # Cancel safety
    ///
    /// A lease that was granted and that nobody knows of runs out.
    pub async fn grant(
        cluster: &Cluster,
        seconds: u64,
        key: &[u8],
        limit: Duration,
    ) -> Result<Self> {
        let sent = clock::now();
        let granted = granted(cluster, seconds, limit).await?;
        Ok(Lease {
            id: granted.id,
            seconds,
            ttl: Duration::from_secs(granted.seconds),
            term: granted.term,
            key: key.to_vec(),
            liveness: Liveness::new(sent, Duration::from_secs(granted.seconds)),
        })
    }

    /// The lease's number.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The seconds that the server was asked for.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Whether the server has said that it is gone, or nothing for as long as it lasts.
    pub fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none_or(|good| good <= clock::now())
    }

    /// Whether a later leadership has begun than the one that granted it.
    pub fn is_outdated(&self, cluster: &Cluster) -> bool {
        self.term < cluster.term()
    }

    /// Has the lease given back: it is not used any more.
    pub fn end(&self) {
        self.liveness.retire();
    }

    /// Whether the server keeps it for so long, at its best.
    pub fn suits(&self, needed: Duration) -> bool {
        needed <= self.ttl
    }

    /// Asks for a heartbeat, unless the lease is known to be good until then.
    pub fn refresh(&self, until: Time) {
        if self.liveness.good_until().is_some_and(|good| good < until) {
            self.liveness.wanted.notify_one();
        }
    }

    /// Waits until the server is sure to keep it until then. False if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn good_for(&self, until: Time) -> bool {
        !self.is_lost() && self.liveness.good_for(until).await
    }

    /// Asks the server whether it is there.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_alive(&self) -> bool {
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

    /// The same after so many failures in a row. When all members have failed they may only be
    /// slow: then each is given more time, or none would ever confirm anything.
    fn patience(&self, failures: u32, members: usize) -> Duration {
        let rounds = failures / u32::try_from(members).unwrap_or(u32::MAX);
        let most = self.limit().max(self.ttl / 3);
        self.limit().saturating_mul(rounds.saturating_add(1)).min(most)
    }

    /// Gives heartbeats until the lease is lost or not needed any more; then gives it back.
    ///
    /// # Cancel safety
    ///
    /// The lease runs out if the future is dropped.
    pub async fn run(self: Arc<Self>, cluster: Arc<Cluster>, user: impl LeaseUser) {
        let mut failures = 0;
        while self.liveness.retired().now_or_never().is_none() && !self.is_lost() {
            let member = cluster.chosen();
            let before = self.liveness.good_until();
            let limit = self.patience(failures, cluster.size());
            match Box::pin(self.stream(&cluster, member, &user, limit)).await {
                End::Lost => {
                    self.liveness.lose();
                    user.lost();
                    user.over();
                    return;
                }
                End::Over => break,
                End::Broken(why) => {
                    tracing::debug!(why, lease = self.id, "the keep-alive stream broke");
                    cluster.avoid(member);
                    user.turned();
                    failures = if before == self.liveness.good_until() { failures + 1 } else { 0 };
                }
            }
            clock::pause(pause(failures)).await;
        }
        if self.is_lost() {
            tracing::debug!(lease = self.id, "nothing was heard of a lease while it lasted");
            self.liveness.lose();
            user.lost();
        }
        self.give_back(&cluster).await;
        user.over();
    }

    /// Has the lease revoked, with all that is on it or may still come; or lets it run out.
    async fn give_back(&self, cluster: &Cluster) {
        let id = LeaseId { id: self.id };
        let until = clock::now().after(GIVE_BACK);
        for failures in 0.. {
            let revoked = cluster.call::<_, RevokeAnswer>(proto::REVOKE, &id, self.limit()).await;
            let Err(error) = revoked.map(drop) else { return };
            if is_lease_gone(&error) {
                return;
            }
            tracing::debug!(%error, lease = self.id, "a lease was not given back");
            if !error.retryable() || clock::now() >= until {
                return clock::pause(self.ttl).await;
            }
            clock::pause(pause(failures)).await;
        }
    }

    /// Gives heartbeats to one member, with so much time for each.
    async fn stream(
        &self,
        cluster: &Cluster,
        member: usize,
        user: &impl LeaseUser,
        limit: Duration,
    ) -> End {
        let open = pin!(cluster.stream(proto::KEEP_ALIVE, member));
        let open = clock::timeout(limit, open);
        let (out, mut answers) = match open.await {
            Some(Ok(stream)) => stream,
            Some(Err(status)) => return broken(cluster, &status),
            None => return End::Broken("it did not open in time".to_owned()),
        };
        let mut sent = clock::now();
        out.send(&LeaseId { id: self.id });
        loop {
            let majority = pin!(self.ask_majority(cluster, limit));
            let (answer, led) = tokio::join!(
                clock::timeout(limit, answers.message::<AliveAnswer>()),
                clock::timeout(2 * limit, majority),
            );
            let answer = match answer {
                Some(Ok(Some(answer))) => answer,
                Some(Ok(None)) => return End::Broken("it ended".to_owned()),
                Some(Err(status)) => return broken(cluster, &status),
                None => return End::Broken("no answer in time".to_owned()),
            };
            if !matches!(led, Some(Ok(()))) {
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
            tokio::select! {
                () = self.liveness.retired() => return End::Over,
                () = clock::pause(self.pause(user.is_busy())) => {}
                () = self.liveness.wanted.notified() => {}
            }
            sent = clock::now();
            out.send(&LeaseId { id: self.id });
        }
    }

    /// Asks something that only a majority can answer, so that the newest leadership is known.
    async fn ask_majority(&self, cluster: &Cluster, limit: Duration) -> Result<()> {
        let read = Range { key: self.key.clone(), keys_only: true, ..Range::default() };
        let known = cluster.term();
        let answer = cluster.call::<_, RangeAnswer>(proto::RANGE, &read, limit).await?;
        let term = answer.body.header.unwrap_or_default().raft_term;
        if term < known {
            cluster.go_back(known, term);
        }
        Ok(())
    }
}

/// A stream that failed so; logged in anew next time if that is why.
fn broken(cluster: &Cluster, status: &Status) -> End {
    if error::judge(status) == error::Verdict::Login {
        cluster.forget_token();
    }
    End::Broken(status.to_string())
}

#[cfg(test)]
mod tests {
    use super::Lease;
    use std::time::Duration;

    #[test]
    fn the_server_is_asked_for_a_little_more() {
        let table = [(1000, 2), (1500, 2), (1501, 3), (2000, 3), (10_000, 11), (60_000, 66)];
        for (lease, seconds) in table {
            assert_eq!(Lease::seconds_for(Duration::from_millis(lease)), seconds, "{lease} ms");
        }
    }
}
