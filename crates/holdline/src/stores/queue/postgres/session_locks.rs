//! The schemes `advisory` and `row`: locks that a session or an open transaction holds, without a
//! queue. The server frees them when the connection ends, and this process is told at once.
//!
//! A call to the server, once begun, is carried to its end on the store's own thread, whatever
//! becomes of the future that asked for it: so it is always known what a connection holds. Locks
//! are tried, never waited for in the server, so that a waiter holds no connection and no
//! snapshot; it is told of a release by a notice, and looks again by itself.

use super::address::{Address, Scheme};
use super::connection::Connection;
use super::encode::{truth, value};
use super::keys::{KeyScheme, native};
use super::listener::Listener;
use super::pool::{Claim, Pool};
use super::schema::{absent, install, statement};
use super::session;
use super::session_sql::{CHANNEL, Kind, Target, as_listener, check_no_pooler};
use crate::clock::{self, within};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueEntry, QueueSnapshot, READ_WRITE, Refusal, Seq,
    Standing, Ticket, TicketId, refuse,
};
use crate::stores::queue::sql::{Fault, SESSION_LOCKS};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// Locks of sessions or of transactions.
#[derive(Clone)]
pub(super) struct SessionLocks(Arc<Shared>);

struct Shared {
    address: Arc<Address>,
    kind: Kind,
    keys: KeyScheme,
    pool: Pool,
    /// For looking at other clients' locks.
    looks: Connection,
    listener: Option<Listener>,
    held: Arc<Held>,
}

/// What this process holds or is about to hold.
#[derive(Default)]
struct Held {
    tickets: Mutex<HashMap<TicketId, Record>>,
    loss_hint: OnceLock<LossHint>,
}

/// A ticket that holds, or whose attempt is under way. Its grant is locked during calls.
#[derive(Clone)]
struct Record {
    target: Target,
    capacity: u32,
    note: Arc<str>,
    grant: Grant,
    /// The number of its connection, once it holds.
    conn: Option<u64>,
}

type Grant = Arc<tokio::sync::Mutex<Option<Granted>>>;

/// A lock that is held.
struct Granted {
    claim: Claim,
    seq: Seq,
    until: Time,
}

/// The most locks on one connection: all sessions of the server share a table of locks.
const LOCKS_EACH: usize = 500;
/// How long a call may take before its connection is closed with all that it holds.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The pause of a waiter that is told of releases, and of one that is not.
const TOLD_PAUSE: Duration = Duration::from_millis(500);
const POLL_PAUSE: Duration = Duration::from_millis(100);

impl SessionLocks {
    pub(super) fn new(address: Address, kind: Kind) -> Self {
        let address = Arc::new(address);
        let held = Arc::new(Held::default());
        let on_end = {
            let held = Arc::downgrade(&held);
            Arc::new(move |conn| held.upgrade().into_iter().for_each(|held| held.ended(conn)))
        };
        let bounds = match kind {
            Kind::Advisory => (address.connections.unwrap_or(4), LOCKS_EACH),
            Kind::Row => (address.connections.unwrap_or(16), 1),
        };
        let pool = Pool::new(Arc::clone(&address), bounds, kind, on_end);
        let looks = Connection::new(Arc::clone(&address));
        let keys = match address.scheme {
            Scheme::Advisory(keys) => keys,
            _ => KeyScheme::Native,
        };
        let listener = address
            .listen_at()
            .map(|at| Listener::new(at, CHANNEL.to_owned(), Some(as_listener())));
        SessionLocks(Arc::new(Shared { address, kind, keys, pool, looks, listener, held }))
    }

    /// Connects, and checks that the scheme can be used there.
    pub(super) async fn open(&self) -> Result<()> {
        let address = &self.0.address;
        let explain = |fault: Fault| fault.explain(address, "the schema");
        let claim = match self.0.pool.claim().await {
            Err(fault) if self.0.kind == Kind::Row && address.install && absent(&fault) => {
                install(address).await?;
                self.0.pool.claim().await.map_err(explain)?
            }
            other => other.map_err(explain)?,
        };
        if self.0.kind == Kind::Advisory {
            let other = self.0.looks.session().await.map_err(explain)?;
            let probe = check_no_pooler(&claim.conn.session.client, &other.client);
            probe.await.map_err(explain)?;
        }
        Ok(())
    }

