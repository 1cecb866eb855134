//! The shared state of a ZooKeeper store's handles: the session, and tickets.

use super::address::Address;
use super::cleanup::Cleanup;
use super::errors::{self, ZkError};
use super::orphans::{self, Looks};
use super::others;
use super::ticket_record::{NodeEntry, Record};
use super::ticket_watch;
use super::uncontended::Uncontended;
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

/// The state that a store's handles share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: Address,
    config: Config,
    session_slot: Mutex<SessionSlot>,
    /// The number of attempts to open a session.
    opened: watch::Sender<u64>,
    pub(super) table: Table<NodeEntry>,
    pub(super) uncontended: Uncontended,
    /// Receives the events of the tickets' own nodes.
    pub(super) listener: Listener,
    pub(super) cleanup: Cleanup,
    pub(super) looks: Looks,
    /// The store on whose session observers listen. A server keeps notifying a session of
    /// everything it once observed, and that must not be the session that keeps locks.
    pub(super) observing: OnceLock<Arc<Shared>>,
    /// The number of observers that listen on this session.
    pub(super) observers: AtomicUsize,
    /// The number of held tickets that were due for a check in this tick.
    checks: AtomicU32,
}

/// The slot of the session.
#[derive(Debug, Default)]
struct SessionSlot {
    session: Option<Arc<Session>>,
    /// Whether a session is being opened.
    opening: bool,
    /// The history of earlier sessions.
    past: Past,
    /// Why the last attempt failed.
    failure: Option<ZkError>,
    /// Since when the session has been unused.
    idle: Option<Time>,
}

/// How long an unused session is kept.
const IDLE: Duration = Duration::from_secs(20);

/// The most acquisitions with an unknown outcome at one time.
const ENTERING: usize = 256;

/// The runtime of all ZooKeeper stores of this process.
pub(super) static BACKGROUND: Background = Background::new("zookeeper");

impl Shared {
    /// # Errors
    ///
    /// An error means that a certificate or a host of the address is unusable, or that the system
    /// cannot start a thread.
    pub(super) fn new(address: Address) -> Result<Arc<Self>> {
        let config = address.config()?;
        BACKGROUND.start()?;
        let (listener, events) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            address,
            config,
            session_slot: Mutex::default(),
            opened: watch::Sender::new(0),
            table: Table::new(ENTERING),
            uncontended: Uncontended::default(),
            listener,
            cleanup: Cleanup::default(),
            looks: Looks::default(),
            observing: OnceLock::new(),
            observers: AtomicUsize::new(0),
            checks: AtomicU32::new(0),
        });
        BACKGROUND.spawn(ticket_watch::handle_events(Arc::downgrade(&shared), events));
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

    /// The session, if it is alive.
    fn living(&self) -> Option<Arc<Session>> {
        let mut slot = self.session_slot.lock();
        let session = slot.session.as_ref().filter(|session| !session.is_lost()).cloned();
        slot.idle = None;
        session
    }

    /// The session; a new one if there is none. It is opened in the background, so that opening
    /// completes even if its callers give up.
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
            let hopeless = matches!(
                failure,
                ZkError::NoHosts
                    | ZkError::NoAddress
                    | ZkError::Untrusted(_)
                    | ZkError::UnexpectedServer(..)
            );
            let error = self.error(failure);
            // Retry until the deadline if a server may be starting; fail fast if all refused the
            // connection, have no address, or are not what we look for.
            if hopeless || error.kind() != ErrorKind::Unavailable || clock::now() >= over {
                return Err(error);
            }
            clock::pause(Duration::from_millis(fastrand::u64(20..60))).await;
        }
    }

    /// Opens a session in the background, unless that is in progress.
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
            let opener = Arc::clone(&shared);
            let opening =
                BACKGROUND.spawn(async move { Session::open(&opener.config, past).await });
            // It may panic, say in a subscriber.
            let outcome = opening.await.unwrap_or(Err(ZkError::ConnectionLoss));
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

    /// Handles the end of a session, and with it of all places on it.
    pub(super) fn expired(&self, id: i64) {
        {
            let mut slot = self.session_slot.lock();
            if let Some(session) = slot.session.take_if(|session| session.id == id) {
                session.lose();
            }
        }
        let _ = self.table.lose_all(|record| record.base.session.id == id);
    }

    /// Refuses a lease that the session cannot guarantee.
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

    /// Handles the failure of a request.
    pub(super) fn failed(&self, session: &Session, error: &ZkError) {
        if error.is_over() {
            session.fail(error);
            self.expired(session.id);
        }
    }

    /// Handles the failure of a request, and returns the error for the caller.
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

    /// Watches the ticket's own node, and checks now and then for clients that do not see it: for
    /// one ticket per tick, so that many locks cost no more than a few.
    fn look_after(self: &Arc<Self>, record: &Record, now: Time) -> Time {
        record.guard(&self.listener);
        let due = record.place().next_check(now);
        if due > now {
            return due;
        }
        let before = self.checks.fetch_add(1, Ordering::Relaxed);
        if before > 0 {
            return now.after(TICK * before);
        }
        let next = record.place().checked(now);
        BACKGROUND.spawn(others::check(Arc::downgrade(self), Arc::clone(record)));
        next
    }

    /// Checks for orphans, and ends an unused session.
    fn look_around(self: &Arc<Self>, now: Time) -> bool {
        self.checks.store(0, Ordering::Relaxed);
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::names::Name;
    use crate::store::{Enter, Ticket, TicketId};
    use crate::stores::ephemeral::ticket::tests::ticket;
    use holdline_testkit::{soon, until};

    /// The state of a store at this URL.
    pub(in super::super) fn opened(url: &str) -> Arc<Shared> {
        let rest = url.strip_prefix("zookeeper:").expect("its scheme");
        let address = Address::read("zookeeper", rest).expect("a good URL");
        Shared::new(address).expect("the system has room")
    }

    /// The session ends long before its time, with the data of its server. Nobody renews here, and
    /// nobody asks: the holder is told all the same, and the waiter woken.
    #[tokio::test]
    async fn the_end_of_a_session_is_told_to_all_its_tickets() {
        let Some(mut servers) = holdline_testkit::zookeeper::start(1) else { return };
        let shared = opened(&format!("{}?session=60", servers.url()));
        let (tell, mut told) = mpsc::unbounded_channel();
        shared.table.loss.set(Arc::new(move |id| {
            let _ = tell.send(id);
        }));
        let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
        let lease = Duration::from_secs(40);
        let began = clock::now();
        for id in [1, 2].map(TicketId) {
            let ticket = Ticket { id, lease, wait_lease: lease, ..ticket(1, 1) };
            let enter = || engine::enter(&shared, (&line, &ticket), &note, Enter::Queue);
            until("in the line", async || soon("an answer", enter()).await.is_ok()).await;
        }
        servers.between_lives(|data| std::fs::remove_dir_all(data).expect("it is there"));
        assert_eq!(soon("a hint", told.recv()).await, Some(TicketId(1)));
        soon("a notice", engine::watch(&shared, TicketId(2))).await;
        assert!(began.until(clock::now()) < lease, "their leases are over anyway");
    }
}
