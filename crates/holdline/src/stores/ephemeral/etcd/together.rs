//! Batching of the waiters' regular checks.
//!
//! A waiter checks about once a second whether anything has changed, whatever news come. etcd takes
//! little longer for a transaction that compares a hundred keys than for one that compares two. So
//! checks made within a moment are sent as one transaction; each waiter asks alone only if the
//! answer is not that nothing has changed.

use super::layout;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::Record;
use crate::clock;
use crate::stores::ephemeral::backend::Request;
use crate::sync::Mutex;
use holdline_etcd_client::proto::{Compare, Txn};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long checks are collected.
const MOMENT: Duration = Duration::from_millis(50);
/// A waiter with a lease below this does not wait for others.
const LONG: Duration = Duration::from_secs(1);
/// The most comparisons in a transaction. A server's default limit is 128.
const MOST: usize = 100;

/// The checks that are being collected.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<Option<Batch>>);

#[derive(Debug)]
struct Batch {
    txn: Txn,
    limit: Duration,
    /// Sends the revision at which nothing had changed; dropped if that is unknown.
    unchanged: watch::Sender<Option<i64>>,
}

impl Shared {
    /// Whether nothing has changed for a waiter. Unknown if the waiter is unsure, if news come, or
    /// if another waiter's line has changed: then it must ask alone.
    pub(super) async fn is_unchanged(
        self: &Arc<Self>,
        record: &Record,
        request: &Request<'_>,
    ) -> bool {
        let (unsure, missed, (ahead, seen)) = record.with(|place| {
            let blockers = place.entry.view.blockers(place.weight, record.capacity);
            (place.is_unsure(), place.missed(), blockers)
        });
        if unsure || ahead.is_empty() || request.ticket.wait_lease < LONG {
            return false;
        }
        let (key, create) = record.key();
        let as_seen = ahead.iter().flat_map(|key| layout::is_as_at(key, seen));
        let compare = as_seen.chain([layout::created_at(&key, create)]).collect();
        let revision = tokio::select! {
            revision = self.ask_together(&key, compare, request.limit) => revision,
            () = record.news.notified() => None,
        };
        if let Some(revision) = revision {
            record.with(|place| {
                place.entry.view.unchanged_at(revision);
                place.answered(missed);
            });
        }
        revision.is_some()
    }

    /// The revision at which all of these comparisons held, if they did, together with those of
    /// others.
    async fn ask_together(
        self: &Arc<Self>,
        own: &[u8],
        compare: Vec<Compare>,
        limit: Duration,
    ) -> Option<i64> {
        let mut unchanged = {
            let mut gathered = self.questions.0.lock();
            let is_full = |batch: &mut Batch| batch.txn.compare.len() + compare.len() > MOST;
            if let Some(full) = gathered.take_if(is_full) {
                BACKGROUND.spawn(Arc::clone(self).ask_for_all(full));
            }
            let batch = gathered.get_or_insert_with(|| {
                BACKGROUND.spawn(Arc::clone(self).ask_soon());
                Batch::new(own, limit)
            });
            batch.txn.compare.extend(compare);
            batch.limit = batch.limit.min(limit);
            batch.unchanged.subscribe()
        };
        unchanged.wait_for(Option::is_some).await.ok().and_then(|revision| *revision)
    }

    /// Sends the checks collected in a moment. If they were sent already, the next ones go out a
    /// little earlier than they might.
    async fn ask_soon(self: Arc<Self>) {
        clock::pause(MOMENT).await;
        let gathered = self.questions.0.lock().take();
        if let Some(batch) = gathered {
            self.ask_for_all(batch).await;
        }
    }

    async fn ask_for_all(self: Arc<Self>, batch: Batch) {
        match self.txn(&batch.txn, batch.limit).await {
            Ok(found) if found.succeeded => {
                batch.unchanged.send_replace(Some(found.revision));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "waiters ask by themselves"),
        }
    }
}

impl Batch {
    fn new(own: &[u8], limit: Duration) -> Self {
        // It reads a key, because a member answers comparisons alone from its local state, which
        // may be stale.
        let success = vec![layout::look(layout::one(own))];
        let txn = Txn { success, ..Txn::default() };
        Batch { txn, limit, unchanged: watch::Sender::new(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline_etcd_client::proto::Op;

    #[test]
    fn an_answer_is_the_clusters_and_not_one_members() {
        let batch = Batch::new(b"x/1", Duration::from_secs(1));
        let read = batch.txn.success.first().and_then(|part| part.op.as_ref());
        assert!(matches!(read, Some(Op::Range(_))));
    }
}
