//! The schemes `advisory` and `row`: locks that a session (`pg_try_advisory_lock`) or an open
//! transaction (`SELECT ... FOR UPDATE`) holds. This module has the statements; the engine is
//! [`SessionLocks`](crate::stores::queue::sessions::SessionLocks).

use super::address::{Address, Scheme};
use super::batch::Call;
use super::connection::Connection;
use super::encode;
use super::errors::FULL;
use super::keys::{Key, KeyScheme, native};
use super::listener::Listener;
use super::mark::{self, Mark};
use super::pool::{Claim, Conn, Pool};
use super::schema::{self, check_server, quoted, statement};
use super::session::{self, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::names::{self, Name};
use crate::store::{Capabilities, Enter, QueueEntry, QueueSnapshot, Seq, Ticket, TicketId};
use crate::stores::queue::calls::Answer as Queried;
use crate::stores::queue::sessions::{Answer, Asked, Dialect, Held, Lock};
use crate::stores::queue::sql::{Fault, SESSION_LOCKS};
use crate::stores::runtime::Background;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The dialect of session and transaction locks.
pub(super) struct Sessions {
    address: Arc<Address>,
    pool: Pool,
    /// For looking at other clients' locks.
    looks: Connection,
    listener: Option<Listener>,
}

/// The maximum number of locks on one connection: all sessions of a server share its lock table.
const LOCKS_EACH: usize = 500;
/// How long a message may take before its connection is closed, which frees all its locks.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The pause of a waiter that is notified of releases, and of one that is not.
const TOLD_PAUSE: Duration = Duration::from_millis(500);
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// How long after the end of a lease the server ends the session or transaction, if its process has
/// not done so.
const GRACE: Duration = Duration::from_millis(250);

/// The channel on which all processes are notified of free locks.
const CHANNEL: &str = "holdline_free";
/// The advisory lock that all listeners share. If it can be taken exclusively, nobody waits, and a
/// release sends no notice.
const LISTENERS: &str = "4822917108";

/// The errors of a notice that cannot be sent in time: the server sends those of one transaction at
/// a time, and each until its commit is over. They come at the end of the release's transaction,
/// when the lock is free.
const NOTICE_FAILED: [&str; 2] = ["54000", "55P03"];

/// The settings of a connection for advisory locks. The server frees the locks of a client that was
/// cut off silently, no time limit but the lease ends the session, and the only thing that waits, a
/// notice, waits for 250 ms at most.
const ADVISORY_SETTINGS: &str = "\
    SELECT set_config(name, value, false) FROM (VALUES ('tcp_keepalives_idle', '5'), \
        ('tcp_keepalives_interval', '3'), ('tcp_keepalives_count', '3'), \
        ('tcp_user_timeout', '15000'), ('synchronous_commit', 'off'), ('lock_timeout', '250'), \
        ('statement_timeout', '0'), ('transaction_timeout', '0'), ('idle_session_timeout', '0')) \
    AS wanted (name, value) JOIN pg_settings USING (name)";
/// The same for the notice of a row's release, behind its transaction.
const NOTICE_SETTINGS: &str =
    "set_config('lock_timeout', '250', true), set_config('synchronous_commit', 'off', true)";

/// Limits the wait for the table itself, which `NOWAIT` does not: behind a program that wants all
/// of it, the server keeps sessions waiting that were given up long ago.
const LIMIT_WAITS: &str = "SET LOCAL lock_timeout = 800";

/// Moves the sequence forward by more than a server crash can take back, and to the server's clock
/// if that is later. One client at a time does so, and the others wait for the time of an answer at
/// most: while the server cannot commit, it would keep them waiting long after they have given up.
/// The message is a transaction of its own, without BEGIN, so that an error leaves none open.
const FORWARD: &str = "\
    SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = {timeout}; \
    SELECT pg_advisory_xact_lock(4822917106); \
    SELECT setval('\"holdline\".lock_token', \
        greatest(nextval('\"holdline\".lock_token') + 1048576, \
        (extract(epoch from clock_timestamp()) * 1000000)::bigint)), \
        '\"holdline\".lock_token'::regclass::oid";

/// The oldest server version with `idle_session_timeout`.
const OLDEST_FOR_ADVISORY: i32 = 140_000;
/// The oldest server version with `transaction_timeout`.
const WITH_TRANSACTION_TIMEOUT: i32 = 170_000;

fn forward(address: &Address) -> String {
    let timeout = address.timeout.as_millis().to_string();
    statement(&address.schema, FORWARD).replace("{timeout}", &timeout)
}

/// Prepares a new connection. Settings are not changed in a session that a proxy took from another
/// client.
pub(super) async fn prepare(mut session: Session, address: &Arc<Address>) -> Answer<Conn> {
    let advisory = matches!(address.scheme, Scheme::Advisory(_));
    let start = async {
        if advisory {
            return Mark::set(&session).await.map(|mark| (Some(mark), 0));
        }
        let answers = session.answers(&forward(address)).await?;
        Ok((None, answers.iter().find_map(sequence_of).unwrap_or(0)))
    };
    let (version, start) = join(check_server(&session, address), start).await;
    let version = version?;
    if advisory && version < OLDEST_FOR_ADVISORY {
        let message = format!(
            "{address} is older than PostgreSQL 14; scheme=advisory needs its idle_session_timeout"
        );
        return Err(Fault::Ours(ErrorKind::Unsupported, message));
    }
    let (mark, sequence) = start?;
    let sequence = AtomicU32::new(sequence);
    if let Some(mark) = &mark {
        let queries = advisory_queries(address.listen_at().is_some());
        mark.prepare(&session, ADVISORY_SETTINGS, &queries).await?;
    }
    session.timeout = CALL_LIMIT;
    Ok(Conn { session, version, mark, sequence, longest: AtomicU64::new(0) })
}

/// The server's number of the sequence of tokens, in an answer with a number from it.
fn sequence_of(answer: &Queried) -> Option<u32> {
    answer.rows.first()?.number(1)
}

/// Whether a lock was still there for a call; it was not if the connection has ended.
fn unless_over(reply: Answer<bool>, claim: &Claim) -> Answer<bool> {
    match reply {
        Err(fault) if claim.conn.session.is_over() || fault.ended() => Ok(false),
        reply => reply,
    }
}

fn millis(lease: Duration) -> u64 {
    u64::try_from((lease + GRACE).as_millis()).unwrap_or(u64::MAX).min(2_147_483_000)
}

/// The longest lease on a connection, after which the server frees a stopped process's locks.
fn idle_time(claim: &Claim, lease: Duration) -> u64 {
    let lease = millis(lease);
    claim.conn.longest.fetch_max(lease, Ordering::SeqCst).max(lease)
}

/// The subject of the notice that a lock is free.
fn topic(lock: &Lock) -> TicketId {
    let hash = native(&lock.identity);
    TicketId(u128::from_be_bytes(std::array::from_fn(|at| hash[at])))
}

/// The name of the session that holds this row for a ticket; a pattern if the ticket is unknown.
fn session_name(lock: &Lock, id: Option<TicketId>) -> String {
    let id = id.map_or("%".to_owned(), |id| id.to_string());
    format!("holdline {id} {:016x}", topic(lock).0 as u64)
}

/// The queries about advisory locks, and their names. Keys are one number or two.
fn advisory_queries(told: bool) -> Vec<(String, String)> {
    let renew = "SELECT set_config('idle_session_timeout', $1, false)";
    let mut queries = vec![("renew".to_owned(), renew.to_owned())];
    for (numbers, key, next) in [(1, "$1", "$2"), (2, "$1, $2", "$3")] {
        for kind in ["", "_shared"] {
            let told = if told { format!(", {}", notice(next)) } else { String::new() };
            let take = format!(
                "SELECT pg_try_advisory_lock{kind}({key}), \
                 set_config('idle_session_timeout', {next}, false)"
            );
            let free = format!("SELECT pg_advisory_unlock{kind}({key}){told}");
            queries.push((format!("take{kind}_{numbers}"), take));
            queries.push((format!("free{kind}_{numbers}"), free));
        }
    }
    queries
}

/// The name of the query about this lock, and the key.
fn about<'a>(what: &str, lock: &'a Lock) -> (String, &'a str) {
    let (_, key) = lock.identity.split_once(' ').unwrap_or_default();
    let kind = if lock.shared { "_shared" } else { "" };
    (format!("{what}{kind}_{}", key.split(',').count()), key)
}

