//! Everything of a store that its handles share: sessions, tickets, watches; and the tasks that
//! look after them, on a thread of their own, where no busy program holds them up.

use super::hub::{Hub, News, Watching};
use super::line;
use super::proto::{self, TxnAnswer};
use super::record::Record;
use super::session::{Session, seconds_for};
use super::swap::Exits;
use super::wire::Wire;
use crate::clock;
use crate::error::Result;
use crate::store::TicketId;
use crate::stores::background::{Bell, runtime};
use holdline_kernel::Time;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// What the handles of one store share.
#[derive(Debug)]
pub(super) struct House {
    pub(super) wire: Arc<Wire>,
    pub(super) hub: Arc<Hub>,
    /// By the seconds that were asked for, with the time since when nobody has used it.
    sessions: Mutex<HashMap<u64, Lodging>>,
    /// One is granted at a time, or many would be at the start.
    granting: tokio::sync::Mutex<()>,
    records: Mutex<HashMap<TicketId, Arc<Record>>>,
    pub(super) exits: Exits,
    /// Watches over keys that must not come (again), but might.
    ghosts: Mutex<VecDeque<Watching>>,
    /// Tickets that have lapsed. Their keys are on their way out, perhaps more than once: whoever
    /// still asks for one must come back with another, or it would lose what it is given.
    lapsed: Mutex<VecDeque<TicketId>>,
    pub(super) alarm: Bell,
    /// There is something to look after.
    nudge: Arc<Notify>,
}

#[derive(Debug)]
struct Lodging {
    session: Arc<Session>,
    idle: Option<Time>,
}

/// How often tickets are looked after.
const ROUND: Duration = Duration::from_millis(200);
/// So many keys are watched one by one.
const FEW: usize = 4;
/// How long a lease that nobody uses is kept for the next who needs one.
const IDLE: Duration = Duration::from_secs(20);
/// So many tickets that lapsed are kept in mind.
const LAPSED: usize = 512;
/// So many ghosts are watched for.
const GHOSTS: usize = 4096;

/// The runtime of all etcd stores of this process. Opening a store makes it, or fails.
pub(super) fn start() -> Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    runtime(&HANDLE, "etcd")
}

fn background() -> &'static Handle {
    start().expect("it was started when the store was opened")
}

impl House {
    pub(super) fn new(wire: Wire) -> Arc<Self> {
        let wire = Arc::new(wire);
        let hub = Hub::new(Arc::clone(&wire));
        background().spawn(Hub::run(Arc::downgrade(&hub)));
        let house = Arc::new(House {
            wire,
            hub,
            sessions: Mutex::default(),
            granting: tokio::sync::Mutex::new(()),
            records: Mutex::default(),
            exits: Exits::default(),
            ghosts: Mutex::default(),
            lapsed: Mutex::default(),
            alarm: Bell::default(),
            nudge: Arc::default(),
        });
        background().spawn(steward(Arc::downgrade(&house), Arc::clone(&house.nudge)));
        house
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Lodging>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn records(&self) -> MutexGuard<'_, HashMap<TicketId, Arc<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, id: TicketId) -> Option<Arc<Record>> {
        self.records().get(&id).cloned()
    }

    pub(super) fn remember(&self, record: &Arc<Record>) {
        let mut records = self.records();
        let first = records.is_empty();
        records.insert(record.id, Arc::clone(record));
        drop(records);
        if first {
            self.nudge.notify_one();
        }
    }

    /// A place is gone for certain, or was never written.
    pub(super) fn forget(&self, record: &Record) {
        let forgotten = self.records().remove(&record.id);
        let Some(record) = forgotten else { return };
        let (watches, slot, doubtful) = {
            let mut place = record.place();
            (std::mem::take(&mut place.watches), place.slot.take(), place.doubtful)
        };
        drop(watches);
        if doubtful && let Some(slot) = slot {
            slot.retire();
        }
    }

