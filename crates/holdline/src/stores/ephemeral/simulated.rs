//! The engine that etcd and ZooKeeper share, over a simulated server, with the smallest possible
//! dialect: one session, entries by ticket id, one list of a line.
//!
//! A session's requests are numbered, and the server drops any that arrives after a later one, as
//! on a connection. So once a deletion is answered, the entry does not exist and will not be
//! created late.

use super::backend::{self, Acquire, Backend, Joined, Release, Renew, Request};
use super::contract::{CAPABILITIES, serve_by_engine};
use super::engine::{self, Seen};
use super::table::Table;
use super::ticket::{self, Entry, Place, State};
use super::view::{Look, View, Watched};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Subscription, Ticket,
    TicketId,
};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// The length of a session, and the time for which it is certain to last, counted from before a
/// heartbeat; clocks differ by less than 1%.
const LENGTH: Duration = Duration::from_secs(3);
const SURE: Duration = Duration::from_millis(2_960);
/// The pause between two heartbeats, and the time limit of a request.
const BEAT: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_millis(400);
/// How many entries of a list are read first, give or take three more.
const NEAREST: usize = 4;

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its session; 0 for none.
    pub session: u64,
    /// Its number in the session.
    pub number: u64,
    /// The request itself.
    pub question: Question,
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Begin a session of this length.
    Open(Duration),
    /// A heartbeat.
    Beat,
    /// Write the entry of this ticket, unless it exists.
    Put(Ticket),
    /// Lower the entry's weight to this, if it exists and is heavier.
    Lower(TicketId, u32),
    /// List the line.
    List,
    /// Delete the entry of this ticket.
    Delete(TicketId),
    /// Send this client all further changes of the line.
    Watch,
}

/// An entry of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The ticket.
    pub id: TicketId,
    /// The revision of its creation.
    pub create: i64,
    /// The revision of its last change.
    pub modified: i64,
    /// Its weight.
    pub weight: u32,
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The session; 0 if it has ended.
    pub session: u64,
    /// The revision of the line.
    pub revision: i64,
    /// The line, oldest first.
    pub entries: Arc<[Listed]>,
    /// Whether an entry was deleted.
    pub deleted: bool,
}

/// A change of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry created at the first revision was deleted (`None`) or lowered to this weight, at
    /// the last revision.
    Entry(i64, Option<u32>, i64),
    /// A gap: some changes are unknown.
    Gap,
}

/// A server played by a simulation.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// Sends a request; the reply may never come.
    fn ask(&self, line: &Name, asked: Asked) -> Pin<Box<dyn Future<Output = Told> + Send>>;
}

/// Background work, polled by the simulation.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store over a simulated server.
#[derive(Clone, Debug)]
pub struct Entries {
    shared: Arc<Shared>,
}

serve_by_engine!(Entries, |_| CAPABILITIES);

#[derive(Debug)]
pub(super) struct Shared {
    address: &'static str,
    server: Arc<dyn Server>,
    session: Mutex<Option<Arc<Session>>>,
    table: Table<Node>,
    tasks: Tasks,
}

#[derive(Default)]
struct Tasks(Mutex<Vec<Task>>);

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.0.lock().len())
    }
}

#[derive(Debug)]
struct Session {
    id: u64,
    number: AtomicU64,
    sure_until: Mutex<Time>,
    lost: AtomicBool,
    news: Notify,
}

/// A ticket's entry.
#[derive(Debug)]
pub(super) struct Node {
    session: Arc<Session>,
    view: View<i64>,
}

type Record = backend::Record<Shared>;
type TicketRecord = ticket::TicketRecord<Node>;
type Attempt<'a> = backend::Attempt<'a, Shared>;

impl Entry for Node {
    type Base = ();
    type Watch = ();

    fn has_room(place: &Place<Self>, capacity: u32) -> bool {
        place.entry.view.has_room(place.weight, capacity)
    }
}

impl Entries {
    /// Creates a store over this server.
    pub fn new(server: Arc<dyn Server>) -> Self {
        let (session, table, tasks) = (Mutex::default(), Table::new(64), Tasks::default());
        let shared = Arc::new(Shared { address: "simulated:", server, session, table, tasks });
        engine::start_janitor(&shared);
        Entries { shared }
    }

    /// Takes the tasks spawned since the last call; they must be polled like the store's futures.
    pub fn tasks(&self) -> Vec<Task> {
        std::mem::take(&mut self.shared.tasks.0.lock())
    }

