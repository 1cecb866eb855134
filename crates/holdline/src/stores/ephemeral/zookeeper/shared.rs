//! What the handles of a ZooKeeper store share: the session, and tickets.

use super::address::Address;
use super::cleanup::Cleanup;
use super::errors::{self, ZkError};
use super::orphans::{self, Looks};
use super::others;
use super::ticket_record::{NodeEntry, Record};
use super::ticket_watch;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::ephemeral::backend::Backend;
use crate::stores::ephemeral::engine::{self, TICK};
use crate::stores::ephemeral::table::Table;
use crate::stores::runtime::Background;
use crate::sync::Mutex;
use holdline_kernel::Time;
use holdline_zookeeper_client::{Acl, Config, Listener, Past, Session, longest_lease};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The part of a store that its handles share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: Address,
    config: Config,
    session_slot: Mutex<SessionSlot>,
    /// How often it was tried to open a session.
    opened: watch::Sender<u64>,
    pub(super) table: Table<NodeEntry>,
    /// Where it is told what becomes of the tickets' own nodes.
    pub(super) listener: Listener,
    pub(super) cleanup: Cleanup,
    pub(super) looks: Looks,
    /// The store on whose session observers listen: a server goes on telling a session of what was
    /// once observed, and that must not be the one that keeps locks.
    pub(super) observing: OnceLock<Arc<Shared>>,
    /// The number of observers that listen on this session.
    pub(super) observers: AtomicUsize,
    /// The number of held tickets that wanted a patrol in this tick.
    patrols: AtomicU32,
}

/// Where the session is.
#[derive(Debug, Default)]
struct SessionSlot {
    session: Option<Arc<Session>>,
    /// One is being opened.
    opening: bool,
    /// How that went before.
    past: Past,
    /// Why the last could not be opened.
    failure: Option<ZkError>,
    /// The time since when it is not used.
    idle: Option<Time>,
}

/// The time for which a session that is not used is kept.
const IDLE: Duration = Duration::from_secs(20);

/// The number of acquisitions of which it may be unknown at once what became of them.
const ENTERING: usize = 256;

/// The runtime of all ZooKeeper stores of this process.
pub(super) static BACKGROUND: Background = Background::new("zookeeper");

