//! Everything of a store that its handles share: the session, tickets, watches; and the tasks that
//! look after them, on a thread of their own, where no busy program holds them up.

use super::address::Address;
use super::cleanup::{self, Cleanup};
use super::errors::{self, ZkError};
use super::jute::Acl;
use super::orphans;
use super::others;
use super::session::Session;
use super::ticket_record::TicketRecord;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::TicketId;
use crate::stores::runtime::{LossHandler, runtime};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// What the handles of one store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: Address,
    session_slot: Mutex<SessionSlot>,
    /// How often it was tried to open a session.
    opened: watch::Sender<u64>,
    records: Mutex<HashMap<TicketId, Arc<TicketRecord>>>,
    /// There has been a session.
    reached: AtomicBool,
    pub(super) loss_hint: LossHandler,
    pub(super) cleanup: Cleanup,
    /// There is something to look after.
    nudge: Arc<Notify>,
}

/// Where the session is.
#[derive(Debug, Default)]
struct SessionSlot {
    session: Option<Arc<Session>>,
    /// One is being opened.
    opening: bool,
    /// Why the last could not be opened.
    failure: Option<ZkError>,
    /// Since when nobody has needed it.
    idle: Option<Time>,
}

/// How often tickets are looked after.
const TICK: Duration = Duration::from_millis(200);
/// How long a session that nobody uses is kept for the next who needs one.
const IDLE: Duration = Duration::from_secs(20);

/// The runtime of all ZooKeeper stores of this process. Opening a store makes it, or fails.
pub(super) fn start() -> Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    runtime(&HANDLE, "zookeeper")
}

fn background() -> &'static Handle {
    start().expect("it was started when the store was opened")
}

/// Does something in the background.
pub(super) fn spawn(
    work: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    background().spawn(work)
}

/// How long what is asked for a lock of this lease may take.
pub(super) fn limit(lease: Duration) -> Duration {
    (lease / 4).clamp(Duration::from_millis(250), Duration::from_secs(3))
}

impl Shared {
    pub(super) fn new(address: Address) -> Arc<Self> {
        let shared = Arc::new(Shared {
            address,
            session_slot: Mutex::default(),
            opened: watch::Sender::new(0),
            records: Mutex::default(),
            reached: AtomicBool::new(false),
            loss_hint: LossHandler::default(),
            cleanup: Cleanup::default(),
            nudge: Arc::default(),
        });
        spawn(janitor(Arc::downgrade(&shared), Arc::clone(&shared.nudge)));
        shared
    }

