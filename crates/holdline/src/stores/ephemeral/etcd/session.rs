//! A session: one lease in etcd, shared by all locks of the process with the same lease length.
//!
//! So entering and keeping a lock tell the server nothing about time: both are answered from the
//! lease's last confirmed heartbeat.

use super::shared::Shared;
use super::slot::Slots;
use holdline_etcd_client::{Cluster, Lease, LeaseUser};
use holdline_kernel::Time;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A lease, and the places on it. The lease is revoked when this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: Arc<Lease>,
    /// Whether a write that named it was never answered, so that no new places may use it.
    tainted: AtomicBool,
    /// Whether it is to end as soon as its places are on another one.
    ends: AtomicBool,
    pub(super) slots: Arc<Slots>,
}

impl Session {
    pub(super) fn new(lease: Lease) -> Self {
        let slots = Arc::default();
        let (tainted, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        Session { lease: Arc::new(lease), tainted, ends, slots }
    }

    /// Excludes it from new places. The lease is revoked when the last of its places is gone, which
    /// voids all of its writes that are still in transit.
    pub(super) fn taint(&self) {
        self.tainted.store(true, Ordering::Relaxed);
    }

    /// Whether no new places may use it.
    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Relaxed) || self.slots.are_worn()
    }

    /// Moves its places to another lease, so that it ends with the keys that the server refuses to
    /// remove.
    pub(super) fn end_soon(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether places on it are to move to a new lease.
    pub(super) fn is_outdated(&self, cluster: &Cluster) -> bool {
        self.ends.load(Ordering::Relaxed) || self.lease.is_outdated(cluster)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.lease.end();
    }
}

/// The session of a lease that is kept alive, and its store.
pub(super) struct User {
    pub(super) shared: Weak<Shared>,
    pub(super) session: Weak<Session>,
    pub(super) lease: i64,
}

impl LeaseUser for User {
    fn is_busy(&self) -> bool {
        // The table has one reference; any other is a use.
        self.session.strong_count() > 1
    }

    /// The prefix of the line of one of its places, at random: others may be denied, too.
    fn another_key(&self, denied: &[u8]) -> Option<Vec<u8>> {
        let mut records = self.shared.upgrade()?.table.all();
        records.retain(|record| {
            let on_it = record.place().entry.session.lease.id() == self.lease;
            on_it && record.base.prefix != denied
        });
        fastrand::choice(&records).map(|record| record.base.prefix.clone())
    }

    fn turned(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.watcher.restart();
        }
    }

    fn lost(&self) -> Option<Time> {
        self.shared.upgrade()?.evicted(self.lease)
    }

    fn over(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.sessions.remove(self.lease);
            shared.late.lease_ended(self.lease);
        }
    }
}
