//! The schemes `row` and `named`: locks that a connection holds, so that they end with it.
//!
//! `row`: a row that an open transaction has locked, one connection for each lock. `named`: the
//! server's own named locks (`GET_LOCK`), all of a process on one connection. Nobody waits in the
//! server: waiters ask again. The server counts a named lock up when its connection asks again, and
//! has no leases; so what this process holds is recorded here, and given up when its lease is over.
//!
//! The token is counted by a statement of another connection once the lock is held, so that no
//! rollback takes it back.
//!
//! Operations run in tasks of the store's own thread, one at a time for each lock. Dropping a call
//! therefore never leaves a connection in the middle of one: a later call about the same lock waits
//! for its end.

use super::config::{Config, Scheme};
use super::connection::{Answer, Connections, Owned, ask, connect};
use super::errors::Fault;
use super::{opts, text};
use crate::clock::{self, within};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, EVICTION_TIME, Enter, LossHint, QueueSnapshot, Refusal, Seq,
    Standing, Ticket, TicketId, refuse,
};
use crate::stores::runtime::{LossHandler, runtime};
use crate::sync::Mutex;
use holdline_kernel::Time;
use mysql_async::Opts;
use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// How often the connections of held locks are asked whether they are there.
const LOOK: Duration = Duration::from_millis(250);
/// How long to wait before asking again for a lock that is held.
const AGAIN: Duration = Duration::from_millis(500);
/// The most named locks of one process: the server keeps each in memory.
const NAMED_MOST: usize = 10_000;

/// A store of locks that connections hold.
#[derive(Clone)]
pub(super) struct Sessions {
    shared: Arc<Shared>,
    runtime: &'static Handle,
}

struct Shared {
    config: Config,
    opts: Opts,
    address: String,
    /// For records of holders, and tokens.
    records: Connections,
    /// The locks that this process holds, or is just asking for.
    lines: Mutex<HashMap<Name, Line>>,
    /// The connection that holds the named locks; and how many there were before it.
    named: Turn<(u64, Option<Owned>)>,
    /// Connections without a transaction.
    idle: Mutex<Vec<Owned>>,
    loss: LossHandler,
}

type Line = Arc<Turn<Option<Hold>>>;
type Held = OwnedMutexGuard<Option<Hold>>;

/// A lock that is held.
struct Hold {
    id: TicketId,
    seq: Seq,
    until: Time,
    link: Link,
}

/// What holds a lock.
enum Link {
    /// A connection with an open transaction.
    Row(Owned),
    /// The connection of this number, for named locks.
    Named(u64),
}

impl Sessions {
    pub(super) async fn open(config: Config) -> Result<Self> {
        static RUNTIME: OnceLock<Handle> = OnceLock::new();
        let runtime = runtime(&RUNTIME, "mysql")?;
        let shared = Arc::new(Shared {
            opts: opts::of(&config)?,
            address: config.address(),
            // A renewal counts, also if it changes nothing.
            records: Connections::new(
                &Arc::new(Config { found_rows: true, ..config.clone() }),
                config.connections,
            )?,
            config,
            lines: Mutex::default(),
            named: Turn::new((0, None)),
            idle: Mutex::default(),
            loss: LossHandler::default(),
        });
        let sessions = Sessions { shared: Arc::clone(&shared), runtime };
        sessions.on_thread(async move { shared.suits().await }).await?;
        let weak = Arc::downgrade(&sessions.shared);
        runtime.spawn(async move {
            while let Some(shared) = weak.upgrade() {
                shared.look_after().await;
                drop(shared);
                clock::pause(LOOK).await;
            }
        });
        Ok(sessions)
    }

