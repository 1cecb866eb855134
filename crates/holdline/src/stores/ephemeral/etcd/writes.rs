//! Writes of keys with an unknown outcome, and those that may arrive late.
//!
//! An acquisition may be dropped at any moment, even while its request is in transit. The answer is
//! awaited all the same, in the background: once it is here nothing can arrive late, so the key can
//! be deleted for good. Only a request that is never answered leaves a doubt behind (say, because a
//! stopped member has it). Then the key is watched, and deleted if it is created, until the leases
//! that the request named are gone.

use super::layout;
use super::session::Session;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::{Record, TicketRecord};
use crate::clock;
use crate::stores::ephemeral::ticket::State;
use crate::sync::{Mutex, contained};
use holdline_etcd_client::{
    News, PendingWrite, Watching,
    proto::{self, Delete},
};
use holdline_kernel::Backoff;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One write in progress, shared by the caller and the task that awaits its answers.
#[derive(Debug)]
pub(super) struct Flight {
    record: Record,
    /// The session whose lease the write names, and perhaps another one.
    session: Arc<Session>,
    other: Option<Arc<Session>>,
    /// Attempts without an answer: they may still be carried out.
    lost: AtomicUsize,
}

impl Flight {
    /// A write of a key with the lease of its record, or with the other one. `None` if the ticket
    /// was given up meanwhile: its slot may be free, and its key another ticket's.
    pub(super) fn new(record: &Record, other: Option<&Arc<Session>>) -> Option<Arc<Self>> {
        let other = other.cloned();
        let session = record.with(|place| {
            if matches!(place.state, State::Lapsed | State::Leaving { .. }) {
                return None;
            }
            let session = Arc::clone(&place.entry.session);
            let leases = [&session].into_iter().chain(&other).map(|session| session.lease.id());
            place.entry.flights.extend(leases);
            place.entry.sent = Some(clock::now());
            Some(session)
        })?;
        let (record, lost) = (Arc::clone(record), AtomicUsize::new(0));
        Some(Arc::new(Flight { record, session, other, lost }))
    }

    fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        [&self.session].into_iter().chain(&self.other)
    }

    fn leases(&self) -> impl Iterator<Item = i64> {
        self.sessions().map(|session| session.lease.id())
    }
}

impl PendingWrite for Flight {
    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    fn find(&self) {
        self.record.place().entry.unread = true;
        self.lost.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let lost = *self.lost.get_mut() > 0;
        self.record.with(|place| {
            for lease in self.leases() {
                let at = place.entry.flights.iter().position(|other| *other == lease);
                at.map(|at| place.entry.flights.swap_remove(at));
            }
            if lost {
                place.doubtful = true;
                // A late write succeeds only while its lease lives.
                place.entry.doubts.extend(self.leases());
                self.sessions().for_each(|session| session.taint());
            }
        });
        self.record.base.landed.notify_waiters();
    }
}

/// One write that changes an existing key, and perhaps moves it to another lease. Unless it is
/// answered, the key may be on either lease, so the record keeps both sessions.
pub(super) struct Move<'a> {
    record: &'a TicketRecord,
    session: &'a Arc<Session>,
    /// The revision of the write that it replaces.
    pub(super) last: i64,
    answered: bool,
}

impl<'a> Move<'a> {
    pub(super) fn new(record: &'a TicketRecord, session: &'a Arc<Session>) -> Self {
        Move { record, session, last: record.place().entry.written, answered: false }
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.record.with(|place| {
            let moves = &mut place.entry.moves;
            moves.retain(|(_, session)| !Arc::ptr_eq(session, self.session));
            moves.push((self.last, Arc::clone(self.session)));
        });
    }
}

/// The keys that are watched.
#[derive(Debug, Default)]
pub(super) struct Late(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// The leases that the server may have.
    leases: HashSet<i64>,
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The leases that a late write may name.
    leases: Vec<i64>,
    /// Dropped to stop the watch.
    _watching: Watching,
}

/// The most keys that are watched.
const MOST: usize = 4096;

impl Late {
    fn push(&self, mut entry: Entry) {
        let mut watched = self.0.lock();
        let Watched { leases, entries } = &mut *watched;
        entry.leases.retain(|lease| leases.contains(lease));
        // No write can arrive if all of its leases are gone by now.
        let unwanted = if entry.leases.is_empty() {
            Some(entry)
        } else {
            entries.push_back(entry);
            (entries.len() > MOST).then(|| entries.pop_front()).flatten()
        };
        drop(watched);
        drop(unwanted);
    }

    pub(super) fn lease_began(&self, lease: i64) {
        self.0.lock().leases.insert(lease);
    }

    /// Writes on a lease cannot arrive any more once the lease is gone.
    pub(super) fn lease_ended(&self, lease: i64) {
        let mut watched = self.0.lock();
        let Watched { leases, entries } = &mut *watched;
        leases.remove(&lease);
        for entry in entries.iter_mut() {
            entry.leases.retain(|other| *other != lease);
        }
        let (over, rest) = entries.drain(..).partition(|entry: &Entry| entry.leases.is_empty());
        *entries = rest;
        drop(watched);
        drop::<VecDeque<Entry>>(over);
    }
}

/// Deletes a key that was written late, however long that takes. If it is refused, less and less
/// often.
async fn undo(shared: Weak<Shared>, removal: Delete) {
    contained(|| tracing::warn!("a request arrived after its lock was given up; it is undone"));
    let (limit, mut refusals) = (Duration::from_secs(1), 0);
    let pauses = Backoff::exponential(limit, limit * 30).jitter(50);
    while let Some(shared) = shared.upgrade() {
        let Err(error) = shared.delete(&removal, limit).await else { return };
        contained(|| tracing::debug!(%error, "a late key is still there"));
        drop(shared);
        clock::pause(pauses.pause(refusals, fastrand::u64(..))).await;
        refusals += u32::from(!error.retryable());
    }
}

impl Shared {
    /// Watches a ticket's key from this revision on.
    pub(super) fn watch_late(self: &Arc<Self>, record: &TicketRecord, from: i64) {
        let (key, leases) =
            record.with(|place| (place.entry.key.clone(), place.entry.doubts.clone()));
        let (shared, late) = (Arc::downgrade(self), key.clone());
        let callback = move |news: News<'_>| {
            let came = match news {
                News::Event(event) => event.kind != proto::DELETED,
                News::Gap => true,
                News::From(_) | News::Silence => false,
            };
            if let Some(shared) = shared.upgrade().filter(|_| came) {
                BACKGROUND.spawn(undo(Arc::downgrade(&shared), layout::removal(&late)));
            }
        };
        let watching = self.watcher.watch(&key, Vec::new(), from, Box::new(callback));
        self.late.push(Entry { leases, _watching: watching });
    }
}
