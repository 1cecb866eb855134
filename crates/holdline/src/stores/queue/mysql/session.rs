//! The schemes `row` and `named`: locks that a connection holds, so that they end with it.
//!
//! `row`: a row that an open transaction has locked. `named`: one of the server's named locks
//! (`GET_LOCK`). Each lock has a connection of its own. Nobody waits in the server: waiters ask
//! again. The server has no leases; but a record beside the lock says who holds it by which
//! session and until when, and whoever finds that its lease is over ends that session. A session
//! is known by a random number, and not by the number of its connection, which a server that was
//! restarted gives to another: as long as it lasts, it has a named lock of that number.
//!
//! The token is counted by a statement of another connection once the lock is held, so that no
//! rollback takes it back. That the server has ended a connection is seen on its socket.
//!
//! Operations run in tasks of the store's own thread, one at a time for each lock. Dropping a call
//! therefore never leaves a connection in the middle of one: a later call about the same lock waits
//! for its end.

use super::config::{Config, Scheme};
use super::connection::{Answer, Connections, ask, connect};
use super::errors::LOCKED;
use super::relay::{End, Watched, watched};
use super::{opts, text};
use crate::clock::{self, within};
use crate::error::{ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, EVICTION_TIME, Enter, LossHint, QueueSnapshot, Refusal, Seq,
    Standing, Ticket, TicketId, refuse,
};
use crate::stores::queue::sql::{Fault, SESSION_LOCKS, invalid_reply, outcome_unknown};
use crate::stores::runtime::{Background, LossHandler};
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use mysql_async::Opts;
use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard, Semaphore};
use tokio::task::JoinSet;

/// How long to wait before asking again for a lock that is held. Those who ask at fixed intervals
/// may miss each moment at which it is free.
const AGAIN: Backoff = Backoff::fixed(Duration::from_millis(100)).jitter(50);
/// How many connections that hold nothing are kept, and how many acquisitions at once ask the
/// server. Those that wait for their turn cost nothing if they are given up.
const SPARE: usize = 8;
/// The most locks of one process: each is a connection.
const MOST: usize = 64;

/// The settings of a connection with locks. Each statement begins a transaction. It waits only
/// to make a row. The server ends it neither for its age nor because nothing is said on it. With
/// REPEATABLE READ, the lock of a row would become one of the gap beside it when InnoDB splits a
/// page or removes a row there, and keep others from making rows in that gap: locks that nobody
/// holds could not be had for as long as this one is held.
const SESSION: &str = "SET SESSION autocommit = 0, /*M! idle_transaction_timeout = 0, \
    idle_write_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, */ \
    wait_timeout = 86400; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// The runtime of the connections of all these stores in this process.
static RUNTIME: Background = Background::new("mysql");

/// A store of locks that connections hold.
#[derive(Clone)]
pub(super) struct Sessions {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    opts: Opts,
    address: String,
    /// For records of holders, and tokens.
    records: Arc<Connections>,
    /// The locks that this process holds, or is just asking for.
    lines: Mutex<HashMap<Name, Line>>,
    /// Connections that hold nothing.
    idle: Mutex<Vec<Watched>>,
    turns: Arc<Semaphore>,
    loss: LossHandler,
}

type Line = Arc<Turn<Option<Hold>>>;
type Held = OwnedMutexGuard<Option<Hold>>;

/// A lock that is held.
struct Hold {
    id: TicketId,
    seq: Seq,
    until: Time,
    /// The connection that holds it.
    held_by: Watched,
    /// The task that looks after it; it ends with this.
    _watch: JoinSet<()>,
}

/// The caller of an entry, which goes on when the caller has given up.
struct Asker(Weak<()>);

