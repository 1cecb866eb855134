//! Everything of a store that its handles share: sessions, tickets, watches; and the tasks that
//! look after them, on a thread of their own, where no busy program holds them up.

use super::cluster::Cluster;
use super::late::Late;
use super::layout;
use super::recent::Recent;
use super::sessions::Sessions;
use super::ticket_record::TicketRecord;
use super::transfer::Departures;
use super::watcher::Watcher;
use crate::clock;
use crate::error::Result;
use crate::store::TicketId;
use crate::stores::runtime::{LossHandler, runtime};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

/// What the handles of one store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cluster: Arc<Cluster>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) sessions: Sessions,
    /// One is granted at a time, or many would be at the start.
    pub(super) granting: tokio::sync::Mutex<()>,
    records: Mutex<HashMap<TicketId, Arc<TicketRecord>>>,
    pub(super) departures: Departures,
    /// Keys that must not come (again), but might.
    pub(super) late: Late,
    /// Tickets that have lapsed. Their keys are on their way out, perhaps more than once: whoever
    /// still asks for one must come back with another, or it would lose what it is given.
    lapsed: Recent,
    /// Tickets that asked for a place here: those without a record have none in the store.
    pub(super) entered: Recent,
    /// So many tickets may have a key of which it is not known whether it is written.
    pub(super) entering: Arc<Semaphore>,
    /// So many deletions are under way.
    pub(super) leaving: Semaphore,
    /// Our user may see nothing but what is under a lock's own prefix.
    pub(super) narrow: AtomicBool,
    pub(super) loss_hint: LossHandler,
    /// There is something to look after.
    pub(super) nudge: Arc<Notify>,
}

/// How often tickets are looked after.
const TICK: Duration = Duration::from_millis(200);
/// So many keys are watched one by one.
const FEW: usize = 4;
/// So many tickets that lapsed are kept in mind.
const LAPSED: usize = 512;
/// So many tickets that asked are, until they have left.
const ENTERED: usize = 1 << 15;
/// So many requests to write a key are under way at a time. More would wait in the server instead.
const ENTERING: usize = 128;
/// So many deletions.
const LEAVING: usize = 256;

/// The runtime of all etcd stores of this process. Opening a store makes it, or fails.
pub(super) fn start() -> Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    runtime(&HANDLE, "etcd")
}

pub(super) fn background() -> &'static Handle {
    start().expect("it was started when the store was opened")
}

impl Shared {
    pub(super) fn new(cluster: Cluster) -> Arc<Self> {
        let cluster = Arc::new(cluster);
        let watcher = Watcher::new(Arc::clone(&cluster));
        background().spawn(Watcher::run(Arc::downgrade(&watcher)));
        let shared = Arc::new(Shared {
            cluster,
            watcher,
            sessions: Sessions::default(),
            granting: tokio::sync::Mutex::new(()),
            records: Mutex::default(),
            departures: Departures::default(),
            late: Late::default(),
            lapsed: Recent::new(LAPSED),
            entered: Recent::new(ENTERED),
            entering: Arc::new(Semaphore::new(ENTERING)),
            leaving: Semaphore::new(LEAVING),
            narrow: AtomicBool::new(false),
            loss_hint: LossHandler::default(),
            nudge: Arc::default(),
        });
        background().spawn(janitor(Arc::downgrade(&shared), Arc::clone(&shared.nudge)));
        shared
    }

