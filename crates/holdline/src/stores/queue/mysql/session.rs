//! The schemes `row` and `named`: a row locked by an open transaction, and one of the server's
//! named locks (`GET_LOCK`). This module has the statements; the engine is
//! [`SessionLocks`](crate::stores::queue::sessions::SessionLocks).
//!
//! Each lock has a connection of its own, whose end is seen on its socket. The server has no
//! leases, but it ends a connection that was idle for `wait_timeout`. The statements that take and
//! renew a lock set it to the lease, so the server frees the lock of a process that was stopped or
//! a machine that is gone, whenever that happens.
//!
//! A record beside the lock tells others the holder, its session and its expiry. It is the only
//! place of a line of the lease table, whose statements serve for it. A session is identified by a
//! random number, because a restarted server assigns connection numbers again. While the session
//! lasts, it holds a named lock with that number. The token is incremented by the statement that
//! writes the record, on another connection, so that no rollback takes it back.

use super::config::{Config, Scheme};
use super::connection::{Connections, Owned, connect, runtime};
use super::relay::{Watched, watched};
use super::text::{self, Key};
use crate::clock;
use crate::error::{ErrorKind, Result};
use crate::names::Name;
use crate::store::{Capabilities, EVICTION_TIME, QueueSnapshot, Seq, TicketId};
use crate::stores::queue::calls::{Answer, snapshot};
use crate::stores::queue::in_flight::outcome_unknown;
use crate::stores::queue::sessions::{Answer as Answered, Asked, Dialect, Held, Lock};
use crate::stores::queue::sql::{Fault, SESSION_LOCKS, answered, invalid_reply};
use crate::stores::runtime::Background;
use crate::sync::Mutex;
use futures_util::future::BoxFuture;
use holdline_kernel::Backoff;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The pause before asking again for a held lock. It varies, because at fixed intervals a waiter
/// may miss every moment at which the lock is free.
const AGAIN: Backoff = Backoff::fixed(Duration::from_millis(100)).jitter(50);
/// The number of spare connections kept, and of concurrent acquisitions, unless more connections
/// are configured.
const SPARE: usize = 8;
/// The maximum number of locks of one process: each needs a connection.
const MOST: usize = 64;
/// `wait_timeout` of a connection that holds nothing, in seconds.
const IDLE: u64 = 86_400;

/// The settings of a connection for locks. Each statement begins a transaction. It waits only to
/// create a row. The server ends the connection after the lease of its lock, and neither for its
/// age nor for an idle transaction. With REPEATABLE READ, InnoDB would turn the row lock into one
/// on the gap beside it when it splits a page or removes a row there. Others could then insert no
/// rows into that gap, and so not take free locks for as long as this one is held.
const SESSION: &str = "SET SESSION autocommit = 0, /*M! idle_transaction_timeout = 0, \
    idle_write_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, */ \
    wait_timeout = 86400; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// The dialect of locks that connections hold.
pub(super) struct Sessions {
    /// The connections for records of holders and for tokens.
    records: Arc<Connections>,
    /// The same, and one reserved for renewals.
    renewals: Arc<Connections>,
    /// Connections that hold nothing.
    idle: Mutex<Vec<Watched>>,
}

/// Whole seconds, rounded up.
fn seconds(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis().div_ceil(1000)).unwrap_or(IDLE).clamp(1, IDLE)
}

impl Sessions {
    pub(super) fn new(config: Config) -> Result<Self> {
        let records = Connections::new(config)?;
        Ok(Sessions { renewals: records.background(), records, idle: Mutex::default() })
    }

    fn config(&self) -> &Config {
        &self.records.config
    }

    fn is_named(&self) -> bool {
        self.config().scheme == Scheme::Named
    }

    /// The key of the line with the record of the holder.
    fn key(&self, line: &Name) -> Key {
        Key::new(self.config().scheme, line)
    }

