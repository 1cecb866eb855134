//! Locks that a database session holds and that end with it: the engine of PostgreSQL's schemes
//! `row` and `advisory` and of MySQL's `row` and `named`. A [`Dialect`] has the statements.
//!
//! There is no queue. A lock is tried, and never waited for in the server, so that a waiter holds
//! no connection and no snapshot; it tries again when notified of a release, or after a pause. To
//! the server, all locks of a session belong to one client. So the tickets of this process that
//! hold or try to get a lock have places here, and conflicting tickets are told to wait.
//!
//! All calls run on the store's own thread, so that a caller that is not polled keeps nobody
//! waiting. Once begun, a call to the server runs to completion, even if the caller's future is
//! dropped, and the calls of a ticket run one after another. So it is known what a connection
//! holds, and a ticket that leaves waits for its own attempt.
//!
//! A task watches each held lock: when its connection ends, which the socket reports at once, the
//! holder is told; when its lease ends, the lock is released.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueEntry, QueueSnapshot, READ_WRITE, Seq,
    Standing, Ticket, TicketId,
};
use crate::stores::queue::sql::{Fault, no_such_lock};
use crate::stores::runtime::Background;
use crate::stores::waiters::LossHandler;
use crate::sync::Mutex;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdline_kernel::Time;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

/// The answer to a call.
pub(super) type Answer<T> = Result<T, Fault>;

/// The server-specific part of session locks. Its `Display` is the store's address.
pub(super) trait Dialect: fmt::Display + Send + Sync + 'static {
    /// A held lock's share of a connection. Unless the lock is free, its drop closes the
    /// connection.
    type Hold: Send;

    /// Whether the server has records of holders that all clients see.
    const RECORDS: bool;

    /// The advice when there is no room for another lock.
    const MORE: &str;

    /// The connections' thread, started if need be.
    fn background() -> Result<&'static Background>;

    /// The maximum number of locks held or tried at a time, and of concurrent attempts.
    fn most(&self) -> (usize, usize);

    /// Connects, and refuses servers and proxies that the scheme cannot work with.
    fn check(&self) -> impl Future<Output = Answer<()>> + Send;

    /// The server's identity of a name: names that are the same lock there have the same identity.
    fn identity(&self, line: &Name) -> Result<String>;

    /// Whether readers can share a lock.
    fn shares(&self) -> bool {
        false
    }

    /// Takes a lock if it is free. Also returns its token, 0 if it has none.
    fn take(
        &self,
        lock: &Lock,
        asked: &Asked,
    ) -> impl Future<Output = Answer<Option<(Self::Hold, Seq)>>> + Send;

    /// Renews a lock. Returns false if it is lost.
    fn renew(
        &self,
        lock: &Lock,
        held: &mut Held<Self::Hold>,
        asked: &Asked,
    ) -> impl Future<Output = Answer<bool>> + Send;

    /// Releases a lock and notifies waiters; without a hold, releases another process's lock if
    /// possible. Returns false if it was not held.
    fn release(
        &self,
        lock: &Lock,
        id: TicketId,
        hold: Option<Self::Hold>,
    ) -> impl Future<Output = Answer<bool>> + Send;

    /// Waits for the end of the connection.
    fn ended(hold: &Self::Hold) -> BoxFuture<'static, ()>;

    /// Breaks a lock by force. Returns the same as [`AsyncStore::evict`].
    fn evict(
        &self,
        lock: &Lock,
        id: TicketId,
        note: &str,
    ) -> impl Future<Output = Answer<Option<Seq>>> + Send;

    /// The server's view of a lock.
    fn look(&self, lock: &Lock) -> impl Future<Output = Answer<QueueSnapshot>> + Send;

    /// The names of the locks on record.
    fn list(&self, _prefix: &str) -> impl Future<Output = Answer<Vec<Name>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// The pause between a waiter's attempts.
    fn pause(&self) -> Duration;

    /// Waits for a notice that a lock may be free.
    fn told(&self, _: &Lock) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Wakes a waiter of this process.
    fn wake(&self, _: &Lock) {}

    fn capabilities(&self) -> Capabilities;
}

/// A lock.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) line: Name,
    /// See [`Dialect::identity`].
    pub(super) identity: String,
    /// Whether other shared holders can hold it too.
    pub(super) shared: bool,
}

/// The request of an entry.
pub(super) struct Asked {
    /// Its lease counts from now.
    pub(super) ticket: Ticket,
    pub(super) note: Arc<str>,
    pub(super) how: Enter,
    /// Closed when the caller has given up.
    pub(super) caller: oneshot::Sender<()>,
}