    pub(super) fn records(&self) -> MutexGuard<'_, HashMap<TicketId, Arc<TicketRecord>>> {
        self.records.lock()
    }

    pub(super) fn find(&self, id: TicketId) -> Option<Arc<TicketRecord>> {
        self.records().get(&id).cloned()
    }

    pub(super) fn remember(&self, record: &Arc<TicketRecord>) {
        let mut records = self.records();
        let first = records.is_empty();
        records.insert(record.id, Arc::clone(record));
        drop(records);
        if first {
            self.nudge.notify_one();
        }
    }

    /// A place is gone for certain, or was never written.
    pub(super) fn forget(&self, record: &TicketRecord) {
        let forgotten = self.records().remove(&record.id);
        let Some(record) = forgotten else { return };
        let (watches, slot, doubtful) = {
            let mut place = record.place();
            place.permit = None;
            (std::mem::take(&mut place.watches), place.slot.take(), place.doubtful)
        };
        drop(watches);
        if doubtful && let Some(slot) = slot {
            slot.retire();
        }
    }

    /// Watches a ticket's own key, so that its loss is known.
    pub(super) fn guard(&self, record: &Arc<TicketRecord>) {
        let (key, from) = {
            let mut place = record.place();
            let there = place.create != 0 && place.admitted && !place.gone && !place.leaving;
            if place.watched == 1 || !there {
                return;
            }
            place.watched = 1;
            (place.key.clone(), place.create + 1)
        };
        let watching = self.watcher.watch(&key, Vec::new(), from, self.callback(record));
        let ended = std::mem::replace(&mut record.place().watches, vec![watching]);
        drop(ended);
    }

    /// Watches a ticket's own key and those ahead of it.
    pub(super) fn listen(&self, record: &Arc<TicketRecord>) {
        let (own, create, seen, ahead) = {
            let mut place = record.place();
            if place.watched == 2 || place.create == 0 || place.gone || place.admitted {
                return;
            }
            place.watched = 2;
            let ahead: Vec<_> = place.ahead.keys().take(FEW + 1).cloned().collect();
            (place.key.clone(), place.create, place.seen, ahead)
        };
        let watch = |key: &[u8], end| self.watcher.watch(key, end, 0, self.callback(record));
        let watches = if ahead.len() > FEW {
            // The whole line at once, with itself in it.
            vec![watch(&record.prefix, layout::end(&record.prefix))]
        } else if record.capacity == 1 {
            // Whoever is ahead can do nothing but go.
            let watch = |key: &[u8]| self.watcher.watch_out(key, seen, 0, self.callback(record));
            let own = self.watcher.watch_out(&own, create, create + 1, self.callback(record));
            ahead.iter().map(|key| watch(key)).chain([own]).collect()
        } else {
            let own = self.watcher.watch(&own, Vec::new(), create + 1, self.callback(record));
            ahead.iter().map(|key| watch(key, Vec::new())).chain([own]).collect()
        };
        let ended = std::mem::replace(&mut record.place().watches, watches);
        drop(ended);
    }

    fn callback(&self, record: &Arc<TicketRecord>) -> super::watcher::Callback {
        let (record, loss_hint) = (Arc::downgrade(record), self.loss_hint.clone());
        Box::new(move |news| {
            if let Some(record) = record.upgrade() {
                record.hear(&news, &loss_hint.0);
            }
        })
    }

    /// Lets lapse what nobody wants any more, watches what has been held for a while, and gives
    /// leases back that nobody uses.
    fn tick(self: &Arc<Self>) {
        let now = clock::now();
        let records: Vec<_> = self.records().values().cloned().collect();
        for record in records {
            if record.lapse(now, &self.loss_hint.0) {
                self.lapsed.insert(record.id);
                let shared = Arc::clone(self);
                background().spawn(async move { shared.sweep(record).await });
                continue;
            }
            let held = {
                let place = record.place();
                place.admitted && !place.leaving
            };
            if held {
                self.guard(&record);
            }
        }
        self.watcher.tidy();
        self.sessions.tidy(now, &self.cluster);
    }

    /// Whether a ticket has lapsed not long ago.
    pub(super) fn has_lapsed(&self, id: TicketId) -> bool {
        self.lapsed.contains(id)
    }

    /// Removes the key of a ticket that has lapsed.
    async fn sweep(self: Arc<Self>, record: Arc<TicketRecord>) {
        match self.remove(&record, Duration::from_secs(1)).await {
            Ok(_) => self.forget(&record),
            // The next round tries again.
            Err(error) => {
                tracing::debug!(%error, name = %record.line, "a place that lapsed is still there");
                record.place().leaving = false;
            }
        }
    }
}

/// Makes the rounds, until the store is dropped.
async fn janitor(shared: Weak<Shared>, nudge: Arc<Notify>) {
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            shared.tick();
            if shared.records().is_empty() && shared.sessions.is_empty() {
                drop(shared);
                nudge.notified().await;
                continue;
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sessions.end();
        self.nudge.notify_one();
    }
}