impl Asker {
    fn has_given_up(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Sessions {
    pub(super) async fn open(config: Config) -> Result<Self> {
        RUNTIME.start()?;
        let shared = Arc::new(Shared {
            opts: opts::of(&config)?,
            address: config.address(),
            // A renewal counts, also if it changes nothing.
            records: Arc::new(Connections::new(
                &Arc::new(Config { found_rows: true, ..config.clone() }),
                config.connections,
                Arc::default(),
            )?),
            lines: Mutex::default(),
            idle: Mutex::default(),
            turns: Arc::new(Semaphore::new(SPARE.max(config.connections))),
            loss: LossHandler::default(),
            config,
        });
        let sessions = Sessions { shared: Arc::clone(&shared) };
        sessions.on_thread(async move { shared.suits().await }).await?;
        Ok(sessions)
    }

    /// Runs work to its end on the store's thread, also if this future is dropped.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T> {
        let ended = RUNTIME.spawn(work).await;
        let ended = ended.unwrap_or_else(|_| Err(Fault::Silence)); // it panicked
        ended.map_err(|fault| fault.explain(&self.shared.address, ""))
    }

    /// Waits for the turn of this lock, and keeps it until the answer is dropped.
    async fn turn(&self, line: &Name) -> Held {
        let turn = Arc::clone(self.shared.lines.lock().entry(line.clone()).or_default());
        turn.lock_owned().await
    }

    async fn record(&self, sql: String) -> Result<Answer> {
        let shared = Arc::clone(&self.shared);
        self.on_thread(async move { shared.records.call(&sql).await }).await
    }
}

impl Shared {
    /// Refuses servers and proxies on which a connection's locks are not what they seem.
    async fn suits(&self) -> Result<(), Fault> {
        self.records.call("SELECT 1").await?; // the version of the tables
        let mut conn = connect(&self.opts, &self.config).await?;
        let mine = format!("SELECT @@pseudo_thread_id = {}", conn.id());
        let direct: Option<u8> = ask(&mut conn, &mine).await?.rows.first().and_then(|r| r.get(0));
        let sql = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
                   ('wsrep_on', 'group_replication_group_name') AND Value NOT IN ('', 'OFF')";
        let spread = !ask(&mut conn, sql).await?.rows.is_empty();
        let why = if spread {
            "is part of a cluster (Galera or group replication), whose nodes do not know of one \
             another's connection locks"
        } else if direct == Some(0) {
            "is reached through a proxy that shares connections, so that a connection's locks are \
             not its own; use the server's own address"
        } else {
            return Ok(());
        };
        let message = format!("{} {why}; or use the scheme \"table\"", self.address);
        Err(Fault::Ours(ErrorKind::Unsupported, message))
    }

    async fn enter(
        self: &Arc<Self>,
        line: &Name,
        held: &mut Held,
        ticket: &Ticket,
        note: &str,
        how: Enter,
        asker: &Asker,
    ) -> Result<Standing, Fault> {
        let again = AGAIN.pause(0, fastrand::u64(..));
        let busy = Ok(Standing::Waiting { seq: None, again });
        let sent = clock::now();
        if held.as_ref().is_some_and(|hold| hold.until <= sent) {
            Self::free(held);
        }
        if let Some(hold) = held.as_mut() {
            match how {
                Enter::Keep(seq) if hold.id != ticket.id || hold.seq != seq => {
                    return Ok(Standing::Lost);
                }
                _ if hold.id != ticket.id => return busy,
                _ => {}
            }
            let (seq, until) = (hold.seq, hold.until.max(sent.after(ticket.lease)));
            if self.holds(line, hold).await {
                let sql = text::renew_session(line, ticket, note, seq);
                if self.records.call(&sql).await?.changed > 0 {
                    hold.until = until;
                    return Ok(Standing::Admitted(seq));
                }
            }
            Self::free(held); // taken away: by force, or with its connection
            return Ok(Standing::Lost);
        }
        if matches!(how, Enter::Keep(_)) {
            return Ok(Standing::Lost);
        }
        if asker.has_given_up() {
            return busy;
        }
        let Some(held_by) = self.take(line).await? else {
            self.end_lapsed(line).await?;
            return busy;
        };
        if asker.has_given_up() {
            // Nobody was told of it, and it is not on record.
            self.release(line, held_by).await;
            return busy;
        }
        let (until, session) = (sent.after(ticket.lease), held_by.session);
        let watch = self.look_after(line, ticket.id, until, held_by.end.clone());
        **held = Some(Hold { id: ticket.id, seq: Seq(0), until, held_by, _watch: watch });
        match (self.records.call(&text::own(line, ticket, session, note)).await, held.as_mut()) {
            (Ok(answer), Some(hold)) if answer.changed > 0 => {
                hold.seq = Seq(answer.insert_id);
                Ok(Standing::Admitted(hold.seq))
            }
            (answer, _) => {
                Self::free(held);
                answer.and(busy) // without a fault its session has ended
            }
        }
    }