/// A lock that is held.
pub(super) struct Held<H> {
    pub(super) hold: H,
    pub(super) seq: Seq,
    pub(super) until: Time,
    capacity: u32,
    note: Arc<str>,
    /// The task that watches the lock; it ends with this.
    watch: JoinSet<()>,
}

/// A store of session locks.
pub(super) struct SessionLocks<D: Dialect>(Arc<Shared<D>>);

struct Shared<D: Dialect> {
    dialect: D,
    /// Keyed by the identity of the lock.
    places: Mutex<HashMap<String, Vec<Arc<Place<D>>>>>,
    room: Arc<Semaphore>,
    attempts: Semaphore,
    loss: LossHandler,
}

/// The place of a ticket that holds a lock or is trying to get it.
struct Place<D: Dialect> {
    id: TicketId,
    lock: Lock,
    /// Locked during a call.
    held: Arc<Turn<Option<Held<D::Hold>>>>,
    /// Whether this place made another ticket of this process wait.
    in_the_way: AtomicBool,
    _room: OwnedSemaphorePermit,
}

impl<D: Dialect> SessionLocks<D> {
    /// Opens a store, and checks that it can be used.
    pub(super) async fn open(dialect: D) -> Result<Self> {
        let (most, attempts) = dialect.most();
        let locks = SessionLocks(Arc::new(Shared {
            dialect,
            places: Mutex::default(),
            room: Arc::new(Semaphore::new(most)),
            attempts: Semaphore::new(attempts),
            loss: LossHandler::default(),
        }));
        let opened = locks.clone();
        locks.carry_out(None, async move { opened.0.dialect.check().await }).await?;
        Ok(locks)
    }

    /// Runs a call to completion on the store's thread, even if this future is dropped.
    async fn carry_out<T: Send + 'static>(
        &self,
        line: Option<&Name>,
        call: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Result<T> {
        let ended = D::background()?.spawn(call).await;
        let ended = ended.unwrap_or_else(|_| Err(Fault::Silence)); // it panicked
        let what = || line.map_or("its tables".to_owned(), |line| format!("lock \"{line}\""));
        ended.map_err(|fault| fault.explain(&self.0.dialect, &what()))
    }

    fn lock(&self, line: &Name, shared: bool) -> Result<Lock> {
        let identity = self.0.dialect.identity(line)?;
        Ok(Lock { line: line.clone(), identity, shared })
    }

    /// The lock that a ticket asks for.
    fn wanted(&self, line: &Name, ticket: &Ticket) -> Result<Lock> {
        match (ticket.capacity, ticket.weight) {
            (1, _) => self.lock(line, false),
            (READ_WRITE, weight @ (1 | READ_WRITE)) if self.0.dialect.shares() => {
                self.lock(line, weight == 1)
            }
            _ => Err(self.no_such_lock()),
        }
    }

    fn no_such_lock(&self) -> Error {
        let has = if self.0.dialect.shares() {
            "no semaphores, and no downgrades of read-write locks,"
        } else {
            "mutexes only"
        };
        no_such_lock(&self.0.dialect, has)
    }

    fn find(&self, lock: &Lock, id: TicketId) -> Option<Arc<Place<D>>> {
        let places = self.0.places.lock();
        places.get(&lock.identity)?.iter().find(|place| place.id == id).cloned()
    }

