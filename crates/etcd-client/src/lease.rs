//! One lease in etcd, kept alive; how long it is certain to last is always known.
//!
//! The server is asked for slightly more time than the caller needs ([`Lease::seconds_for`]), and
//! gets heartbeats often enough that the rest is never less than that. So most questions whether
//! the lease is good are answered from the last heartbeat that the server confirmed. If that is too
//! old, callers await the next one, which they share.
//!
//! A leader answers a heartbeat by itself, without asking the other members whether it still leads
//! (before etcd 3.4.30 and 3.5.13). A leader that was frozen, partitioned or stuck at its disk
//! while another was elected keeps confirming, and the new leader lets the lease expire. So each
//! heartbeat is sent along with a read that a majority must answer: the heartbeat counts only if no
//! newer leadership term than that of its answer had begun when it was sent. And if that answer is
//! behind an earlier one, the cluster was restored from older data: then the lease is given up,
//! since it may be there without its keys, or with keys that were deleted since.
//!
//! Such a leader may also revoke a lease that has expired by its own clock, seconds after it
//! resumes, although the new leader has prolonged it (before the same versions). So new keys should
//! be put on a lease only under the leadership that granted it, which alone has counted its time;
//! under a later one ([`Lease::is_outdated`]), keys are better moved to a new lease. And a lease
//! without a confirmed heartbeat for its whole length (less an allowance for clocks that run at
//! different rates) is given up, whatever is reported about it afterwards.

use crate::cluster::{Cluster, Progress};
use crate::error::{self, is_forbidden, is_lease_gone, is_lease_there};
use crate::proto::{self, Grant, LeaseAnswer, LeaseId, Range, RangeAnswer, RevokeAnswer};
use futures_util::FutureExt;
use holdline_base::clock;
use holdline_base::liveness::Liveness;
use holdline_base::sync::{Mutex, contained};
use holdline_base::{Error, ErrorKind, Result};
use holdline_kernel::{Backoff, Time};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A lease. A task must [`run`](Self::run) it.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    /// The seconds requested from the server.
    seconds: u64,
    /// How long the server keeps it after a heartbeat, at least.
    ttl: Duration,
    /// The progress of the cluster that granted it.
    since: Progress,
    /// A key that the user may read, as far as is known.
    key: Mutex<Vec<u8>>,
    liveness: Liveness,
}

/// The user of a lease: the callbacks while the lease is kept alive. None of them may block.
pub trait LeaseUser: Send + Sync {
    /// Whether the lease has keys: heartbeats are then more frequent.
    fn is_busy(&self) -> bool;

    /// A key that may be readable, after the server has denied this one; `None` if none is known.
    fn another_key(&self, denied: &[u8]) -> Option<Vec<u8>>;

    /// Another member was chosen.
    fn turned(&self);

    /// The lease can no longer be relied on. Returns until when somebody may do so all the same,
    /// having yet to learn of it: it is not revoked before that, or [`Lease::end`].
    fn lost(&self) -> Option<Time>;

    /// The server no longer has the lease.
    fn over(&self);
}

/// How a heartbeat stream ended.
enum End {
    Lost,
    Over,
    Broken(String),
}

/// How long revoking a lease is retried. After that it expires.
const GIVE_BACK: Duration = Duration::from_secs(120);

/// The pause after this many consecutive failures.
fn pause(failures: u32) -> Duration {
    let most = Duration::from_millis(500);
    Backoff::exponential(Duration::from_millis(10), most)
        .jitter(50)
        .pause(failures, fastrand::u64(..))
}

/// The answer to a grant request.
struct Granted {
    id: i64,
    /// The seconds that the server granted.
    seconds: u64,
    /// The progress of the cluster when it was requested.
    since: Progress,
}

/// Requests a new lease of this many seconds.
async fn granted(cluster: &Cluster, seconds: u64, limit: Duration) -> Result<Granted> {
    // We choose the id, so that a retry after a lost answer does not create a second lease.
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system provided no random numbers, without which no lease is ours alone";
        Error::because(ErrorKind::Denied, message, error)
    })?;
    let id = (i64::from_be_bytes(bytes) & i64::MAX).max(1);
    let known = cluster.progress();
    let grant = Grant { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id };
    match cluster.call_majority::<_, LeaseAnswer>(proto::GRANT, &grant, limit).await {
        Ok((LeaseAnswer { ttl, .. }, since)) => {
            Ok(Granted { id, seconds: counted(ttl, seconds), since })
        }
        Err(error) if is_lease_there(&error) => Ok(Granted { id, seconds, since: known }),
        Err(error) => Err(error),
    }
}