    /// Applies a change of a line; changes come in order.
    pub fn apply(&self, line: &Name, change: Change) {
        let loss = &self.shared.table.loss;
        for record in self.shared.table.all() {
            if record.line != *line {
                continue;
            }
            match change {
                Change::Gap => record.miss(loss),
                Change::Entry(create, None, _) if record.place().create == create => {
                    record.lose(loss);
                }
                Change::Entry(create, new, revision) => {
                    let asks = record.with(|place| {
                        let share = (place.weight, record.capacity);
                        place.entry.view.change((&create, new), revision, share)
                    });
                    if asks {
                        record.wake();
                    }
                }
            }
        }
    }
}

impl TicketRecord {
    /// Records that changes may have been missed.
    fn miss(&self, loss: &crate::stores::waiters::LossHandler) {
        let held = self.with(|place| {
            place.miss();
            place.state == State::Held
        });
        self.tell(held, loss);
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "the simulated server did not answer")
}

impl Session {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn ask(&self, session: &Session, line: &Name, question: Question) -> Result<Told> {
        let number = session.number.fetch_add(1, Ordering::Relaxed) + 1;
        let asked = Asked { session: session.id, number, question };
        let told = clock::timeout(LIMIT, self.server.ask(line, asked)).await.ok_or_else(away)?;
        if told.session == session.id {
            return Ok(told);
        }
        self.lose(session);
        Err(away())
    }

    /// The session; a new one if there is none.
    async fn session(self: &Arc<Self>, line: &Name) -> Result<Arc<Session>> {
        let living = || self.session.lock().clone().filter(|session| !session.is_lost());
        if let Some(session) = living() {
            return Ok(session);
        }
        let sent = clock::now();
        let asked = Asked { session: 0, number: 0, question: Question::Open(LENGTH) };
        let told = clock::timeout(LIMIT, self.server.ask(line, asked)).await.ok_or_else(away)?;
        if let Some(session) = living() {
            return Ok(session); // another was faster
        }
        let session = Arc::new(Session {
            id: told.session,
            number: AtomicU64::new(0),
            sure_until: Mutex::new(sent.after(SURE)),
            lost: AtomicBool::new(false),
            news: Notify::new(),
        });
        *self.session.lock() = Some(Arc::clone(&session));
        self.spawn(beat(Arc::downgrade(self), Arc::clone(&session), line.clone()));
        Ok(session)
    }

    /// Ends the session, and with it all places on it. Places that are not held are removed at
    /// once; a holder must learn of the loss first.
    fn lose(&self, session: &Session) {
        session.lost.store(true, Ordering::Relaxed);
        session.news.notify_waiters();
        let _ = self.table.lose_all(|record| record.place().entry.session.id == session.id);
    }

    /// Arranges for the record to be told of changes in its line.
    fn watch(self: &Arc<Self>, record: &Record) {
        self.spawn(watch(Arc::downgrade(self), Arc::downgrade(record)));
    }