    /// The place of a ticket, created if need be; `None` if another ticket is in the way.
    fn reserve(&self, lock: &Lock, id: TicketId) -> Result<Option<Arc<Place<D>>>> {
        let mut places = self.0.places.lock();
        let here = places.get(&lock.identity).map_or(&[][..], Vec::as_slice);
        if let Some(mine) = here.iter().find(|place| place.id == id) {
            return Ok(Some(Arc::clone(mine)));
        }
        if let Some(other) = here.iter().find(|place| !(place.lock.shared && lock.shared)) {
            other.in_the_way.store(true, Ordering::SeqCst);
            return Ok(None);
        }
        let Ok(room) = Arc::clone(&self.0.room).try_acquire_owned() else {
            let message = format!(
                "this process holds or tries to get as many locks at {} as it has connections for; \
                 release some, or {}",
                self.0.dialect,
                D::MORE
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        let (held, in_the_way) = (Arc::default(), AtomicBool::new(false));
        let place = Arc::new(Place { id, lock: lock.clone(), held, in_the_way, _room: room });
        places.entry(lock.identity.clone()).or_default().push(Arc::clone(&place));
        Ok(Some(place))
    }

    /// Removes a place, and wakes a ticket that it made wait.
    fn forget(&self, place: &Arc<Place<D>>) {
        let identity = &place.lock.identity;
        let mut places = self.0.places.lock();
        if let Some(here) = places.get_mut(identity) {
            here.retain(|other| !Arc::ptr_eq(other, place));
            if here.is_empty() {
                places.remove(identity);
            }
        }
        drop(places);
        if place.in_the_way.load(Ordering::SeqCst) {
            self.0.dialect.wake(&place.lock);
        }
    }

    fn waiting(&self, ticket: &Ticket) -> Standing {
        let again = self.0.dialect.pause().min(ticket.wait_lease / 3);
        Standing::Waiting { seq: None, again: again.max(Duration::from_millis(2)) }
    }

    /// Tries or renews a lock, unless the caller gives up before its turn.
    async fn enter_lock(&self, lock: &Lock, mut asked: Asked) -> Answer<Standing> {
        let (how, ticket) = (asked.how, asked.ticket);
        let turn = async {
            let turn = match how {
                Enter::Keep(_) => None,
                // The semaphore is never closed.
                Enter::Try | Enter::Queue => Some(self.0.attempts.acquire().await),
            };
            loop {
                let place = match how {
                    Enter::Keep(_) => self.find(lock, ticket.id),
                    Enter::Try | Enter::Queue => self.reserve(lock, ticket.id)?,
                };
                let Some(place) = place else { return Ok(None) };
                let held = Arc::clone(&place.held).lock_owned().await;
                // The call before this one may have removed it.
                if self.find(lock, ticket.id).is_some_and(|it| Arc::ptr_eq(&it, &place)) {
                    return Ok::<_, Fault>(Some((turn, place, held)));
                }
            }
        };
        let turn = tokio::select! {
            biased;
            () = asked.caller.closed() => None,
            turn = turn => turn?,
        };
        let Some((_turn, place, mut held)) = turn else {
            let keeps = matches!(how, Enter::Keep(_));
            return Ok(if keeps { Standing::Lost } else { self.waiting(&ticket) });
        };
        if place.lock.shared != lock.shared {
            return Err(self.no_such_lock().into());
        }
        match (&mut *held, how) {
            (Some(lock), Enter::Keep(seq)) if lock.seq != seq => Ok(Standing::Lost),
            (None, Enter::Keep(_)) => Ok(Standing::Lost),
            (Some(_), _) => self.renew(&place, &mut held, asked).await,
            (held, _) => self.attempt(&place, held, &asked).await,
        }
    }

    /// The view of a lock: without records, that of this process if it holds it.
    async fn look(&self, lock: &Lock) -> Answer<QueueSnapshot> {
        let mut snapshot = QueueSnapshot::default();
        let here = self.0.places.lock().get(&lock.identity).filter(|_| !D::RECORDS).cloned();
        for place in here.unwrap_or_default() {
            let held = place.held.lock().await;
            let Some(held) = &*held else { continue };
            snapshot.capacity = held.capacity;
            snapshot.places.push(QueueEntry {
                id: place.id,
                seq: held.seq,
                weight: if place.lock.shared { 1 } else { held.capacity },
                admitted: true,
                expires_in: clock::now().until(held.until),
                note: Arc::clone(&held.note),
            });
        }
        if snapshot.places.is_empty() {
            return self.0.dialect.look(lock).await;
        }
        Ok(snapshot)
    }

    async fn attempt(
        &self,
        place: &Arc<Place<D>>,
        held: &mut Option<Held<D::Hold>>,
        asked: &Asked,
    ) -> Answer<Standing> {
        let sent = clock::now();
        let taken = if asked.caller.is_closed() {
            Ok(None)
        } else {
            self.0.dialect.take(&place.lock, asked).await
        };
        if let Ok(Some((hold, seq))) = taken {
            let until = sent.after(asked.ticket.lease);
            let watch = self.look_after(place, until, D::ended(&hold));
            let (capacity, note) = (asked.ticket.capacity, Arc::clone(&asked.note));
            *held = Some(Held { hold, seq, until, capacity, note, watch });
            return Ok(Standing::Admitted(seq));
        }
        self.forget(place);
        taken.map(|_| self.waiting(&asked.ticket))
    }

    async fn renew(
        &self,
        place: &Arc<Place<D>>,
        held: &mut Option<Held<D::Hold>>,
        mut asked: Asked,
    ) -> Answer<Standing> {
        let (Some(lock), sent) = (&mut *held, clock::now()) else { return Ok(Standing::Lost) };
        if lock.until <= sent {
            self.release(place, held).await?;
            return Ok(Standing::Lost);
        }
        let until = lock.until.max(sent.after(asked.ticket.lease));
        asked.ticket.lease = sent.until(until);
        let kept = self.0.dialect.renew(&place.lock, lock, &asked).await;
        if D::ended(&lock.hold).now_or_never().is_none() && !matches!(kept, Ok(false)) {
            kept?;
            (lock.until, lock.note) = (until, asked.note);
            return Ok(Standing::Admitted(lock.seq));
        }
        *held = None;
        self.forget(place);
        Ok(Standing::Lost)
    }

    /// Gives up a place. Returns whether it held the lock until now.
    async fn release(
        &self,
        place: &Arc<Place<D>>,
        held: &mut Option<Held<D::Hold>>,
    ) -> Answer<bool> {
        let Some(lock) = held.take() else {
            self.forget(place);
            return Ok(false);
        };
        let there = clock::now() < lock.until;
        let freed = self.0.dialect.release(&place.lock, place.id, Some(lock.hold)).await;
        self.forget(place);
        Ok(freed? && there)
    }

    /// Watches a lock, which ends with its connection or its lease.
    fn look_after(
        &self,
        place: &Arc<Place<D>>,
        mut until: Time,
        mut ended: BoxFuture<'static, ()>,
    ) -> JoinSet<()> {
        let (shared, place) = (Arc::downgrade(&self.0), Arc::downgrade(place));
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            loop {
                let over = tokio::select! {
                    () = &mut ended => true,
                    () = clock::sleep_until(until) => false,
                };
                let locks = shared.upgrade().map(SessionLocks);
                let (Some(locks), Some(place)) = (locks, place.upgrade()) else { return };
                if over {
                    locks.0.loss.hint(place.id); // a call may be under way
                }
                let mut held = place.held.lock().await;
                let Some(lock) = &mut *held else { return };
                if !over && clock::now() < lock.until {
                    until = lock.until; // it was renewed
                    continue;
                }
                lock.watch.detach_all(); // this task itself
                if over {
                    *held = None;
                    return locks.forget(&place);
                }
                // An error closes the connection, which frees the lock.
                let _ = locks.release(&place, &mut held).await;
                return locks.0.loss.hint(place.id);
            }
        });
        watch
    }
}