impl Shared {
    /// # Errors
    ///
    /// If a certificate or a host of the address cannot be used, or the system gives no thread.
    pub(super) fn new(address: Address) -> Result<Arc<Self>> {
        let config = address.config()?;
        BACKGROUND.start()?;
        let (listener, told) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            address,
            config,
            session_slot: Mutex::default(),
            opened: watch::Sender::new(0),
            table: Table::new(ENTERING),
            listener,
            cleanup: Cleanup::default(),
            looks: Looks::default(),
            observing: OnceLock::new(),
            observers: AtomicUsize::new(0),
            patrols: AtomicU32::new(0),
        });
        BACKGROUND.spawn(ticket_watch::hear(Arc::downgrade(&shared), told));
        engine::start_janitor(&shared);
        Ok(shared)
    }

    /// The error for the caller.
    pub(super) fn error(&self, error: ZkError) -> Error {
        errors::error(&self.address, error)
    }

    /// The access list of our nodes.
    pub(super) fn acl(&self) -> Acl {
        if self.address.servers.user.is_some() && self.address.private {
            Acl::Creator
        } else {
            Acl::Anyone
        }
    }

    /// The session, if it lives.
    fn living(&self) -> Option<Arc<Session>> {
        let mut slot = self.session_slot.lock();
        let session = slot.session.as_ref().filter(|session| !session.is_lost()).cloned();
        slot.idle = None;
        session
    }

    /// The session; a new one if there is none. That is opened in the background, so that it is
    /// completed even if its callers give up.
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
            let failure = self.session_slot.lock().failure.clone().unwrap_or(ZkError::Timeout);
            let absent =
                matches!(failure, ZkError::NoHosts | ZkError::NoAddress | ZkError::Stranger(..));
            let error = self.error(failure);
            // Retry until the deadline if a server may be starting; fail fast if all refused the
            // connection, or have no address.
            if absent || error.kind() != ErrorKind::Unavailable || clock::now() >= over {
                return Err(error);
            }
            clock::pause(Duration::from_millis(fastrand::u64(20..60))).await;
        }
    }

    /// Opens a session in the background, unless that is under way.
    fn open(self: &Arc<Self>) {
        let past = {
            let mut slot = self.session_slot.lock();
            if slot.opening {
                return;
            }
            slot.opening = true;
            slot.past
        };
        let shared = Arc::clone(self);
        BACKGROUND.spawn(async move {
            let outcome = Session::open(&shared.config, past).await;
            {
                let mut slot = shared.session_slot.lock();
                slot.opening = false;
                match outcome {
                    Ok(session) => {
                        let session = Arc::new(session);
                        slot.failure = None;
                        slot.past = Past { reached: true, tries: 0 };
                        shared.looks.begin();
                        slot.session = Some(Arc::clone(&session));
                        let shared = Arc::downgrade(&shared);
                        let lost = move |id| {
                            if let Some(shared) = shared.upgrade() {
                                shared.expired(id);
                            }
                        };
                        BACKGROUND.spawn(session.run(lost));
                    }
                    Err(error) => {
                        slot.past.tries += u32::from(error != ZkError::NoHosts);
                        slot.failure = Some(error);
                    }
                }
            }
            shared.opened.send_modify(|count| *count += 1);
            shared.table.nudge.notify_one();
        });
    }

    /// A session is over, and with it all places that were on it.
    pub(super) fn expired(&self, id: i64) {
        {
            let mut slot = self.session_slot.lock();
            if let Some(session) = slot.session.take_if(|session| session.id == id) {
                session.lose();
            }
        }
        let now = clock::now();
        for record in self.table.lose_all(|record| record.base.session.id == id) {
            record.place().abandon(now);
            self.table.look_soon(record.id);
        }
    }

    /// Refuses a lease for which a session cannot vouch.
    pub(super) fn check_lease(&self, session: &Session, lease: Duration) -> Result<()> {
        let (longest, address) = (longest_lease(session.length), &self.address);
        if lease <= longest {
            return Ok(());
        }
        let message = format!(
            "a lease of {lease:?} is refused: {address} gives sessions of {:?}, which keep locks \
             for {longest:?}; ask for a shorter lease, or raise maxSessionTimeout of the servers",
            session.length
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Takes in how a request failed.
    pub(super) fn failed(&self, session: &Session, error: &ZkError) {
        if error.is_over() {
            session.fail(error);
            self.expired(session.id);
        }
    }

    /// Takes in how a request failed, and returns the error for the caller.
    pub(super) fn failure(&self, session: &Session, error: ZkError) -> Error {
        self.failed(session, &error);
        self.error(error)
    }
}

impl Backend for Shared {
    type Entry = NodeEntry;

    fn table(&self) -> &Table<NodeEntry> {
        &self.table
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        BACKGROUND.spawn(task);
    }

    fn limit(lease: Duration) -> Duration {
        (lease / 4).clamp(Duration::from_millis(250), Duration::from_secs(3))
    }

    /// Watches the ticket's own node, and looks now and then whether clients have come that do not
    /// see it: for one ticket in a tick, so that many locks cost no more than a few.
    fn look_after(self: &Arc<Self>, record: &Record, now: Time) -> Time {
        record.guard(&self.listener);
        let due = record.place().patrol(now);
        if due > now {
            return due;
        }
        let before = self.patrols.fetch_add(1, Ordering::Relaxed);
        if before > 0 {
            return now.after(TICK * before);
        }
        let next = record.place().patrolled(now);
        BACKGROUND.spawn(others::patrol(Arc::downgrade(self), Arc::clone(record)));
        next
    }

    /// Looks for nodes without a ticket, and ends a session that is not used.
    fn look_around(self: &Arc<Self>, now: Time) -> bool {
        self.patrols.store(0, Ordering::Relaxed);
        let mut slot = self.session_slot.lock();
        if let Some(session) = slot.session.as_ref().filter(|_| self.looks.is_due(now)) {
            BACKGROUND.spawn(orphans::look(Arc::downgrade(self), Arc::clone(session)));
        }
        let is_used = !self.table.is_empty() || self.observers.load(Ordering::Acquire) > 0;
        if is_used || slot.opening {
            slot.idle = None;
        } else if now >= slot.idle.get_or_insert(now).after(IDLE)
            && let Some(session) = slot.session.take()
        {
            session.end();
        }
        slot.session.is_none()
    }

    fn watch_ahead(self: &Arc<Self>, record: &Record) {
        record.listen();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(session) = &self.session_slot.lock().session {
            session.end();
        }
        self.table.nudge.notify_one();
    }
}