/// A notice that the lock of this topic is free, if anybody listens. That is checked after the lock
/// is free: a listener not seen yet asks again.
fn notice(topic: &str) -> String {
    format!(
        "CASE WHEN NOT pg_try_advisory_xact_lock({LISTENERS}) \
         THEN pg_notify('{CHANNEL}', 'a' || {topic}::uuid) END"
    )
}

/// The condition that a row `l` of `pg_locks` is a holder of this advisory lock.
fn key_held(key: &Key) -> String {
    let (class, object, part) = match *key {
        Key::Number(number) => ((number >> 32) as u32, number as u32, 1),
        Key::Pair(high, low) => (high as u32, low as u32, 2),
    };
    format!(
        "l.granted AND l.locktype = 'advisory' AND l.classid = '{class}' AND l.objid = '{object}' \
         AND l.objsubid = {part} AND l.database = \
         (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
}

impl Sessions {
    pub(super) fn new(address: Address) -> Self {
        let address = Arc::new(address);
        let each = if matches!(address.scheme, Scheme::Row) { 1 } else { LOCKS_EACH };
        let listen_too = format!("; SELECT pg_advisory_lock_shared({LISTENERS})");
        let listener = |at| Listener::new(at, CHANNEL.to_owned(), Some(listen_too));
        Sessions {
            pool: Pool::new(Arc::clone(&address), each),
            looks: Connection::new(Arc::clone(&address)),
            listener: address.listen_at().map(listener),
            address,
        }
    }

    /// The kind of keys, if these are advisory locks.
    fn keys(&self) -> Option<KeyScheme> {
        if let Scheme::Advisory(keys) = self.address.scheme { Some(keys) } else { None }
    }

    async fn try_advisory(
        &self,
        claim: &Claim,
        mark: &Mark,
        lock: &Lock,
        lease: Duration,
    ) -> Answer<Option<Seq>> {
        let idle = idle_time(claim, lease);
        let (query, key) = about("take", lock);
        let answer = mark.select(&claim.conn.session, &query, &format!("{key}, '{idle}'")).await?;
        let taken = answer.and_then(|row| row.truth(0)).ok_or_else(mark::shared)?;
        Ok(taken.then_some(Seq(0)))
    }

    async fn try_row(&self, claim: &Claim, lock: &Lock, ticket: &Ticket) -> Answer<Option<Seq>> {
        // The name of the schema is not filled in afterwards: a lock's name may look like it.
        let (name, schema) = (encode::text(lock.line.as_str())?, quoted(&self.address.schema));
        let unlimited = if claim.conn.version >= WITH_TRANSACTION_TIMEOUT {
            ", set_config('transaction_timeout', '0', true)"
        } else {
            ""
        };
        // The statement before BEGIN belongs to its transaction, and is undone by itself if it
        // fails. The session is named as soon as it holds the row.
        let take = format!(
            "{LIMIT_WAITS}; SELECT nextval('{schema}.lock_token'), \
             '{schema}.lock_token'::regclass::oid, set_config('application_name', '{}', true), \
             set_config('idle_in_transaction_session_timeout', '{}', true), \
             set_config('synchronous_commit', 'off', true), \
             set_config('statement_timeout', '0', true){unlimited} FROM (SELECT 1 FROM \
             {schema}.lock_row WHERE name = {name} FOR UPDATE NOWAIT) AS held; BEGIN",
            session_name(lock, Some(ticket.id)),
            millis(ticket.lease)
        );
        // A row that a crash takes back is made again, so its commit is not waited for.
        let make = format!(
            "ROLLBACK; {LIMIT_WAITS}; SET LOCAL synchronous_commit = off; \
             INSERT INTO {schema}.lock_row (name) VALUES ({name}) ON CONFLICT DO NOTHING"
        );
        let forward = format!("ROLLBACK; {}", forward(&self.address));
        let Conn { session, sequence, .. } = &*claim.conn;
        for last in [false, false, true] {
            let answer = match session.answers(&take).await {
                Err(fault) if fault.locked() => return Ok(None),
                answers => answers?.into_iter().nth(1).unwrap_or_default(),
            };
            match (answer.number(), sequence_of(&answer)) {
                (Some(token), Some(now)) if now == sequence.load(Ordering::SeqCst) => {
                    return Ok(Some(Seq(token)));
                }
                // It was made anew, as by a restored dump, and its numbers are lower.
                (Some(_), Some(now)) if !last => {
                    session.ask(&forward).await?;
                    sequence.store(now, Ordering::SeqCst);
                }
                (None, _) if !last => drop(session.ask(&make).await?),
                _ => drop(session.ask("ROLLBACK").await?),
            }
        }
        Ok(None) // removed again in the meantime
    }

    /// The key of an advisory lock.
    fn key(&self, lock: &Lock) -> Option<Key> {
        self.keys()?.key(lock.line.as_str())
    }

    /// The server process that holds a lock, and its entry for a snapshot. For a row, only clients
    /// of this library are seen.
    async fn holder(&self, lock: &Lock) -> Answer<Option<(i32, QueueEntry)>> {
        let sql = if let Some(key) = self.key(lock) {
            let held = key_held(&key);
            format!(
                "SELECT l.pid, coalesce(a.application_name, '') FROM pg_locks l \
                 LEFT JOIN pg_stat_activity a USING (pid) WHERE {held}"
            )
        } else {
            format!(
                "SELECT pid, application_name FROM pg_stat_activity \
                 WHERE application_name LIKE '{}' AND datname = current_database()",
                session_name(lock, None)
            )
        };
        let rows = self.looks.call(None, Call::alone(sql)).await?.rows;
        let found = rows.first().and_then(|row| Some((row.number(0)?, row.text(1)?)));
        let Some((pid, name)): Option<(i32, &str)> = found else { return Ok(None) };
        let told = name.strip_prefix("holdline ").and_then(|rest| rest.get(..32)?.parse().ok());
        let place = QueueEntry {
            id: told.unwrap_or(TicketId(u128::from(pid.unsigned_abs()))),
            seq: Seq(0),
            weight: 1,
            admitted: true,
            expires_in: SESSION_LOCKS.lease_max,
            note: format!("{name} (process {pid} of the server)").into(),
        };
        Ok(Some((pid, place)))
    }

    /// Checks that two sessions cannot have one advisory lock, as they can where the server accepts
    /// the functions and does nothing. The lock is one that nobody else wants.
    async fn check_exclusion(&self, mut claim: Claim) -> Answer<()> {
        let Some(mark) = &claim.conn.mark else { return Ok(()) };
        let (session, key) = (&claim.conn.session, names::random()? as i64);
        let free = self.listener.as_ref().map_or(String::new(), |_| format!(", '{}'", TicketId(0)));
        claim.may_hold = true;
        let taken = mark.select(session, "take_1", &format!("'{key}', '0'")).await?;
        let rival = format!("SELECT pg_try_advisory_xact_lock('{key}')");
        let rival = self.looks.session().await?.ask(&rival).await?.first();
        let freed = mark.select(session, "free_1", &format!("'{key}'{free}")).await?;
        let (Some(taken), Some(freed)) = (taken, freed) else { return Err(mark::shared()) };
        if [&taken, &rival, &freed].map(|row| row.truth(0)) == [Some(true), Some(false), Some(true)]
        {
            claim.may_hold = false;
            return Ok(());
        }
        let message = format!(
            "{self} has advisory locks that exclude nobody: two of its sessions got the same one, \
             or none could; use scheme=table, or PostgreSQL itself"
        );
        Err(Fault::Ours(ErrorKind::Unsupported, message))
    }
}

impl Dialect for Sessions {
    type Hold = Claim;

    const RECORDS: bool = false;
    const MORE: &str = "allow more by ?connections=";

    fn background() -> Result<&'static Background> {
        session::runtime()
    }

    fn most(&self) -> (usize, usize) {
        let most = match self.address.scheme {
            Scheme::Row => self.address.connections.unwrap_or(16),
            _ => self.address.connections.unwrap_or(4) * LOCKS_EACH,
        };
        (most, most)
    }

    async fn check(&self) -> Answer<()> {
        // The session for looks is marked first: a proxy that shares it is found out before the
        // settings of any session change.
        let mut other = None;
        if self.keys().is_some() {
            other = Some(Mark::set(&*self.looks.session().await?).await?);
        }
        let mut claim = self.pool.claim().await;
        if self.keys().is_none() && schema::wanted(&claim, &self.address) {
            schema::install_at(&self.address).await?;
            claim = self.pool.claim().await;
        }
        let claim = claim?;
        match (other, &claim.conn.mark) {
            (Some(other), Some(mark)) if other.process == mark.process => Err(mark::shared()),
            (Some(_), Some(_)) => self.check_exclusion(claim).await,
            _ => Ok(()),
        }
    }

    fn identity(&self, line: &Name) -> Result<String> {
        let Some(keys) = self.keys() else {
            return Ok(format!("row {} {line}", self.address.schema));
        };
        let key = keys.key(line.as_str()).ok_or_else(|| {
            let message = format!("lock \"{line}\" has no key at {self}; see its ?keys=");
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(format!("advisory {key}"))
    }

    fn shares(&self) -> bool {
        self.keys().is_some()
    }

    async fn take(&self, lock: &Lock, asked: &Asked) -> Answer<Option<(Claim, Seq)>> {
        let unnotified =
            self.listener.as_ref().filter(|it| asked.how == Enter::Queue && !it.is_listening());
        let mut claim = self.pool.claim().await?;
        claim.may_hold = true;
        let taken = match &claim.conn.mark {
            Some(mark) => self.try_advisory(&claim, mark, lock, asked.ticket.lease).await,
            None => self.try_row(&claim, lock, &asked.ticket).await,
        };
        claim.may_hold = match &taken {
            Ok(seq) => seq.is_some(),
            // An error ends a transaction, but not what a session holds.
            Err(Fault::Refused(_)) if claim.conn.mark.is_none() => false,
            Err(fault) => !fault.is(&FULL),
        };
        let seq = taken?;
        if let (None, Some(listener)) = (seq, unnotified) {
            listener.listens();
            listener.catch_up(topic(lock));
        }
        Ok(seq.map(|seq| (claim, seq)))
    }

    async fn renew(
        &self,
        _lock: &Lock,
        Held { hold: claim, .. }: &mut Held<Claim>,
        asked: &Asked,
    ) -> Answer<bool> {
        let (lease, session) = (asked.ticket.lease, &claim.conn.session);
        let kept = if let Some(mark) = &claim.conn.mark {
            let idle = format!("'{}'", idle_time(claim, lease));
            mark.select(session, "renew", &idle).await.map(|row| row.is_some())
        } else {
            let sql = format!(
                "SELECT set_config('idle_in_transaction_session_timeout', '{}', true)",
                millis(lease)
            );
            match session.ask(&sql).await {
                // An error ends the transaction, and with it the row's lock.
                Err(Fault::Refused(_)) => return Ok(false),
                kept => kept.map(|_| true),
            }
        };
        unless_over(kept, claim)
    }

    async fn release(&self, lock: &Lock, _: TicketId, claim: Option<Claim>) -> Answer<bool> {
        let Some(mut claim) = claim else { return Ok(false) };
        let session = &claim.conn.session;
        let topic = self.listener.as_ref().map(|_| format!("'{}'", topic(lock)));
        let freed = if let Some(mark) = &claim.conn.mark {
            let (query, key) = about("free", lock);
            let constants = topic.map_or(key.to_owned(), |topic| format!("{key}, {topic}"));
            mark.select(session, &query, &constants).await.map(|row| row.is_some())
        } else {
            let told = topic.map(|topic| format!("; SELECT {NOTICE_SETTINGS}, {}", notice(&topic)));
            let call = format!("COMMIT{}", told.unwrap_or_default());
            session.ask(&call).await.map(|_| true)
        };
        let freed = match freed {
            Err(fault) if fault.is(&NOTICE_FAILED) => Ok(true),
            freed => freed,
        };
        claim.may_hold = !matches!(freed, Ok(true));
        unless_over(freed, &claim)
    }

    fn ended(claim: &Claim) -> BoxFuture<'static, ()> {
        Box::pin(claim.conn.session.ended().map(drop))
    }

    /// Ends the other client's session, with all its locks.
    async fn evict(&self, lock: &Lock, id: TicketId, _note: &str) -> Answer<Option<Seq>> {
        let Some((pid, _)) = self.holder(lock).await?.filter(|(_, place)| place.id == id) else {
            return Ok(None);
        };
        let sql = if let Some(key) = self.key(lock) {
            // By now it may not hold the lock any more.
            let held = key_held(&key);
            format!(
                "SELECT 0, pg_terminate_backend(l.pid) FROM pg_locks l \
                 WHERE {held} AND l.pid = {pid}"
            )
        } else {
            // The token comes first: another holder may have the row as soon as the session ends.
            // By now it may hold another row, as its name says; or none, as its transaction does,
            // which is over before another holder can have the row.
            format!(
                "SELECT token, (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE pid = {pid} AND application_name = '{1}' AND backend_xid IS NOT NULL \
                 AND token > 0) \
                 FROM (SELECT nextval('{0}.lock_token') AS token OFFSET 0) AS next",
                quoted(&self.address.schema),
                session_name(lock, Some(id))
            )
        };
        let call = Call::alone(sql);
        let answer = self.looks.call(None, call).await?;
        let ended = answer.rows.first().and_then(|row| row.truth(1)) == Some(true);
        // The first attempt may have ended it, and the next holder's token be below this one.
        let ended = answer.found(ended, self, &lock.line)?;
        Ok(answer.number().filter(|_| ended).map(Seq))
    }

    async fn look(&self, lock: &Lock) -> Answer<QueueSnapshot> {
        Ok(match self.holder(lock).await? {
            Some((_, place)) => {
                QueueSnapshot { capacity: 1, places: vec![place], evictions: Vec::new() }
            }
            None => QueueSnapshot::default(),
        })
    }

    fn pause(&self) -> Duration {
        if self.listener.is_some() { TOLD_PAUSE } else { POLL_PAUSE }
    }

    async fn told(&self, lock: &Lock) {
        match &self.listener {
            Some(listener) => drop(listener.waiters().wait(topic(lock)).await),
            None => pending().await,
        }
    }

    fn wake(&self, lock: &Lock) {
        if let Some(listener) = &self.listener {
            listener.waiters().wake(topic(lock));
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fencing_tokens: self.keys().is_none(),
            notifications: self.listener.is_some(),
            read_write: self.shares(),
            ..SESSION_LOCKS
        }
    }
}

impl fmt::Display for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}