/// The seconds to rely on when a server grants this many: never more than were requested, which is
/// all that a retry knows of.
fn counted(granted: i64, requested: u64) -> u64 {
    u64::try_from(granted).unwrap_or(0).min(requested)
}

impl Lease {
    /// The whole seconds to request so that the rest is never less than `needed`.
    pub fn seconds_for(needed: Duration) -> u64 {
        let slack = (needed / 10).max(Duration::from_millis(500));
        let length = needed + slack;
        (length.as_secs() + u64::from(length.subsec_nanos() > 0)).max(2)
    }

    /// Grants a new lease of this many seconds. `key` is one that the user may read; `limit` is the
    /// time limit for each member.
    ///
    /// # Errors
    ///
    /// As [`Cluster::call`]; [`Denied`](ErrorKind::Denied) if the system provides no random
    /// numbers.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that was granted expires.
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
            since: granted.since,
            key: Mutex::new(key.to_vec()),
            liveness: Liveness::new(sent, Duration::from_secs(granted.seconds)),
        })
    }

    /// The lease's id.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The seconds requested from the server.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Whether the server has reported that it is gone, or confirmed nothing for its whole length,
    /// or was restored from older data.
    pub fn is_lost(&self) -> bool {
        self.liveness.good_until().is_none_or(|good| good <= clock::now())
    }

    /// Whether a later leadership than the one that granted it has begun.
    pub fn is_outdated(&self, cluster: &Cluster) -> bool {
        self.since.term < cluster.term()
    }

    /// Requests the lease's revocation: it is no longer used.
    pub fn end(&self) {
        self.liveness.retire();
    }

    /// Whether the server is certain to keep it for `needed` after a heartbeat.
    pub fn suits(&self, needed: Duration) -> bool {
        needed <= self.liveness.certain()
    }

    /// Requests a heartbeat, unless the lease is known to be good until `until`.
    pub fn refresh(&self, until: Time) {
        if self.liveness.good_until().is_some_and(|good| good < until) {
            self.liveness.wanted.notify_one();
        }
    }

    /// Waits until the server is certain to keep the lease until `until`: for ever unless
    /// [`run`](Self::run) runs. False if it is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn good_for(&self, until: Time) -> bool {
        !self.is_lost() && self.liveness.good_for(until).await
    }

    /// Records that the servers have left a request unanswered, and sends a heartbeat.
    pub fn doubt(&self) {
        self.liveness.doubt();
    }

    /// Waits until the servers answer heartbeats, or the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn answers(&self) {
        self.liveness.answers().await;
    }

    /// Asks the server whether the lease exists.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_alive(&self) -> bool {
        // Only a heartbeat sent from now on proves that much.
        self.good_for(clock::now().after(self.liveness.certain())).await
    }

    /// The time from one heartbeat to the next.
    fn pause(&self, busy: bool) -> Duration {
        if busy { self.ttl / 22 } else { self.ttl / 5 }
            .clamp(Duration::from_millis(200), Duration::from_secs(30))
    }

    /// How long to wait for the confirmation of a heartbeat before another member is asked.
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

    /// Sends heartbeats until the lease is lost or no longer needed, and then revokes it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease expires.
    pub async fn run(self: Arc<Self>, cluster: Arc<Cluster>, user: impl LeaseUser) {
        // A panic, say of a subscriber, must not end the heartbeats unknown to the user.
        while AssertUnwindSafe(self.keep(&cluster, &user)).catch_unwind().await.is_err() {
            clock::pause(self.limit()).await;
        }
        if self.is_lost() {
            contained(|| tracing::debug!(lease = self.id, "a lease is lost"));
            self.liveness.lose();
            if let Some(until) = user.lost() {
                let _ = clock::within(until, self.liveness.retired()).await;
            }
        }
        let _ = AssertUnwindSafe(self.give_back(&cluster)).catch_unwind().await;
        user.over();
    }

    /// Sends heartbeats until the lease is lost or no longer needed.
    async fn keep(&self, cluster: &Cluster, user: &impl LeaseUser) {
        let mut failures = 0;
        while self.liveness.retired().now_or_never().is_none() && !self.is_lost() {
            let member = cluster.chosen();
            let before = self.liveness.good_until();
            let limit = self.patience(failures, cluster.size());
            match Box::pin(self.stream(cluster, member, user, limit)).await {
                End::Lost => return self.liveness.lose(),
                End::Over => return,
                End::Broken(why) => {
                    self.liveness.note(false);
                    cluster.avoid(member);
                    user.turned();
                    failures = if before == self.liveness.good_until() { failures + 1 } else { 0 };
                    tracing::debug!(why, lease = self.id, "the keep-alive stream broke");
                }
            }
            clock::pause(pause(failures)).await;
        }
    }

    /// Revokes the lease, with all keys on it and any late ones; or lets it expire.
    async fn give_back(&self, cluster: &Cluster) {
        let id = LeaseId { id: self.id };
        let until = clock::now().after(GIVE_BACK);
        for failures in 0.. {
            let revoked = cluster.call::<_, RevokeAnswer>(proto::REVOKE, &id, self.limit()).await;
            let Err(error) = revoked.map(drop) else { return };
            if is_lease_gone(&error) {
                return;
            }
            contained(|| tracing::debug!(%error, lease = self.id, "a lease was not given back"));
            if !error.retryable() || clock::now() >= until {
                return clock::pause(self.ttl).await;
            }
            clock::pause(pause(failures)).await;
        }
    }

    /// Reads another key with the next heartbeats: the user's rights to this one were revoked.
    fn read_another(&self, denied: &[u8], user: &impl LeaseUser) {
        if let Some(key) = user.another_key(denied) {
            *self.key.lock() = key;
        }
    }

    /// Sends heartbeats to one member, with this time limit for each.
    async fn stream(
        &self,
        cluster: &Cluster,
        member: usize,
        user: &impl LeaseUser,
        limit: Duration,
    ) -> End {
        let open = pin!(cluster.stream(proto::KEEP_ALIVE, member));
        let open = clock::timeout(limit, open);
        let (out, mut answers, token) = match open.await {
            Some(Ok(stream)) => stream,
            Some(Err(status)) => return End::Broken(status.to_string()),
            None => return End::Broken("it did not open in time".to_owned()),
        };
        let mut sent = clock::now();
        out.send(&LeaseId { id: self.id });
        let key = self.key.lock().clone();
        let read = Range { key, keys_only: true, ..Range::default() };
        loop {
            let majority = cluster.call_majority::<_, RangeAnswer>(proto::RANGE, &read, limit);
            let majority = pin!(majority);
            let (answer, led) = tokio::join!(
                clock::timeout(limit, answers.message::<LeaseAnswer>()),
                clock::timeout(2 * limit, majority),
            );
            let answer = match answer {
                Some(Ok(Some(answer))) => answer,
                Some(Ok(None)) => return End::Broken("it ended".to_owned()),
                Some(Err(status)) => {
                    if error::judge(&status) == error::Verdict::Login {
                        cluster.forget(token.as_ref());
                    }
                    return End::Broken(status.to_string());
                }
                None => return End::Broken("no answer in time".to_owned()),
            };
            let progress = match led {
                Some(Ok((_, progress))) => progress,
                failed => {
                    if failed.is_some_and(|led| led.is_err_and(|why| is_forbidden(&why))) {
                        self.read_another(&read.key, user);
                    }
                    return End::Broken("no majority says who leads".to_owned());
                }
            };
            if progress.losses != self.since.losses {
                // The lease may be there without keys that were put on it, or with deleted ones.
                return End::Lost;
            }
            if !cluster.is_current(answer.header.unwrap_or_default()) {
                return End::Broken("the answer of a leader of the past".to_owned());
            }
            if answer.ttl <= 0 {
                return End::Lost;
            }
            if self.is_lost() {
                // A later answer is too late: the lease may be about to expire.
                return End::Broken("the answer came when the lease was over".to_owned());
            }
            self.liveness.confirm(sent);
            self.liveness.note(true);
            tokio::select! {
                () = self.liveness.retired() => return End::Over,
                () = clock::pause(self.pause(user.is_busy())) => {}
                () = self.liveness.wanted.notified() => {}
            }
            sent = clock::now();
            out.send(&LeaseId { id: self.id });
        }
    }
}

#[cfg(test)]
mod tests;