    fn target(&self, line: &Name, shared: bool) -> Result<Target> {
        let name = line.as_str();
        let Some(key) = self.0.keys.key(name) else {
            let message =
                format!("lock \"{line}\" has no key at {}; see its ?keys=", self.0.address);
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let (kind, notify) = (self.0.kind, self.0.listener.is_some());
        let subject = match kind {
            Kind::Advisory => format!("advisory {key}"),
            Kind::Row => format!("row {} {name}", self.0.address.schema),
        };
        let hash = native(&subject);
        let topic = TicketId(u128::from_be_bytes(std::array::from_fn(|at| hash[at])));
        Ok(Target { kind, line: line.clone(), key, shared, topic, notify })
    }

    fn waiting(&self, ticket: &Ticket) -> Standing {
        let pause = if self.0.listener.is_some() { TOLD_PAUSE } else { POLL_PAUSE };
        let pause = pause.min(ticket.wait_lease / 3).max(Duration::from_millis(2));
        Standing::Waiting { seq: None, again: pause }
    }

    /// Runs a call to its end on the store's thread.
    async fn carry_out<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = session::runtime()?.spawn(call);
        task.await.unwrap_or_else(|_| {
            let message = format!("a call to {} ended early", self.0.address);
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    fn explain(&self, fault: Fault, line: &Name) -> Error {
        fault.explain(&self.0.address, &format!("lock \"{line}\""))
    }

    /// Tries to take the lock. `grant` is empty, and locked until this is done.
    async fn attempt(
        self,
        target: Target,
        ticket: Ticket,
        mut grant: OwnedMutexGuard<Option<Granted>>,
    ) -> Result<Standing> {
        let result = self.attempt_at_server(&target, &ticket).await;
        let held = &self.0.held;
        match result {
            Ok(Some(granted)) if !granted.claim.conn.session.is_over() => {
                let (seq, conn) = (granted.seq, granted.claim.conn.number);
                if let Some(record) = held.tickets.lock().get_mut(&ticket.id) {
                    record.conn = Some(conn);
                    *grant = Some(granted);
                }
                if grant.is_some() {
                    self.expire_later(ticket.id);
                    return Ok(Standing::Admitted(seq));
                }
                Ok(self.waiting(&ticket))
            }
            other => {
                held.forget(ticket.id);
                // Another ticket of this process may wait for this attempt, and nothing else.
                if let Some(listener) = &self.0.listener {
                    listener.wake(target.topic);
                }
                match other {
                    Ok(_) => Ok(self.waiting(&ticket)),
                    Err(fault) => Err(self.explain(fault, &target.line)),
                }
            }
        }
    }

    async fn attempt_at_server(
        &self,
        target: &Target,
        ticket: &Ticket,
    ) -> Result<Option<Granted>, Fault> {
        let mut claim = self.0.pool.claim().await?;
        let limit = clock::now().after(CALL_LIMIT);
        let call = target.try_lock(&mut claim, ticket.id, ticket.lease, &self.0.address);
        let seq = within(limit, call).await.unwrap_or(Err(Fault::Silence))?;
        let until = clock::now().after(ticket.lease);
        Ok(seq.map(|seq| Granted { claim, seq, until }))
    }

    /// Renews a lock that is held.
    async fn renew(
        self,
        target: Target,
        ticket: Ticket,
        mut grant: OwnedMutexGuard<Option<Granted>>,
    ) -> Result<Standing> {
        let Some(granted) = &mut *grant else { return Ok(Standing::Lost) };
        let lease = ticket.lease.max(clock::now().until(granted.until));
        let call = target.keep(&granted.claim, lease);
        let limit = clock::now().after(CALL_LIMIT);
        let reply = within(limit, call).await.unwrap_or(Err(Fault::Silence));
        if granted.claim.conn.session.is_over() || reply.as_ref().is_err_and(Fault::ended) {
            *grant = None;
            self.0.held.forget(ticket.id);
            return Ok(Standing::Lost);
        }
        reply.map_err(|fault| self.explain(fault, &target.line))?;
        granted.until = granted.until.max(clock::now().after(ticket.lease));
        Ok(Standing::Admitted(granted.seq))
    }

    /// Gives a lock up. Returns whether it was held.
    async fn release(
        self,
        id: TicketId,
        target: Target,
        mut grant: OwnedMutexGuard<Option<Granted>>,
    ) -> Result<bool> {
        let Some(mut granted) = grant.take() else { return Ok(false) };
        let limit = clock::now().after(CALL_LIMIT);
        let call = target.unlock(&mut granted.claim);
        let reply = within(limit, call).await.unwrap_or(Err(Fault::Silence));
        let over = granted.claim.conn.session.is_over();
        // If in doubt, this closes the connection.
        drop(granted);
        self.0.held.forget(id);
        match reply {
            Ok(()) => Ok(true),
            Err(fault) if over || fault.ended() => Ok(false),
            Err(fault) => Err(self.explain(fault, &target.line)),
        }
    }

    /// Frees the lock when its lease has ended without a renewal.
    fn expire_later(&self, id: TicketId) {
        let shared: Weak<Shared> = Arc::downgrade(&self.0);
        let Ok(runtime) = session::runtime() else { return };
        runtime.spawn(async move {
            loop {
                let Some(locks) = shared.upgrade().map(SessionLocks) else { return };
                let Some(record) = locks.0.held.record(id) else { return };
                let grant = record.grant.lock_owned().await;
                let Some(until) = grant.as_ref().map(|granted| granted.until) else { return };
                if clock::now() >= until {
                    // An error was told by what it closed.
                    let _ = locks.release(id, record.target, grant).await;
                    return;
                }
                drop((grant, locks));
                clock::sleep_until(until).await;
            }
        });
    }

    /// Whether the ticket asks for a shared lock.
    fn is_shared(&self, line: &Name, ticket: &Ticket) -> Result<bool> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Err(refuse(line, ticket, Refusal::Weight));
        }
        match (self.0.kind, ticket.capacity, ticket.weight) {
            (_, 1, _) | (Kind::Advisory, READ_WRITE, READ_WRITE) => Ok(false),
            (Kind::Advisory, READ_WRITE, 1) => Ok(true),
            _ => Err(self.no_such_lock()),
        }
    }

    fn no_such_lock(&self) -> Error {
        let message = format!(
            "{} has no semaphores by this scheme, and read-write locks only by scheme=advisory, \
             without a downgrade; scheme=table has all of them",
            self.0.address
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Another client's lock, and the connection that asked.
    async fn foreign(&self, line: &Name) -> Result<Option<super::session_sql::Holder>> {
        let target = self.target(line, false)?;
        let found = target.holder(&self.0.looks).await;
        found.map_err(|fault| self.explain(fault, line))
    }
}

impl Held {
    fn record(&self, id: TicketId) -> Option<Record> {
        self.tickets.lock().get(&id).cloned()
    }

    fn forget(&self, id: TicketId) {
        self.tickets.lock().remove(&id);
    }

    /// The record of a ticket, made now unless another of this process is in its way: to the
    /// server, all locks of one session are one client's.
    fn reserve(&self, ticket: &Ticket, target: &Target, note: &Arc<str>) -> Option<Record> {
        let mut tickets = self.tickets.lock();
        if let Some(record) = tickets.get_mut(&ticket.id) {
            record.note = Arc::clone(note);
            return Some(record.clone());
        }
        let in_the_way = |record: &Record| {
            let same = record.target.key == target.key && record.target.topic == target.topic;
            same && !(record.target.shared && target.shared)
        };
        if tickets.values().any(in_the_way) {
            return None;
        }
        let (target, note, grant) = (target.clone(), Arc::clone(note), Grant::default());
        let record = Record { target, capacity: ticket.capacity, note, grant, conn: None };
        tickets.insert(ticket.id, record.clone());
        Some(record)
    }

    /// Hints that all locks of a connection are gone.
    fn ended(&self, conn: u64) {
        let lost: Vec<TicketId> = {
            let tickets = self.tickets.lock();
            let on_it = tickets.iter().filter(|(_, record)| record.conn == Some(conn));
            on_it.map(|(id, _)| *id).collect()
        };
        let Some(loss_hint) = self.loss_hint.get() else { return };
        for id in lost {
            loss_hint(id);
        }
    }
}

impl SessionLocks {
    async fn enter_at(
        &self,
        target: Target,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let record = match how {
            Enter::Keep(_) => match self.0.held.record(ticket.id) {
                Some(record) if record.target.shared == target.shared => record,
                Some(_) => return Err(self.no_such_lock()),
                None => return Ok(Standing::Lost),
            },
            Enter::Try | Enter::Queue => match self.0.held.reserve(ticket, &target, note) {
                Some(record) => record,
                None => return Ok(self.waiting(ticket)),
            },
        };
        let grant = Arc::clone(&record.grant).lock_owned().await;
        if let (Enter::Keep(seq), Some(granted)) = (how, &*grant)
            && seq != granted.seq
        {
            return Ok(Standing::Lost);
        }
        let (locks, ticket) = (self.clone(), *ticket);
        if grant.is_some() || matches!(how, Enter::Keep(_)) {
            self.carry_out(locks.renew(record.target, ticket, grant)).await
        } else {
            // An attempt before this one may have removed the record.
            let same = |now: Record| Arc::ptr_eq(&now.grant, &record.grant);
            if !self.0.held.reserve(&ticket, &target, note).is_some_and(same) {
                return Ok(self.waiting(&ticket));
            }
            self.carry_out(locks.attempt(record.target, ticket, grant)).await
        }
    }
}

impl AsyncStore for SessionLocks {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let target = self.target(line, self.is_shared(line, ticket)?)?;
        let topic = target.topic;
        let queues = how == Enter::Queue;
        let deaf = self.0.listener.as_ref().filter(|listener| queues && !listener.hears());
        let standing = self.enter_at(target, ticket, note, how).await?;
        if let (Some(listener), Standing::Waiting { .. }) = (deaf, &standing) {
            listener.listens();
            listener.catch_up(topic);
        }
        Ok(standing)
    }

    async fn leave(&self, _line: &Name, id: TicketId) -> Result<bool> {
        let Some(record) = self.0.held.record(id) else { return Ok(false) };
        let grant = Arc::clone(&record.grant).lock_owned().await;
        if grant.is_none() {
            self.0.held.forget(id);
        }
        self.carry_out(self.clone().release(id, record.target, grant)).await
    }

    async fn watch(&self, line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        match &self.0.listener {
            Some(listener) => {
                listener.wait(self.target(line, false)?.topic).await;
                Ok(None)
            }
            None => pending().await,
        }
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let topic = self.target(line, false)?.topic;
        let records: Vec<(TicketId, Record)> = {
            let tickets = self.0.held.tickets.lock();
            let here = tickets.iter().filter(|(_, record)| record.target.topic == topic);
            here.map(|(id, record)| (*id, record.clone())).collect()
        };
        let mut snapshot = QueueSnapshot::default();
        for (id, record) in records {
            let grant = record.grant.lock().await;
            let Some(granted) = &*grant else { continue };
            snapshot.capacity = record.capacity;
            snapshot.places.push(QueueEntry {
                id,
                seq: granted.seq,
                weight: if record.target.shared { 1 } else { record.capacity },
                admitted: true,
                expires_in: clock::now().until(granted.until),
                note: record.note,
            });
        }
        if snapshot.places.is_empty()
            && let Some(holder) = self.foreign(line).await?
        {
            snapshot.capacity = 1;
            snapshot.places.push(QueueEntry {
                id: holder.id,
                seq: Seq(0),
                weight: 1,
                admitted: true,
                expires_in: self.capabilities().lease_max,
                note: holder.note.into(),
            });
        }
        Ok(snapshot)
    }

    /// The locks that this process holds: of others, the server knows no names.
    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let tickets = self.0.held.tickets.lock();
        let held = tickets.values().filter(|record| record.conn.is_some());
        let names = held.map(|record| record.target.line.clone());
        let mut names: Vec<Name> = names.filter(|name| name.as_str().starts_with(prefix)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Ends the other client's session, with all that it holds.
    async fn evict(&self, line: &Name, id: TicketId, _note: &str) -> Result<Option<Seq>> {
        if self.0.held.record(id).is_some() {
            return Ok(self.leave(line, id).await?.then_some(Seq(0)));
        }
        let Some(holder) = self.foreign(line).await?.filter(|holder| holder.id == id) else {
            return Ok(None);
        };
        let sql = format!("SELECT pg_terminate_backend({})", holder.pid);
        let rows = self.0.looks.ask(&sql).await;
        let rows = rows.map_err(|fault| self.explain(fault, line))?;
        let ended = rows.first().and_then(|row| truth(row, 0)) == Some(true);
        if !ended || self.0.kind == Kind::Advisory {
            return Ok(ended.then_some(Seq(0)));
        }
        let sql = statement(&self.0.address.schema, "SELECT nextval('\"holdline\".lock_token')");
        let rows = self.0.looks.ask(&sql).await;
        let rows = rows.map_err(|fault| self.explain(fault, line))?;
        Ok(rows.first().and_then(|row| value(row, 0)).map(Seq))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fencing_tokens: self.0.kind == Kind::Row,
            notifications: self.0.listener.is_some(),
            ..SESSION_LOCKS
        }
    }

    fn background_handle(&self) -> Self {
        self.clone() // connections run on a thread of their own
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.0.held.loss_hint.set(loss_hint);
    }

    fn address(&self) -> String {
        self.0.address.to_string()
    }
}

impl fmt::Debug for SessionLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.address.fmt(f)
    }
}
