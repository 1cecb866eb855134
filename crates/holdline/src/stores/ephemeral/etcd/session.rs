//! One lease in etcd, which all locks of the process with the same length of lease share.
//!
//! So entering and keeping a lock say nothing about time to the server: both are answered from the
//! last heartbeat of the lease that it confirmed.

use super::shared::Shared;
use super::slot::Slots;
use holdline_etcd_client::{Lease, LeaseUser};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A lease, and the places on it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: Arc<Lease>,
    /// A write that named it was never answered, so it is not for new places any more.
    tainted: AtomicBool,
    pub(super) slots: Arc<Slots>,
}

impl Session {
    pub(super) fn new(lease: Lease) -> Self {
        let slots = Arc::default();
        Session { lease: Arc::new(lease), tainted: AtomicBool::new(false), slots }
    }

    /// Keeps new places from it: it is given back when the last of the old ones is gone, which
    /// voids all writes with it that are still on their way.
    pub(super) fn taint(&self) {
        self.tainted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Relaxed)
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
        // The table has it; any other reference is a use.
        self.session.strong_count() > 1
    }

    fn turned(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.watcher.restart();
        }
    }

    fn lost(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.evicted(self.lease);
        }
    }

    fn over(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.sessions.remove(self.lease);
            shared.late.lease_ended(self.lease);
        }
    }
}