    /// Asks the server for the lock; none if another connection has it.
    async fn take(&self, line: &Name) -> Result<Option<Watched>, Fault> {
        if self.lines.lock().len() > MOST {
            let message = format!(
                "this process holds or asks for {MOST} locks at {}, and each needs a connection; \
                 use the scheme \"table\"",
                self.address
            );
            return Err(Fault::Ours(ErrorKind::Unavailable, message));
        }
        let limit = clock::now().after(self.config.timeout);
        let idle = self.idle.lock().pop();
        let fresh = idle.is_none();
        let asked = within(limit, self.ask_for(line, idle)).await.unwrap_or(Err(Fault::Silence));
        match asked {
            // The server has closed an idle connection.
            Err(Fault::Unsent(_) | Fault::Broken(_)) if !fresh => {
                self.idle.lock().clear();
                within(limit, self.ask_for(line, None)).await.unwrap_or(Err(Fault::Silence))
            }
            asked => asked,
        }
    }

    async fn ask_for(&self, line: &Name, idle: Option<Watched>) -> Result<Option<Watched>, Fault> {
        let mut link = if let Some(link) = idle {
            link
        } else {
            let mut link = watched(&self.opts, &self.config).await?;
            link.conn.ask(SESSION).await?;
            let named = link.conn.ask(&text::name_session(link.session)).await?;
            if named.rows.first().and_then(|row| row.get(0)) != Some(Some(1_u8)) {
                return Err(Fault::Silence);
            }
            link
        };
        let conn = &mut link.conn;
        if self.config.scheme == Scheme::Named {
            let answer = conn.ask(&text::get_lock(line)).await?;
            return match answer.rows.first().and_then(|row| row.get::<Option<u8>, _>(0)) {
                Some(Some(1)) => Ok(Some(link)),
                Some(Some(0)) => {
                    self.spare(link);
                    Ok(None)
                }
                _ => Err(Fault::Silence), // NULL: it was interrupted, and nothing is held
            };
        }
        loop {
            let found = match conn.ask(&text::lock_row(line)).await {
                Ok(answer) if !answer.rows.is_empty() => return Ok(Some(link)),
                Ok(_) => {
                    conn.ask("ROLLBACK").await?;
                    conn.ask(&text::make_row(line)).await.map(drop)
                }
                Err(fault) => Err(fault),
            };
            match found {
                Ok(()) => drop(conn.ask("COMMIT").await?),
                Err(fault) if fault.is(&LOCKED) => {
                    conn.ask("ROLLBACK").await?;
                    self.spare(link);
                    return Ok(None);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Keeps a connection for the next lock, unless there are enough.
    fn spare(&self, link: Watched) {
        let mut idle = self.idle.lock();
        if idle.len() < SPARE.max(self.config.connections) {
            idle.push(link);
        }
    }

    /// Whether the connection still holds the lock. It is given as long as the lease lasts.
    async fn holds(&self, line: &Name, hold: &mut Hold) -> bool {
        let sql = match self.config.scheme {
            Scheme::Named => text::is_mine(line),
            _ => "SELECT 1".to_owned(), // its transaction is open for as long as it answers
        };
        let answer = within(hold.until, hold.held_by.conn.ask(&sql)).await;
        let yes = |answer: Answer| answer.rows.first().and_then(|row| row.get(0)) == Some(1_u8);
        answer.is_some_and(|answer| answer.is_ok_and(yes))
    }

    /// Gives a lock up, if it is held, by closing its connection. A connection that is still on
    /// record must hold nothing else: others may end it.
    fn free(held: &mut Held) {
        drop(held.take());
    }

    /// Gives a lock up that is not on record, and keeps its connection.
    async fn release(&self, line: &Name, mut held_by: Watched) {
        let limit = clock::now().after(self.config.timeout);
        let sql = match self.config.scheme {
            Scheme::Named => text::release_lock(line),
            _ => "ROLLBACK".to_owned(),
        };
        if let Some(Ok(_)) = within(limit, held_by.conn.ask(&sql)).await {
            self.spare(held_by);
        }
    }

    /// Ends the connection that holds a lock for longer than its lease: that of a process which was
    /// stopped, or of a machine that is gone.
    async fn end_lapsed(&self, line: &Name) -> Result<(), Fault> {
        let answer = self.records.call(&text::lapsed_session(line)).await?;
        self.end(&answer).await
    }

    /// Ends the session of this answer, if there is one in it.
    async fn end(&self, answer: &Answer) -> Result<(), Fault> {
        let Some(session) = answer.rows.first().and_then(|row| row.get(0)) else { return Ok(()) };
        match self.records.call(&text::end_session(session)).await {
            Err(fault) if fault.is(&["1094"]) => Ok(()), // it has ended
            ended => ended.map(drop),
        }
    }

    /// Takes a lock away from whoever has it by this ticket, perhaps another process.
    async fn take_away(&self, line: &Name, id: TicketId) -> Result<bool, Fault> {
        let found = self.records.call(&text::session(line, id)).await?;
        if found.rows.is_empty() {
            return Ok(false);
        }
        let there = self.records.call(&text::forget(line, id)).await?.changed > 0;
        if there {
            self.end(&found).await?;
        }
        Ok(there)
    }

    async fn leave(&self, line: &Name, held: &mut Held, id: TicketId) -> Result<bool, Fault> {
        if held.as_ref().is_none_or(|hold| hold.id != id) {
            return self.take_away(line, id).await;
        }
        let there = held.as_ref().is_some_and(|hold| clock::now() < hold.until);
        // The lock is freed whether or not its record can be.
        let record = self.records.call(&text::forget(line, id)).await;
        if record.as_ref().is_ok_and(|answer| answer.changed > 0) {
            if let Some(hold) = held.take() {
                self.release(line, hold.held_by).await;
            }
            return Ok(there);
        }
        Self::free(held);
        if record?.repeated {
            return Err(outcome_unknown(&self.address, line).into());
        }
        Ok(false)
    }

    /// Gives a lock up when its connection has ended, or its lease.
    fn look_after(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
        mut until: Time,
        mut end: End,
    ) -> JoinSet<()> {
        let (shared, line) = (Arc::downgrade(self), line.clone());
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            loop {
                tokio::select! {
                    () = end.wait() => {}
                    () = clock::sleep_until(until) => {}
                }
                let Some(shared) = shared.upgrade() else { return };
                let Some(turn) = shared.lines.lock().get(&line).cloned() else { return };
                let mut held = turn.lock_owned().await;
                match held.as_ref() {
                    Some(hold) if hold.id == id && !end.has_come() && clock::now() < hold.until => {
                        until = hold.until; // it was renewed
                    }
                    Some(hold) if hold.id == id => {
                        Self::free(&mut held);
                        shared.loss.hint(id);
                        return shared.forget_line(&line, held);
                    }
                    _ => return shared.forget_line(&line, held),
                }
            }
        });
        watch
    }

    /// Ends a turn. What nobody holds or asks for is not kept.
    fn forget_line(&self, name: &Name, held: Held) {
        let mut lines = self.lines.lock();
        let free = held.is_none();
        drop(held);
        // One in the table: nobody has another, since they are made under this lock.
        if free && lines.get(name).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(name);
        }
    }
}

impl AsyncStore for Sessions {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Err(refuse(line, ticket, Refusal::Weight));
        }
        let mut held = self.turn(line).await;
        let turn = match how {
            Enter::Keep(_) => None,
            // The semaphore is never closed.
            Enter::Try | Enter::Queue => Arc::clone(&self.shared.turns).acquire_owned().await.ok(),
        };
        let (shared, line) = (Arc::clone(&self.shared), line.clone());
        let (ticket, note) = (*ticket, Arc::clone(note));
        let alive = Arc::new(());
        let asker = Asker(Arc::downgrade(&alive));
        let work = self.on_thread(async move {
            let standing = shared.enter(&line, &mut held, &ticket, &note, how, &asker).await;
            shared.forget_line(&line, held);
            drop(turn);
            standing
        });
        let standing = work.await;
        drop(alive);
        standing
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let mut held = self.turn(line).await;
        let (shared, line) = (Arc::clone(&self.shared), line.clone());
        self.on_thread(async move {
            let left = shared.leave(&line, &mut held, id).await;
            shared.forget_line(&line, held);
            left
        })
        .await
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        pending().await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let answer = self.record(text::look_session(line)).await?;
        text::snapshot(answer.rows).ok_or_else(|| invalid_reply(&self.shared.address, line))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let answer = self.record(text::list_sessions(prefix)).await?;
        Ok(answer.rows.into_iter().filter_map(text::name).collect())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let (sql, shared) = (text::disown(line, id, note, EVICTION_TIME), Arc::clone(&self.shared));
        let found = text::session(line, id);
        let work = async move {
            let found = shared.records.call(&found).await?;
            let answer = shared.records.call(&sql).await?;
            shared.end(&found).await?;
            Ok(answer)
        };
        let answer = self.on_thread(work).await?;
        let token = answer.rows.first().and_then(|row| row.get::<u64, _>(0)).unwrap_or(0);
        if token > 0 {
            self.shared.loss.hint(id);
        }
        Ok(Some(Seq(token)).filter(|token| token.0 > 0))
    }

    fn capabilities(&self) -> Capabilities {
        SESSION_LOCKS
    }

    /// The same: its work is done on a thread of its own.
    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.shared.loss.0.set(loss_hint);
    }

    fn address(&self) -> String {
        self.shared.address.clone()
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.address)
    }
}