    fn session_slot(&self) -> MutexGuard<'_, SessionSlot> {
        self.session_slot.lock()
    }

    pub(super) fn records(&self) -> MutexGuard<'_, HashMap<TicketId, Arc<TicketRecord>>> {
        self.records.lock()
    }

    pub(super) fn find(&self, id: TicketId) -> Option<Arc<TicketRecord>> {
        self.records().get(&id).cloned()
    }

    pub(super) fn remember(&self, record: &Arc<TicketRecord>) {
        let first = {
            let mut records = self.records();
            records.insert(record.id, Arc::clone(record));
            records.len() == 1
        };
        if first {
            self.nudge.notify_one();
        }
    }

    pub(super) fn forget(&self, record: &TicketRecord) {
        {
            let mut records = self.records();
            // There may be a newer one of the same ticket.
            if records.get(&record.id).is_some_and(|found| std::ptr::eq(&raw const **found, record))
            {
                records.remove(&record.id);
            }
        }
        let (watches, permit) = {
            let mut place = record.place();
            (std::mem::take(&mut place.watches), place.permit.take())
        };
        drop((watches, permit));
    }

    /// The error for the caller.
    pub(super) fn error(&self, error: ZkError) -> Error {
        errors::error(&self.address, error)
    }

    /// Who may do what with our nodes.
    pub(super) fn acl(&self) -> Acl {
        if self.address.user.is_some() && self.address.private { Acl::Creator } else { Acl::Anyone }
    }

    /// The session, if it lives.
    fn living(&self) -> Option<Arc<Session>> {
        let mut slot = self.session_slot();
        let session = slot.session.as_ref().filter(|session| !session.is_lost()).cloned();
        slot.idle = None;
        session
    }

    /// The session; a new one if there is none. That is opened in the background, so that nobody's
    /// impatience keeps it from coming about.
    pub(super) async fn session(self: &Arc<Self>, limit: Duration) -> Result<Arc<Session>> {
        let over = clock::now().after(limit);
        loop {
            let mut opened = self.opened.subscribe();
            if let Some(session) = self.living() {
                return Ok(session);
            }
            self.open();
            if clock::within(over, opened.changed()).await.is_none() {
                return Err(self.error(ZkError::Timeout));
            }
            if let Some(session) = self.living() {
                return Ok(session);
            }
            let mut failure = self.session_slot().failure.clone().unwrap_or(ZkError::Timeout);
            let absent = matches!(failure, ZkError::NoHosts | ZkError::Stranger(..));
            if matches!(failure, ZkError::Stranger(..)) && self.reached.load(Ordering::Relaxed) {
                failure = ZkError::ConnectionLoss; // it will be the right one again
            }
            let error = self.error(failure);
            // Who is on its way up is worth the time that there is; who is not there is not.
            if absent || error.kind() != ErrorKind::Unavailable || clock::now() >= over {
                return Err(error);
            }
            clock::pause(Duration::from_millis(fastrand::u64(20..60))).await;
        }
    }

    /// Opens a session in the background, unless that is under way.
    fn open(self: &Arc<Self>) {
        {
            let mut slot = self.session_slot();
            if slot.opening {
                return;
            }
            slot.opening = true;
        }
        let shared = Arc::clone(self);
        spawn(async move {
            let outcome = Session::open(&shared.address).await;
            {
                let mut slot = shared.session_slot();
                slot.opening = false;
                match outcome {
                    Ok(session) => {
                        let session = Arc::new(session);
                        slot.failure = None;
                        shared.reached.store(true, Ordering::Relaxed);
                        slot.session = Some(Arc::clone(&session));
                        let shared = Arc::downgrade(&shared);
                        let lost = move |id| {
                            if let Some(shared) = shared.upgrade() {
                                shared.expired(id);
                            }
                        };
                        spawn(session.run(lost));
                    }
                    Err(error) => slot.failure = Some(error),
                }
            }
            shared.opened.send_modify(|count| *count += 1);
            shared.nudge.notify_one();
        });
    }

    /// A session is over, and with it all places that were on it.
    pub(super) fn expired(&self, id: i64) {
        {
            let mut slot = self.session_slot();
            if let Some(session) = slot.session.take_if(|session| session.id == id) {
                session.lose();
            }
        }
        let records: Vec<_> = self.records().values().cloned().collect();
        let theirs = records.iter().filter(|record| record.session.id == id);
        let now = clock::now();
        for record in theirs {
            record.lose(&self.loss_hint.0);
            record.place().abandon(now);
        }
    }

    /// Takes in how a request failed.
    pub(super) fn failed(&self, session: &Session, error: &ZkError) {
        if errors::is_over(error) {
            session.fail(error);
            self.expired(session.id);
        }
    }

    /// Lets lapse what nobody wants any more, and watches what has stood for a while.
    fn tick(self: &Arc<Self>) {
        let now = clock::now();
        let records: Vec<_> = self.records().values().cloned().collect();
        let nobody = records.is_empty();
        let mut longest: Option<(Time, Arc<TicketRecord>)> = None;
        for record in records {
            if record.lapse(now, &self.loss_hint.0) {
                spawn(cleanup::sweep(Arc::downgrade(self), record));
            } else if !record.place().leaving {
                record.guard(&self.loss_hint.0);
                let since = record.place().patrol_since(now);
                if let Some(since) = since
                    && longest.as_ref().is_none_or(|(first, _)| since < *first)
                {
                    longest = Some((since, record));
                }
            }
        }
        // One at a time, so that many locks cost no more than a few.
        if let Some((_, record)) = longest {
            record.place().patrolled(now);
            spawn(others::patrol(Arc::downgrade(self), record));
        }
        let mut slot = self.session_slot();
        if let Some(session) = slot.session.as_ref().filter(|session| session.wants_look(now)) {
            spawn(orphans::look(Arc::downgrade(self), Arc::clone(session)));
        }
        if !nobody || slot.opening {
            slot.idle = None;
        } else if now >= slot.idle.get_or_insert(now).after(IDLE)
            && let Some(session) = slot.session.take()
        {
            session.end();
        }
    }
}

/// Makes the rounds, until the store is dropped.
async fn janitor(shared: Weak<Shared>, nudge: Arc<Notify>) {
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            shared.tick();
            if shared.records().is_empty() && shared.session_slot().session.is_none() {
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
        if let Some(session) = &self.session_slot().session {
            session.end();
        }
        self.nudge.notify_one();
    }
}
