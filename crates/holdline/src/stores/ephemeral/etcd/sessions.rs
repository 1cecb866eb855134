//! The leases of a store: which of them new places are put on, and when one is given back.

use super::acquire::TRIES;
use super::cluster::Cluster;
use super::session::{Session, seconds_for};
use super::shared::{BACKGROUND, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

/// The leases of this process, each with the time since when it is not used.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    idle: Option<Time>,
}

impl Entry {
    /// The table has it, and its task.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.session) > 2
    }
}

/// The time for which a lease that is not used is kept.
const IDLE: Duration = Duration::from_secs(20);

impl Sessions {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock()
    }

    /// The one for new places of so many seconds.
    pub(super) fn living(&self, seconds: u64, cluster: &Cluster) -> Option<Arc<Session>> {
        let mut entries = self.entries();
        let good = |entry: &&mut Entry| {
            let session = &entry.session;
            session.seconds == seconds
                && !(session.is_tainted() || session.is_lost() || session.is_outdated(cluster))
        };
        let entry = entries.iter_mut().find(good)?;
        entry.idle = None;
        Some(Arc::clone(&entry.session))
    }

    fn insert(&self, session: &Arc<Session>) {
        self.entries().push(Entry { session: Arc::clone(session), idle: None });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.entries().iter().map(|entry| Arc::clone(&entry.session)).collect()
    }

    pub(super) fn remove(&self, lease: i64) {
        self.entries().retain(|entry| entry.session.lease != lease);
    }

    /// Gives back the leases that are not used; at once if a write with one of them may still be on
    /// its way, which then finds no lease.
    pub(super) fn tidy(&self, now: Time, cluster: &Cluster) {
        self.entries().retain_mut(|entry| {
            if entry.is_used() {
                entry.idle = None;
                return true;
            }
            let since = *entry.idle.get_or_insert(now);
            let session = &entry.session;
            let usable =
                !(session.is_tainted() || session.is_lost() || session.is_outdated(cluster));
            let keep = usable && since.until(now) < IDLE;
            if !keep {
                entry.session.end();
            }
            keep
        });
    }

    /// Gives all of them back.
    pub(super) fn end(&self) {
        self.entries().iter().for_each(|entry| entry.session.end());
    }
}

impl Shared {
    /// A living session for locks of this lease, in lines like the one with this prefix.
    pub(super) async fn session(
        self: &Arc<Self>,
        lease: Duration,
        prefix: &[u8],
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = seconds_for(lease);
        if let Some(session) = self.sessions.living(seconds, &self.cluster) {
            return Ok(session);
        }
        let _turn = self.granting.lock().await;
        for _ in 0..TRIES {
            if let Some(session) = self.sessions.living(seconds, &self.cluster) {
                return Ok(session);
            }
            // The answer may tell of an election, or come when the lease is over: not to be used.
            self.grant(seconds, prefix, limit).await?;
        }
        Err(self.elections())
    }

    /// The error of too many changes of leadership while one was waited for.
    pub(super) fn elections(&self) -> Error {
        let message = format!("{} has one election after the other", self.cluster.address);
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Adds a new session.
    async fn grant(self: &Arc<Self>, seconds: u64, prefix: &[u8], limit: Duration) -> Result<()> {
        let session = Arc::new(Session::grant(&self.cluster, seconds, prefix, limit).await?);
        self.sessions.insert(&session);
        let (watcher, shared) = (Arc::downgrade(&self.watcher), Arc::downgrade(self));
        let turned = move || {
            if let Some(watcher) = watcher.upgrade() {
                watcher.restart();
            }
        };
        let lease = session.lease;
        let gone = Weak::clone(&shared);
        let lost = move || {
            if let Some(shared) = gone.upgrade() {
                shared.evicted(lease);
            }
        };
        let over = move || {
            if let Some(shared) = shared.upgrade() {
                shared.sessions.remove(lease);
                shared.late.lease_ended(lease);
            }
        };
        BACKGROUND.spawn(session.run(Arc::clone(&self.cluster), turned, lost, over));
        self.table.nudge.notify_one();
        Ok(())
    }

    /// Finds out which leases are gone, after the server has said that one is.
    pub(super) async fn find_out(&self) {
        for session in self.sessions.all() {
            if !session.is_alive().await {
                self.evicted(session.lease);
            }
        }
    }

    /// A lease is gone, or must be taken for that, and with it all places that were on it.
    pub(super) fn evicted(&self, lease: i64) {
        self.sessions.remove(lease);
        self.table.lose_all(|record| record.place().entry.session.lease == lease);
    }
}
