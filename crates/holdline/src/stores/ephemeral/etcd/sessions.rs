//! The leases of a store: which of them new places use, and when each is revoked.

use super::acquire::TRIES;
use super::session::{Session, User};
use super::shared::{BACKGROUND, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use holdline_etcd_client::{Cluster, Lease};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The leases of this process, each with the time since when it has been unused.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    idle: Option<Time>,
}

impl Entry {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.session) > 1
    }

    /// Whether new places may use it.
    fn is_usable(&self, cluster: &Cluster) -> bool {
        let session = &self.session;
        !(session.is_tainted() || session.lease.is_lost() || session.is_outdated(cluster))
    }
}

/// How long an unused lease is kept.
const IDLE: Duration = Duration::from_secs(20);

impl Sessions {
    /// The lease for new places with this lease length in seconds.
    pub(super) fn living(&self, seconds: u64, cluster: &Cluster) -> Option<Arc<Session>> {
        let mut entries = self.0.lock();
        let good = |entry: &&mut Entry| {
            entry.session.lease.seconds() == seconds && entry.is_usable(cluster)
        };
        let entry = entries.iter_mut().find(good)?;
        entry.idle = None;
        Some(Arc::clone(&entry.session))
    }

    fn insert(&self, session: &Arc<Session>) {
        self.0.lock().push(Entry { session: Arc::clone(session), idle: None });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// The session of this lease, unless it has ended.
    pub(super) fn find(&self, lease: i64) -> Option<Arc<Session>> {
        let entries = self.0.lock();
        let entry = entries.iter().find(|entry| entry.session.lease.id() == lease)?;
        Some(Arc::clone(&entry.session))
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.0.lock().iter().map(|entry| Arc::clone(&entry.session)).collect()
    }

    pub(super) fn remove(&self, lease: i64) {
        self.0.lock().retain(|entry| entry.session.lease.id() != lease);
    }

    /// Drops the unused sessions, which revokes their leases; at once if a write that names one may
    /// still be in transit, which then finds no lease.
    pub(super) fn tidy(&self, now: Time, cluster: &Cluster) {
        self.0.lock().retain_mut(|entry| {
            if entry.is_used() {
                entry.idle = None;
                return true;
            }
            let since = *entry.idle.get_or_insert(now);
            entry.is_usable(cluster) && since.until(now) < IDLE
        });
    }

    /// Revokes all leases.
    pub(super) fn end(&self) {
        self.0.lock().iter().for_each(|entry| entry.session.lease.end());
    }
}

impl Shared {
    /// A living session for locks of this lease, in lines with this prefix.
    pub(super) async fn session(
        self: &Arc<Self>,
        lease: Duration,
        prefix: &[u8],
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = Lease::seconds_for(lease);
        if let Some(session) = self.sessions.living(seconds, &self.cluster) {
            return Ok(session);
        }
        let (shared, prefix) = (Arc::clone(self), prefix.to_vec());
        let (mut reply, answer) = oneshot::channel();
        // A task, so that a call that is not polled or is dropped does not hold the turn. A lease
        // that was requested is for the next caller, then: otherwise each would leave one behind.
        BACKGROUND.spawn(async move {
            let _turn = tokio::select! {
                turn = shared.granting.lock() => turn,
                () = reply.closed() => return,
            };
            let _ = reply.send(shared.granted(seconds, &prefix, limit).await);
        });
        answer.await.expect("the runtime goes on as long as the process")
    }

    /// As [`session`](Self::session), once earlier callers have theirs.
    async fn granted(
        self: &Arc<Self>,
        seconds: u64,
        prefix: &[u8],
        limit: Duration,
    ) -> Result<Arc<Session>> {
        for _ in 0..TRIES {
            if let Some(session) = self.sessions.living(seconds, &self.cluster) {
                return Ok(session);
            }
            // The answer may reveal an election, or come when the lease is over; then it must not
            // be used.
            self.grant(seconds, prefix, limit).await?;
        }
        Err(self.elections())
    }

    /// The error for too many leader elections during one call.
    pub(super) fn elections(&self) -> Error {
        let message = format!("{} keeps electing new leaders", self.address);
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Adds a new session.
    async fn grant(self: &Arc<Self>, seconds: u64, prefix: &[u8], limit: Duration) -> Result<()> {
        let lease = Lease::grant(&self.cluster, seconds, prefix, limit).await?;
        let session = Arc::new(Session::new(lease));
        self.late.lease_began(session.lease.id());
        self.sessions.insert(&session);
        let user = User {
            shared: Arc::downgrade(self),
            session: Arc::downgrade(&session),
            lease: session.lease.id(),
        };
        let lease = Arc::clone(&session.lease);
        BACKGROUND.spawn(lease.run(Arc::clone(&self.cluster), user));
        self.table.nudge.notify_one();
        Ok(())
    }

    /// Finds out which leases are gone, after the server has reported that one is.
    pub(super) async fn find_out(&self) {
        for session in self.sessions.all() {
            if !session.lease.is_alive().await {
                self.evicted(session.lease.id());
            }
        }
    }

    /// Handles a lease that is gone, or must be assumed to be, and with it all places on it.
    /// Returns until when their holders may rely on it, if there are any.
    pub(super) fn evicted(&self, lease: i64) -> Option<Time> {
        self.sessions.remove(lease);
        self.table.lose_all(|record| record.place().entry.session.lease.id() == lease)
    }
}