impl<D: Dialect> AsyncStore for SessionLocks<D> {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let (lock, locks) = (self.wanted(line, ticket)?, self.clone());
        let (caller, _alive) = oneshot::channel();
        let asked = Asked { ticket: *ticket, note: Arc::clone(note), how, caller };
        self.carry_out(Some(line), async move { locks.enter_lock(&lock, asked).await }).await
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let (lock, locks) = (self.lock(line, false)?, self.clone());
        let call = async move {
            let Some(place) = locks.find(&lock, id) else {
                return locks.0.dialect.release(&lock, id, None).await;
            };
            let mut held = place.held.lock().await;
            locks.release(&place, &mut held).await
        };
        self.carry_out(Some(line), call).await
    }

    async fn watch(&self, line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        self.0.dialect.told(&self.lock(line, false)?).await;
        Ok(None)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let (lock, locks) = (self.lock(line, false)?, self.clone());
        self.carry_out(Some(line), async move { locks.look(&lock).await }).await
    }

    /// Without records, the server knows no names. Then it lists the locks that this process holds,
    /// or tries to get from others.
    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        if D::RECORDS {
            let (locks, prefix) = (self.clone(), prefix.to_owned());
            let call = async move { locks.0.dialect.list(&prefix).await };
            return self.carry_out(None, call).await;
        }
        let places = self.0.places.lock();
        let names = places.values().flatten().map(|place| place.lock.line.clone());
        let mut names: Vec<Name> = names.filter(|name| name.as_str().starts_with(prefix)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let (lock, locks, note) = (self.lock(line, false)?, self.clone(), note.to_owned());
        let place = self.find(&lock, id);
        let call = async move {
            let evicted = locks.0.dialect.evict(&lock, id, &note).await?;
            let (None, Some(place)) = (evicted, place) else { return Ok(evicted) };
            let left = locks.release(&place, &mut *place.held.lock().await).await?;
            Ok(left.then_some(Seq(0)))
        };
        let evicted = self.carry_out(Some(line), call).await?;
        if evicted.is_some() {
            self.0.loss.hint(id);
        }
        Ok(evicted)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.dialect.capabilities()
    }

    /// The same store: its work runs on a thread of its own.
    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.0.loss.set(loss_hint);
    }

    fn address(&self) -> String {
        self.0.dialect.to_string()
    }
}

impl<D: Dialect> Clone for SessionLocks<D> {
    fn clone(&self) -> Self {
        SessionLocks(Arc::clone(&self.0))
    }
}

impl<D: Dialect> fmt::Debug for SessionLocks<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.dialect.fmt(f)
    }
}