    /// A living session for locks of this lease, in lines like the one with this prefix.
    pub(super) async fn session(
        self: &Arc<Self>,
        lease: Duration,
        prefix: &[u8],
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = seconds_for(lease);
        if let Some(session) = self.living(seconds) {
            return Ok(session);
        }
        let _turn = self.granting.lock().await;
        if let Some(session) = self.living(seconds) {
            return Ok(session);
        }
        let session = Arc::new(Session::grant(&self.wire, seconds, prefix, limit).await?);
        let lodging = Lodging { session: Arc::clone(&session), idle: None };
        self.sessions().insert(seconds, lodging);
        let (hub, house) = (Arc::downgrade(&self.hub), Arc::downgrade(self));
        let turned = move || {
            if let Some(hub) = hub.upgrade() {
                hub.restart();
            }
        };
        let lease = session.lease;
        let lost = move || {
            if let Some(house) = house.upgrade() {
                house.evicted(lease);
            }
        };
        background().spawn(Arc::clone(&session).run(Arc::clone(&self.wire), turned, lost));
        self.nudge.notify_one();
        Ok(session)
    }

    fn living(&self, seconds: u64) -> Option<Arc<Session>> {
        let mut sessions = self.sessions();
        let lodging = sessions.get_mut(&seconds)?;
        if lodging.session.is_lost() {
            sessions.remove(&seconds);
            return None;
        }
        lodging.idle = None;
        Some(Arc::clone(&lodging.session))
    }

    /// Finds out which leases are gone, after the server has said that one is.
    pub(super) async fn find_out(&self) {
        let all: Vec<_> =
            self.sessions().values().map(|lodging| Arc::clone(&lodging.session)).collect();
        for session in all {
            if !session.is_alive().await {
                self.evicted(session.lease);
            }
        }
    }

    /// A lease is gone, and with it all places that were on it.
    pub(super) fn evicted(&self, lease: i64) {
        self.sessions().retain(|_, lodging| lodging.session.lease != lease);
        let records: Vec<_> = self.records().values().cloned().collect();
        let theirs = records.iter().filter(|record| record.place().session.lease == lease);
        theirs.for_each(|record| record.lose(&self.alarm.0));
    }