    /// Asks the server for the lock; `None` if another connection has it.
    async fn ask_for(
        &self,
        line: &Name,
        lease: Duration,
        idle: Option<Watched>,
    ) -> Answered<Option<Watched>> {
        let mut link = if let Some(link) = idle {
            link
        } else {
            let mut link = watched(&self.records.opts, self.config()).await?;
            link.conn.ask(SESSION).await?;
            let named = link.conn.ask(&text::name_session(link.session)).await?;
            if named.number() != Some(1) {
                return Err(Fault::Silence);
            }
            link
        };
        let (conn, lease) = (&mut link.conn, seconds(lease));
        if self.is_named() {
            let (take, mine) = (text::get_lock(line), text::is_mine(line));
            let sql =
                format!("{take}; SET SESSION wait_timeout = IF(({mine}) <=> 1, {lease}, {IDLE})");
            return match conn.ask(&sql).await?.number() {
                Some(1) => Ok(Some(link)),
                Some(0) => {
                    self.spare(link);
                    Ok(None)
                }
                _ => Err(Fault::Silence), // NULL: it was interrupted, and nothing is held
            };
        }
        let take = format!("{}; SET SESSION wait_timeout = {lease}", text::lock_row(line));
        loop {
            let found = match conn.ask(&take).await {
                Ok(answer) if !answer.rows.is_empty() => return Ok(Some(link)),
                Ok(_) => {
                    conn.ask("ROLLBACK").await?;
                    conn.ask(&text::make_row(line)).await.map(drop)
                }
                Err(fault) => Err(fault),
            };
            match found {
                Ok(()) => drop(conn.ask("COMMIT").await?),
                Err(fault) if fault.locked() => {
                    self.give_back(line, link).await;
                    return Ok(None);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Records the holder of a lock.
    async fn record(&self, line: &Name, asked: &Asked, session: u64) -> Answered<Answer> {
        let key = self.key(line);
        let record = text::record(&key, &asked.ticket, session, &asked.note);
        let first = self.records.call_for(None, record.clone()).await?;
        if first.changed > 0 {
            return Ok(first);
        }
        self.records.call(&text::make_line(&key)).await?; // the name's first use
        let second = self.records.call_for(None, record).await?;
        Ok(Answer { repeated: first.repeated || second.repeated, ..second })
    }

    /// Gives a session another number.
    async fn rename(&self, link: &mut Watched) -> Answered<()> {
        let (from, to) = (link.session, fastrand::u64(1..1 << 63));
        let limit = clock::now().after(self.config().timeout);
        let renamed = answered(limit, link.conn.ask(&text::rename_session(from, to))).await?;
        link.session = to;
        if renamed.number() == Some(2) { Ok(()) } else { Err(Fault::Silence) }
    }

    /// Releases a lock that is not on record, and keeps its connection.
    async fn give_back(&self, line: &Name, mut link: Watched) {
        let free = if self.is_named() { text::release_lock(line) } else { "ROLLBACK".to_owned() };
        let sql = format!("{free}; SET SESSION wait_timeout = {IDLE}");
        let limit = clock::now().after(self.config().timeout);
        if answered(limit, link.conn.ask(&sql)).await.is_ok() {
            self.spare(link);
        }
    }

    /// Keeps a connection for the next lock, unless there are enough.
    fn spare(&self, link: Watched) {
        let mut idle = self.idle.lock();
        if idle.len() < SPARE.max(self.config().connections) {
            idle.push(link);
        }
    }

    /// Ends the session in this answer, if there is one.
    async fn end(&self, answer: &Answer) -> Answered<()> {
        let Some(session) = answer.number() else { return Ok(()) };
        match self.records.call(&text::end_session(session)).await {
            Err(fault) if fault.is(&["1094"]) => Ok(()), // already ended
            ended => ended.map(drop),
        }
    }
}

impl Dialect for Sessions {
    type Hold = Watched;

    const RECORDS: bool = true;
    const MORE: &str = "use the scheme \"table\"";

    fn background() -> Result<&'static Background> {
        runtime()
    }

    fn most(&self) -> (usize, usize) {
        (MOST, SPARE.max(self.config().connections))
    }

    async fn check(&self) -> Answered<()> {
        self.records.call("SELECT 1").await?; // checks the version of the tables
        let asked = async {
            let conn = connect(&self.records.opts, self.config()).await?;
            let mine = format!("SELECT @@pseudo_thread_id = {}", conn.id());
            let mut conn = Owned(Some(conn));
            let sql = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
                       ('wsrep_on', 'group_replication_group_name') AND Value NOT IN ('', 'OFF')";
            let probe = text::name_session(fastrand::u64(1..1 << 63));
            let taken = conn.ask(&probe).await?.number();
            let rival = self.records.call(&probe).await?.number();
            // Asked last: an answer shows that the connection still had its lock when the other one
            // asked for it.
            let direct = conn.ask(&mine).await?.number();
            let spread = !conn.ask(sql).await?.rows.is_empty();
            Ok::<_, Fault>((direct, spread, [taken, rival] == [Some(1), Some(0)]))
        };
        let limit = clock::now().after(self.config().timeout);
        let (direct, spread, excludes) = answered(limit, asked).await?;
        let why = if spread {
            "is part of a cluster (Galera or group replication), whose nodes do not know of one \
             another's connection locks"
        } else if direct == Some(0) {
            "is reached through a proxy that shares connections, so that a connection's locks are \
             not its own; use the server's own address"
        } else if !excludes {
            "has named locks (GET_LOCK) that exclude nobody, or refuses them"
        } else {
            return Ok(());
        };
        let message = format!("{self} {why}; or use the scheme \"table\"");
        Err(Fault::Ours(ErrorKind::Unsupported, message))
    }

    fn identity(&self, line: &Name) -> Result<String> {
        Ok(line.to_string())
    }

    async fn take(&self, lock: &Lock, asked: &Asked) -> Answered<Option<(Watched, Seq)>> {
        let (line, lease) = (&lock.line, asked.ticket.lease);
        let limit = clock::now().after(self.config().timeout);
        let idle = self.idle.lock().pop();
        let fresh = idle.is_none();
        let taken = match answered(limit, self.ask_for(line, lease, idle)).await {
            // The server has closed an idle connection.
            Err(Fault::Unsent(_) | Fault::Broken(_)) if !fresh => {
                self.idle.lock().clear();
                answered(limit, self.ask_for(line, lease, None)).await
            }
            taken => taken,
        };
        let Some(mut link) = taken? else { return Ok(None) };
        if asked.caller.is_closed() {
            self.give_back(line, link).await; // the caller has given up
            return Ok(None);
        }
        let mut answer = self.record(line, asked, link.session).await?;
        if answer.repeated {
            // The first request may come late, when this session has another lock. It must not name
            // this session then.
            self.rename(&mut link).await?;
            answer = self.record(line, asked, link.session).await?;
            if answer.repeated {
                return Err(Fault::doubtful());
            }
        }
        // If nothing was recorded, the session has ended.
        Ok((answer.changed > 0).then_some((link, Seq(answer.insert_id))))
    }

    async fn renew(&self, lock: &Lock, held: &mut Held<Watched>, asked: &Asked) -> Answered<bool> {
        // The transaction of a row is open for as long as its connection answers.
        let mine = if self.is_named() { text::is_mine(&lock.line) } else { "SELECT 1".to_owned() };
        let sql = format!("{mine}; SET SESSION wait_timeout = {}", seconds(asked.ticket.lease));
        // May take as long as the lease: a connection in the middle of an answer is of no use.
        let answer = answered(held.until, held.hold.conn.ask(&sql)).await;
        let mine = answer.is_ok_and(|answer| answer.number() == Some(1));
        let key = self.key(&lock.line);
        let Some(renew) = text::quick_renew(&key, &asked.ticket, &asked.note, held.seq) else {
            let message = "row and named locks cannot raise a holder's token";
            return Err(Fault::Ours(ErrorKind::Unsupported, message.to_owned()));
        };
        Ok(mine && self.renewals.call_for(None, renew).await?.changed > 0)
    }

    /// A connection still on record must not be reused, because others may end it.
    async fn release(&self, lock: &Lock, id: TicketId, link: Option<Watched>) -> Answered<bool> {
        let key = self.key(&lock.line);
        let elsewhere = match &link {
            Some(_) => Answer::default(),
            None => self.records.call(&text::session_of(&key, id)).await?,
        };
        if link.is_none() && elsewhere.rows.is_empty() {
            return Ok(false);
        }
        // The lock is freed even if its record cannot be cleared.
        let cleared = self.records.call_for(None, text::quick_leave(&key, id)).await?;
        let there = cleared.found(cleared.changed > 0, self, &lock.line)?;
        match link {
            Some(link) if there => self.give_back(&lock.line, link).await,
            None if there => self.end(&elsewhere).await?,
            _ => {}
        }
        Ok(there)
    }

    fn ended(link: &Watched) -> BoxFuture<'static, ()> {
        let mut end = link.end.clone();
        Box::pin(async move { drop(end.changed().await) }) // nothing is ever sent
    }

    async fn evict(&self, lock: &Lock, id: TicketId, note: &str) -> Answered<Option<Seq>> {
        let key = self.key(&lock.line);
        let found = self.records.call(&text::session_of(&key, id)).await?;
        let answer = self.records.call(&text::evict(&key, id, note, EVICTION_TIME)).await?;
        let token = answer.number().filter(|token| *token > 0).map(Seq);
        if token.is_some() {
            // Its holder had not released it, so the session has no other lock since.
            self.end(&found).await?;
        } else if answer.repeated && !found.rows.is_empty() {
            return Err(outcome_unknown(self, &lock.line).into());
        }
        Ok(token)
    }

    async fn look(&self, lock: &Lock) -> Answered<QueueSnapshot> {
        let answer = self.records.call(&text::look(&self.key(&lock.line))).await?;
        snapshot(&answer.rows).ok_or_else(|| invalid_reply(self, &lock.line).into())
    }

    async fn list(&self, prefix: &str) -> Answered<Vec<Name>> {
        let list = text::list(self.config().scheme, prefix);
        Ok(self.records.call(&list).await?.names())
    }

    fn pause(&self) -> Duration {
        AGAIN.pause(0, fastrand::u64(..))
    }

    fn capabilities(&self) -> Capabilities {
        SESSION_LOCKS
    }
}

impl fmt::Display for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config().fmt(f)
    }
}
