//! Writes that may arrive late: of keys that were given up while a request to write them was never
//! answered (a member that was stopped has it, say). Each key is watched, and deleted if it comes,
//! until the leases that the request named are gone.

use super::layout;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::TicketRecord;
use crate::sync::Mutex;
use holdline_etcd_client::{
    News, Watching,
    proto::{self, TxnAnswer},
};
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// The keys that are watched.
#[derive(Debug, Default)]
pub(super) struct Late(Mutex<VecDeque<Entry>>);

#[derive(Debug)]
struct Entry {
    /// The leases that it may come with.
    leases: Vec<i64>,
    /// Kept while it is to go on.
    _watching: Watching,
}

/// The number of keys that are watched at most.
const MOST: usize = 4096;

impl Late {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock()
    }

    fn push(&self, entry: Entry) {
        let mut entries = self.entries();
        entries.push_back(entry);
        let oldest = (entries.len() > MOST).then(|| entries.pop_front());
        drop(entries);
        drop(oldest);
    }

    /// What was to be put on a lease does not come any more once that is gone.
    pub(super) fn lease_ended(&self, lease: i64) {
        let mut entries = self.entries();
        entries.iter_mut().for_each(|entry| entry.leases.retain(|other| *other != lease));
        let (over, rest) = entries.drain(..).partition(|entry: &Entry| entry.leases.is_empty());
        *entries = rest;
        drop(entries);
        drop::<VecDeque<Entry>>(over);
    }
}

impl Shared {
    /// Watches a ticket's key from this revision on.
    pub(super) fn watch_late(self: &Arc<Self>, record: &TicketRecord, from: i64) {
        let (key, leases) = {
            let place = record.place();
            (place.entry.key.clone(), place.entry.doubts.clone())
        };
        let (shared, late) = (Arc::downgrade(self), key.clone());
        let callback = move |news: News<'_>| {
            let came = match news {
                News::Event(event) => event.kind != proto::DELETED,
                News::Gap => true,
                News::From(_) => false,
            };
            if let Some(shared) = shared.upgrade().filter(|_| came) {
                let delete = layout::delete(&late, 0);
                BACKGROUND.spawn(async move {
                    tracing::warn!("a request arrived after its lock was given up; undone");
                    let cluster = Arc::clone(&shared.cluster);
                    let limit = Duration::from_secs(1);
                    let _ = cluster.call::<_, TxnAnswer>(proto::TXN, &delete, limit).await;
                });
            }
        };
        let watching = self.watcher.watch(&key, Vec::new(), from, Box::new(callback));
        self.late.push(Entry { leases, _watching: watching });
    }
}