    /// Watches over a key that was given up while a request to write it may still be on its way
    /// (in a member that was stopped, say), and deletes it if it comes.
    pub(super) fn haunt(self: &Arc<Self>, key: &[u8], from: i64) {
        let house = Arc::downgrade(self);
        let ghost = key.to_vec();
        let ear = move |news: News<'_>| {
            let came = match news {
                News::Event(event) => event.kind != proto::DELETED,
                News::Gap => true,
                News::From(_) => false,
            };
            if let Some(house) = house.upgrade().filter(|_| came) {
                let delete = line::delete(&ghost, 0);
                background().spawn(async move {
                    tracing::warn!("a request arrived after its lock was given up; undone");
                    let wire = Arc::clone(&house.wire);
                    let limit = Duration::from_secs(1);
                    let _ = wire.call::<_, TxnAnswer>(proto::TXN, &delete, limit).await;
                });
            }
        };
        let watching = self.hub.watch(key, Vec::new(), from, Box::new(ear));
        let mut ghosts = self.ghosts.lock().unwrap_or_else(PoisonError::into_inner);
        ghosts.push_back(watching);
        let oldest = (ghosts.len() > GHOSTS).then(|| ghosts.pop_front());
        drop(ghosts);
        drop(oldest);
    }

    /// Watches a ticket's own key, so that its loss is known.
    pub(super) fn guard(&self, record: &Arc<Record>) {
        let (key, from) = {
            let mut place = record.place();
            let there = place.create != 0 && place.admitted && !place.gone && !place.leaving;
            if place.watched == 1 || !there {
                return;
            }
            place.watched = 1;
            (place.key.clone(), place.create + 1)
        };
        let watching = self.hub.watch(&key, Vec::new(), from, self.ear(record));
        let ended = std::mem::replace(&mut record.place().watches, vec![watching]);
        drop(ended);
    }

    /// Watches a ticket's own key and those ahead of it.
    pub(super) fn listen(&self, record: &Arc<Record>) {
        let (own, create, seen, ahead) = {
            let mut place = record.place();
            if place.watched == 2 || place.create == 0 || place.gone || place.admitted {
                return;
            }
            place.watched = 2;
            let ahead: Vec<_> = place.ahead.keys().take(FEW + 1).cloned().collect();
            (place.key.clone(), place.create, place.seen, ahead)
        };
        let watch = |key: &[u8], end| self.hub.watch(key, end, 0, self.ear(record));
        let watches = if ahead.len() > FEW {
            // The whole line at once, with itself in it.
            vec![watch(&record.prefix, line::end(&record.prefix))]
        } else if record.capacity == 1 {
            // Whoever is ahead can do nothing but go.
            let watch = |key: &[u8]| self.hub.watch_out(key, seen, 0, self.ear(record));
            let own = self.hub.watch_out(&own, create, create + 1, self.ear(record));
            ahead.iter().map(|key| watch(key)).chain([own]).collect()
        } else {
            let own = self.hub.watch(&own, Vec::new(), create + 1, self.ear(record));
            ahead.iter().map(|key| watch(key, Vec::new())).chain([own]).collect()
        };
        let ended = std::mem::replace(&mut record.place().watches, watches);
        drop(ended);
    }

    fn ear(&self, record: &Arc<Record>) -> super::hub::Ear {
        let (record, alarm) = (Arc::downgrade(record), self.alarm.clone());
        Box::new(move |news| {
            if let Some(record) = record.upgrade() {
                record.hear(&news, &alarm.0);
            }
        })
    }

    /// Lets lapse what nobody wants any more, watches what has been held for a while, and gives
    /// leases back that nobody uses.
    fn round(self: &Arc<Self>) {
        let now = clock::now();
        let records: Vec<_> = self.records().values().cloned().collect();
        for record in records {
            if record.lapse(now, &self.alarm.0) {
                self.bury(record.id);
                let house = Arc::clone(self);
                background().spawn(async move { house.sweep(record).await });
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
        self.hub.tidy();
        let mut sessions = self.sessions();
        sessions.retain(|_, lodging| {
            // The table has it, and its task.
            if Arc::strong_count(&lodging.session) > 2 {
                lodging.idle = None;
                return true;
            }
            let since = *lodging.idle.get_or_insert(now);
            let keep = since.until(now) < IDLE && !lodging.session.is_lost();
            if !keep {
                lodging.session.end();
            }
            keep
        });
    }

    fn bury(&self, id: TicketId) {
        let mut lapsed = self.lapsed.lock().unwrap_or_else(PoisonError::into_inner);
        if !lapsed.contains(&id) {
            lapsed.push_back(id);
        }
        if lapsed.len() > LAPSED {
            lapsed.pop_front();
        }
    }

    /// Whether a ticket has lapsed not long ago.
    pub(super) fn has_lapsed(&self, id: TicketId) -> bool {
        self.lapsed.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Removes the key of a ticket that has lapsed.
    async fn sweep(self: Arc<Self>, record: Arc<Record>) {
        let (key, create, doubtful) = {
            let place = record.place();
            (place.key.clone(), place.create, place.doubtful)
        };
        let delete = line::delete(&key, create);
        let limit = Duration::from_secs(1);
        match self.wire.call::<_, TxnAnswer>(proto::TXN, &delete, limit).await {
            Ok(answer) => {
                if doubtful {
                    self.haunt(&key, answer.body.header.unwrap_or_default().revision + 1);
                }
                self.forget(&record);
            }
            // The next round tries again.
            Err(error) => {
                tracing::debug!(%error, name = %record.line, "a place that lapsed is still there");
                record.place().leaving = false;
            }
        }
    }
}

/// Makes the rounds, until the store is dropped.
async fn steward(house: Weak<House>, nudge: Arc<Notify>) {
    loop {
        {
            let Some(house) = house.upgrade() else { return };
            house.round();
            if house.records().is_empty() && house.sessions().is_empty() {
                drop(house);
                nudge.notified().await;
                continue;
            }
        }
        tokio::time::sleep(ROUND).await;
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for lodging in self.sessions().values() {
            lodging.session.end();
        }
        self.nudge.notify_one();
    }
}
