//! A request to write a ticket's key, from before it is sent until its answer is known.
//!
//! An acquisition may be dropped at any moment, also while its request is on the way. The answer is
//! awaited all the same, in the background: once it is here nothing can come any more, so that the
//! key can be deleted for good. Only a request that is never answered leaves a doubt behind.

use super::session::Session;
use super::ticket_record::TicketRecord;
use holdline_etcd_client::PendingWrite;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One write under way; shared by the caller and by whatever awaits its answers.
#[derive(Debug)]
pub(super) struct Flight {
    record: Arc<TicketRecord>,
    /// The leases that it names.
    sessions: Vec<Arc<Session>>,
    /// Tries that went out and have no answer: they may still be carried out.
    lost: AtomicUsize,
}

impl Flight {
    /// A write of a key with the lease of its record, or with the other one.
    pub(super) fn new(record: &Arc<TicketRecord>, other: Option<&Arc<Session>>) -> Arc<Self> {
        let mut sessions: Vec<_> = other.cloned().into_iter().collect();
        {
            let mut place = record.place();
            place.entry.flights += 1;
            place.entry.sent = true;
            sessions.push(Arc::clone(&place.entry.session));
        }
        Arc::new(Flight { record: Arc::clone(record), sessions, lost: AtomicUsize::new(0) })
    }
}

impl PendingWrite for Flight {
    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    fn find(&self) {
        self.lost.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let lost = *self.lost.get_mut() > 0;
        {
            let mut place = self.record.place();
            place.entry.flights -= 1;
            if lost {
                place.doubtful = true;
                // What may come late does so only while its lease lives.
                place.entry.doubts.extend(self.sessions.iter().map(|session| session.lease.id()));
                self.sessions.iter().for_each(|session| session.taint());
            }
        }
        self.record.base.landed.notify_waiters();
    }
}