    async fn delete(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<bool> {
        let session = self.session(line).await?;
        Ok(self.ask(&session, line, Question::Delete(id)).await?.deleted)
    }

    async fn snapshot(self: &Arc<Self>, line: &Name) -> Result<QueueSnapshot> {
        let session = self.session(line).await?;
        let told = self.ask(&session, line, Question::List).await?;
        let capacity = u32::from(!told.entries.is_empty());
        let seen = told.entries.iter().map(|entry| {
            let Listed { id, create, weight, .. } = *entry;
            Seen { id, create, weight, expires_in: LENGTH, note: Arc::from("") }
        });
        let places = engine::places(&self.table, capacity, seen);
        Ok(QueueSnapshot { capacity, places, evictions: Vec::new() })
    }

    #[allow(clippy::unused_self, reason = "as other stores have it")]
    fn list(&self, _prefix: &str) -> impl Future<Output = Result<Vec<Name>>> + use<> {
        std::future::ready(Ok(Vec::new()))
    }

    async fn evict(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
        _note: &str,
    ) -> Result<Option<Seq>> {
        let session = self.session(line).await?;
        let told = self.ask(&session, line, Question::Delete(id)).await?;
        Ok(told.deleted.then(|| ticket::token(told.revision)))
    }

    #[allow(clippy::unused_self, reason = "as other stores have it")]
    fn subscribe(&self, _lines: &Lines) -> Subscription {
        Subscription::none()
    }
}

/// Keeps a session alive.
async fn beat(shared: Weak<Shared>, session: Arc<Session>, line: Name) {
    loop {
        clock::pause(BEAT).await;
        let Some(shared) = shared.upgrade().filter(|_| !session.is_lost()) else { return };
        let sent = clock::now();
        if sent >= *session.sure_until.lock() {
            return shared.lose(&session);
        }
        if shared.ask(&session, &line, Question::Beat).await.is_ok() {
            let mut until = session.sure_until.lock();
            *until = sent.after(SURE).max(*until);
            session.news.notify_waiters();
        }
    }
}

/// Begins a watch.
async fn watch(shared: Weak<Shared>, record: Weak<TicketRecord>) {
    while let (Some(shared), Some(record)) = (shared.upgrade(), record.upgrade()) {
        let session = Arc::clone(&record.place().entry.session);
        if session.is_lost() {
            return;
        }
        if let Ok(told) = shared.ask(&session, &record.line, Question::Watch).await {
            if record.with(|place| place.entry.view.seen() < told.revision) {
                record.miss(&shared.table.loss);
            }
            return;
        }
        drop((shared, record, session));
        clock::pause(BEAT).await;
    }
}

impl Attempt<'_> {
    /// Applies a list of the line: the nearest entries, or all if those do not suffice.
    fn see(&self, told: &Told) {
        let Attempt { store, record, missed, .. } = *self;
        let Some(at) = told.entries.iter().position(|entry| entry.id == record.id) else {
            return record.lose(&store.table.loss);
        };
        let Listed { create, .. } = told.entries[at];
        let ahead = || told.entries[..at].iter().rev().map(|entry| (entry.create, entry.weight));
        let all = told.entries.iter().map(|entry| u64::from(entry.weight)).sum();
        let knows = told.revision % 2 == 0; // what all of them weigh
        let look = |count: usize| {
            let (ahead, revision) = (ahead().take(count).collect(), told.revision);
            Look { revision, ahead, complete: at < count, most: knows.then_some(all) }
        };
        let few = NEAREST + usize::try_from(told.revision % 4).unwrap_or(0);
        record.with(|place| {
            place.born(create);
            let Place { weight, entry, .. } = place;
            let tells = entry.view.take(look(few), *weight, record.capacity)
                || entry.view.take(look(usize::MAX), *weight, record.capacity);
            if tells {
                place.answered(missed);
            }
        });
    }

    async fn put(&self) -> Result<Joined<Node>> {
        let Attempt { store, request, record, .. } = *self;
        let session = Arc::clone(&record.place().entry.session);
        if request.how == Enter::Try && !record.place().doubtful {
            let told = store.ask(&session, request.line, Question::List).await?;
            let ahead = told.entries.iter().map(|entry| (entry.create, entry.weight)).collect();
            let look = Look { revision: told.revision, ahead, complete: true, most: None };
            if look.admits(request.ticket.weight, request.ticket.capacity) != Some(true) {
                store.table.forget(record);
                return Ok(Joined::Not(request.waiting(None)));
            }
        }
        record.place().doubtful = true;
        let told = store.ask(&session, request.line, Question::Put(*request.ticket)).await?;
        record.place().doubtful = false;
        self.see(&told);
        let waits = record.with(|place| !Node::has_room(place, record.capacity));
        if request.how == Enter::Try && waits {
            self.take_back().await?;
            return Ok(Joined::Not(request.waiting(None)));
        }
        Ok(Joined::There(Arc::clone(record)))
    }
}

impl Backend for Shared {
    type Entry = Node;

    fn table(&self) -> &Table<Node> {
        &self.table
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.0.lock().push(Box::pin(task));
    }

    fn limit(_lease: Duration) -> Duration {
        LIMIT
    }

    fn look_after(self: &Arc<Self>, record: &Record, _now: Time) -> Time {
        if record.with(|place| place.entry.view.turn_to_own(place.state == State::Held)) {
            self.watch(record);
        }
        Time::NEVER
    }

    fn look_around(self: &Arc<Self>, _now: Time) -> bool {
        true
    }