    /// Runs work to its end on the store's thread, also if this future is dropped.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T> {
        let ended = self.runtime.spawn(work).await;
        let ended = ended.unwrap_or_else(|_| Err(Fault::Silence)); // it panicked
        ended.map_err(|fault| fault.explain(&self.shared.address))
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
        Err(Fault::Ours(Error::new(ErrorKind::Unsupported, message)))
    }

    async fn enter(
        &self,
        line: &Name,
        held: &mut Held,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> Result<Standing, Fault> {
        let busy = Ok(Standing::Waiting { seq: None, again: AGAIN });
        let sent = clock::now();
        if held.as_ref().is_some_and(|hold| hold.until <= sent) {
            self.free(line, held).await;
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
            self.free(line, held).await; // taken away: by force, or with its connection
            return Ok(Standing::Lost);
        }
        if matches!(how, Enter::Keep(_)) {
            return Ok(Standing::Lost);
        }
        let Some(link) = self.take(line).await? else { return busy };
        let until = sent.after(ticket.lease);
        **held = Some(Hold { id: ticket.id, seq: Seq(0), until, link });
        let own = self.records.call(&text::own(line, ticket, note)).await;
        let seq = own.and_then(|answer| {
            let token = answer.rows.first().and_then(|row| row.get::<u64, _>(0));
            token.map(Seq).ok_or(Fault::Silence)
        });
        match (seq, held.as_mut()) {
            (Ok(seq), Some(hold)) => {
                hold.seq = seq;
                Ok(Standing::Admitted(seq))
            }
            (seq, _) => {
                self.free(line, held).await;
                seq.and(Err(Fault::Silence))
            }
        }
    }

    /// Asks the server for the lock; none if another connection has it.
    async fn take(&self, line: &Name) -> Result<Option<Link>, Fault> {
        let limit = clock::now().after(self.config.timeout);
        if self.config.scheme == Scheme::Named {
            return within(limit, self.take_named(line)).await.unwrap_or(Err(Fault::Silence));
        }
        let idle = self.idle.lock().pop();
        let taken = within(limit, self.take_row(line, idle)).await;
        taken.unwrap_or(Err(Fault::Silence))
    }

    async fn take_named(&self, line: &Name) -> Result<Option<Link>, Fault> {
        if self.lines.lock().len() > NAMED_MOST {
            let message = format!("this process has {NAMED_MOST} named locks at {}", self.address);
            return Err(Fault::Ours(Error::new(ErrorKind::Unavailable, message)));
        }
        let mut named = self.named.lock().await;
        // It comes back when it has answered; if this is dropped before, it is closed.
        let mut conn = match named.1.take() {
            Some(conn) => conn,
            None => {
                named.0 += 1; // the locks of those before it are lost
                Owned(Some(connect(&self.opts, &self.config).await?))
            }
        };
        let answer = conn.ask(&text::get_lock(line)).await?;
        named.1 = Some(conn);
        match answer.rows.first().and_then(|row| row.get::<Option<u8>, _>(0)) {
            Some(Some(1)) => Ok(Some(Link::Named(named.0))),
            Some(Some(0)) => Ok(None),
            _ => Err(Fault::Silence), // NULL: it was interrupted, and nothing is held
        }
    }

    async fn take_row(&self, line: &Name, idle: Option<Owned>) -> Result<Option<Link>, Fault> {
        let mut conn = match idle {
            Some(conn) => conn,
            None => {
                let mut conn = Owned(Some(connect(&self.opts, &self.config).await?));
                // Each statement begins a transaction. It waits only to make a row.
                conn.ask("SET SESSION autocommit = 0, innodb_lock_wait_timeout = 1").await?;
                conn
            }
        };
        loop {
            let found = match conn.ask(&text::lock_row(line)).await {
                Ok(answer) if !answer.rows.is_empty() => return Ok(Some(Link::Row(conn))),
                Ok(_) => {
                    conn.ask("ROLLBACK").await?;
                    conn.ask(&text::make_row(line)).await.map(drop)
                }
                Err(fault) => Err(fault),
            };
            match found {
                Ok(()) => drop(conn.ask("COMMIT").await?),
                Err(fault) if fault.locked() => {
                    conn.ask("ROLLBACK").await?;
                    self.spare(conn);
                    return Ok(None);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Keeps a connection for the next lock, unless there are enough.
    fn spare(&self, conn: Owned) {
        let mut idle = self.idle.lock();
        if idle.len() < self.config.connections {
            idle.push(conn);
        }
    }

    /// Whether the server still holds it. The server is given as long as the lease lasts.
    async fn holds(&self, line: &Name, hold: &mut Hold) -> bool {
        let until = hold.until;
        match &mut hold.link {
            Link::Row(conn) => within(until, conn.ask("DO 1")).await.is_some_and(|it| it.is_ok()),
            Link::Named(number) => {
                let sql = text::is_mine(line);
                let ask = async {
                    let mut named = self.named.lock().await;
                    if named.0 != *number {
                        return false;
                    }
                    let Some(mut conn) = named.1.take() else { return false };
                    let Ok(answer) = conn.ask(&sql).await else { return false };
                    named.1 = Some(conn);
                    answer.rows.first().and_then(|row| row.get::<Option<u8>, _>(0)) == Some(Some(1))
                };
                within(until, ask).await.unwrap_or(false)
            }
        }
    }

    /// Gives a lock up, if it is held. If the server cannot be asked, its connection is closed.
    async fn free(&self, line: &Name, held: &mut Held) {
        let Some(hold) = held.take() else { return };
        let limit = clock::now().after(self.config.timeout);
        match hold.link {
            Link::Row(mut conn) => {
                if let Some(Ok(_)) = within(limit, conn.ask("ROLLBACK")).await {
                    self.spare(conn);
                }
            }
            Link::Named(number) => {
                let mut named = self.named.lock().await;
                if named.0 == number
                    && let Some(mut conn) = named.1.take()
                    && let Some(Ok(_)) = within(limit, conn.ask(&text::release_lock(line))).await
                {
                    named.1 = Some(conn);
                }
            }
        }
    }

    async fn leave(&self, line: &Name, held: &mut Held, id: TicketId) -> Result<bool, Fault> {
        if held.as_ref().is_none_or(|hold| hold.id != id) {
            return Ok(false);
        }
        let there = held.as_ref().is_some_and(|hold| clock::now() < hold.until);
        // The record is for people: the lock is freed whether or not it can be written.
        let record = self.records.call(&text::forget(line, id)).await;
        self.free(line, held).await;
        Ok(record.is_ok_and(|answer| answer.changed > 0) && there)
    }

    /// Gives up what has lapsed, and asks the connections of what is held.
    async fn look_after(&self) {
        let lines: Vec<(Name, Line)> =
            self.lines.lock().iter().map(|(name, line)| (name.clone(), Arc::clone(line))).collect();
        for (name, line) in lines {
            // Whoever has the turn looks for itself.
            let Ok(mut held) = line.try_lock_owned() else { continue };
            if let Some(hold) = held.as_mut() {
                let id = hold.id;
                let lapsed = hold.until <= clock::now();
                if lapsed || !self.holds(&name, hold).await {
                    self.free(&name, &mut held).await;
                    if let Some(hint) = self.loss.0.get() {
                        hint(id);
                    }
                }
            }
            self.forget_line(&name, held);
        }
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
        let (shared, line) = (Arc::clone(&self.shared), line.clone());
        let (ticket, note) = (*ticket, Arc::clone(note));
        self.on_thread(async move {
            let standing = shared.enter(&line, &mut held, &ticket, &note, how).await;
            shared.forget_line(&line, held);
            standing
        })
        .await
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
        text::snapshot(answer.rows).ok_or_else(|| {
            let message = format!("{} gave an answer that makes no sense", self.shared.address);
            Error::new(ErrorKind::Corrupt, message)
        })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let answer = self.record(text::list_sessions(prefix)).await?;
        Ok(answer.rows.into_iter().filter_map(text::name).collect())
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let answer = self.record(text::disown(line, id, note, EVICTION_TIME)).await?;
        let token = answer.rows.first().and_then(|row| row.get::<u64, _>(0)).unwrap_or(0);
        if token > 0
            && let Some(hint) = self.shared.loss.0.get()
        {
            hint(id);
        }
        Ok(Some(Seq(token)).filter(|token| token.0 > 0))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: false,
            fencing_tokens: true,
            notifications: false,
            weighted: false,
            token_ranges: false,
            swaps: false,
            crash_release: true,
            survives_failover: false,
            survives_restart: false,
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
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