    fn watch_ahead(self: &Arc<Self>, record: &Record) {
        let begins = record.with(|place| {
            let view = &mut place.entry.view;
            let begins = place.state == State::Waiting && view.watched != Watched::Ahead;
            if begins {
                view.watched = Watched::Ahead;
            }
            begins
        });
        if begins {
            self.watch(record);
        }
    }
}

impl Acquire<Node> for Shared {
    async fn join(self: &Arc<Self>, request: &Request<'_>) -> Result<Joined<Node>> {
        let Request { line, ticket, note, began, .. } = *request;
        if self.table.lapsed.contains(ticket.id) {
            return Ok(Joined::Not(Standing::Lost));
        }
        let due = began.after(ticket.wait_lease.max(ticket.lease));
        let record = if let Some(record) = self.table.find(ticket.id) {
            record
        } else {
            let session = self.session(line).await?;
            let node = Node { session, view: View::default() };
            let record = Arc::new(TicketRecord::new(line, ticket, note, due, ((), node)));
            self.table.insert(&record);
            record
        };
        let wanted = record.with(|place| {
            place.due = place.due.max(due);
            place.is_alive()
        });
        if !wanted {
            return Ok(Joined::Not(Standing::Lost));
        }
        Attempt::new(self, request, &record).put().await
    }
}

impl Renew<Node> for Shared {
    async fn update(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<bool> {
        let (weight, session) =
            record.with(|place| (place.weight, Arc::clone(&place.entry.session)));
        if weight == request.ticket.weight {
            return Ok(true);
        }
        let lower = Question::Lower(record.id, request.ticket.weight);
        let told = self.ask(&session, &record.line, lower).await?;
        let (create, new) = (record.place().create, request.ticket.weight);
        record.place().weight = new;
        Ok(told.entries.iter().any(|entry| entry.create == create))
    }

    fn is_watched(record: &Record) -> bool {
        record.place().entry.view.watched != Watched::Nothing
    }

    async fn is_there(&self, record: &Record, _limit: Duration) -> Result<bool> {
        let (create, session) =
            record.with(|place| (place.create, Arc::clone(&place.entry.session)));
        let told = self.ask(&session, &record.line, Question::List).await?;
        Ok(told.entries.iter().any(|entry| entry.create == create))
    }

    async fn ask_again(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<()> {
        let (known, ahead, seen, session) = record.with(|place| {
            let (view, weight) = (&place.entry.view, place.weight);
            let known = view.has_room(weight, record.capacity) && !place.is_unsure();
            let (ahead, seen) = view.blockers(weight, record.capacity);
            (known, ahead, seen, Arc::clone(&place.entry.session))
        });
        if known {
            return Ok(());
        }
        let attempt = Attempt::new(self, request, record);
        let told = self.ask(&session, &record.line, Question::List).await?;
        let is_as_it_was = |create: &i64| {
            told.entries.iter().any(|entry| entry.create == *create && entry.modified <= seen)
        };
        let own = record.place().create;
        let there = told.entries.iter().any(|entry| entry.create == own);
        if there && !ahead.is_empty() && ahead.iter().all(is_as_it_was) {
            record.with(|place| {
                place.entry.view.unchanged_at(told.revision);
                place.answered(attempt.missed);
            });
        } else {
            attempt.see(&told);
        }
        Ok(())
    }

    async fn confirm(
        self: &Arc<Self>,
        record: &Record,
        _request: &Request<'_>,
        until: Time,
    ) -> Result<bool> {
        let session = Arc::clone(&record.place().entry.session);
        loop {
            let mut news = std::pin::pin!(session.news.notified());
            news.as_mut().enable();
            if session.is_lost() {
                return Ok(false);
            }
            if *session.sure_until.lock() >= until {
                return Ok(true);
            }
            news.await;
        }
    }

    fn doubt(&self, _record: &Record) {}

    async fn answers(&self, _record: &Record) {}
}

impl Release<Node> for Shared {
    async fn remove(self: &Arc<Self>, record: &Record, _limit: Duration) -> Result<bool> {
        let (session, unwritten) = record.with(|place| {
            let unwritten = place.create == 0 && !place.doubtful;
            (Arc::clone(&place.entry.session), unwritten)
        });
        if unwritten {
            return Ok(false);
        }
        if session.is_lost() {
            return self.delete(&record.line, record.id).await;
        }
        Ok(self.ask(&session, &record.line, Question::Delete(record.id)).await?.deleted)
    }

    async fn remove_unknown(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<bool> {
        self.delete(line, id).await
    }
}
