//! What is said to the server about locks of sessions (`pg_try_advisory_lock`) and of transactions
//! (`SELECT ... FOR UPDATE`).

use super::address::Address;
use super::connection::Connection;
use super::encode::{Param, fill, value};
use super::keys::Key;
use super::pool::Claim;
use super::schema::{check_server, statement};
use crate::error::ErrorKind;
use crate::names::Name;
use crate::store::{Seq, TicketId};
use crate::stores::queue::sql::Fault;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The channel on which all processes are told of what is free.
pub(super) const CHANNEL: &str = "holdline_free";

/// The advisory lock that each listener shares. Where it can be had alone, nobody waits, and a
/// release tells nobody.
const LISTENERS: &str = "4822917108";

/// What a listener says besides `LISTEN`.
pub(super) fn as_listener() -> String {
    format!("; SELECT pg_advisory_lock_shared({LISTENERS})")
}

/// How long after the end of a lease the server ends the session or transaction of a process that
/// does not do it itself.
const GRACE: Duration = Duration::from_millis(250);

/// The kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An advisory lock of a session.
    Advisory,
    /// A locked row of an open transaction.
    Row,
}

/// What a lock is to the server.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) line: Name,
    pub(super) key: Key,
    /// Held together with others that share.
    pub(super) shared: bool,
    /// The subject of the notice that it is free.
    pub(super) topic: TicketId,
    pub(super) notify: bool,
}

/// The settings of a connection for advisory locks. The server frees what a client held that was
/// cut off silently, and no time limit but that of the lease ends the session.
const ADVISORY_SETTINGS: &str = "\
    SELECT set_config(name, CASE name WHEN 'tcp_keepalives_idle' THEN '5' \
        WHEN 'tcp_keepalives_interval' THEN '3' WHEN 'tcp_keepalives_count' THEN '3' \
        WHEN 'tcp_user_timeout' THEN '15000' WHEN 'synchronous_commit' THEN 'off' \
        ELSE '0' END, false) FROM pg_settings WHERE name IN ('tcp_keepalives_idle', \
        'tcp_keepalives_interval', 'tcp_keepalives_count', 'tcp_user_timeout', \
        'synchronous_commit', 'statement_timeout', 'lock_timeout', 'transaction_timeout', \
        'idle_session_timeout')";

/// The sequence is moved forward by more than a crash of the server can take back, and to the
/// server's clock if that is later.
const FORWARD: &str = "\
    BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_advisory_xact_lock(4822917106); \
    SELECT setval('\"holdline\".lock_token', \
        greatest(nextval('\"holdline\".lock_token') + 1048576, \
        (extract(epoch from clock_timestamp()) * 1000000)::bigint)); COMMIT";

/// The oldest server with `idle_session_timeout`.
const OLDEST_FOR_ADVISORY: i32 = 140_000;
/// The oldest server with `transaction_timeout`.
const WITH_TRANSACTION_TIMEOUT: i32 = 170_000;

/// Makes a new connection ready. Returns the server's version.
pub(super) async fn prepare(kind: Kind, client: &Client, address: &Address) -> Result<i32, Fault> {
    let version = check_server(client, address).await?;
    if kind == Kind::Advisory && version < OLDEST_FOR_ADVISORY {
        let message = format!(
            "{address} is older than PostgreSQL 14; scheme=advisory needs its idle_session_timeout"
        );
        return Err(Fault::Ours(ErrorKind::Unsupported, message));
    }
    match kind {
        Kind::Advisory => client.batch_execute(ADVISORY_SETTINGS).await?,
        Kind::Row => client.batch_execute(&statement(&address.schema, FORWARD)).await?,
    }
    Ok(version)
}

/// Refuses a proxy that gives the connections of two clients to one session, or one client the
/// sessions of several.
pub(super) async fn check_no_pooler(one: &Client, two: &Client) -> Result<(), Fault> {
    let pid = async |client: &Client| -> Result<i32, Fault> {
        let rows = client.query_typed("SELECT pg_backend_pid()", &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    };
    let first = pid(one).await?;
    for _ in 0..4 {
        if pid(two).await? == first || pid(one).await? != first {
            let message = "scheme=advisory needs sessions of its own, but a proxy here pools \
                           transactions: two clients would hold one lock. Name the server itself, \
                           or a pool of sessions; or use scheme=table, which needs no session";
            return Err(Fault::Ours(ErrorKind::Unsupported, message.to_owned()));
        }
    }
    Ok(())
}

fn millis(lease: Duration) -> u64 {
    u64::try_from((lease + GRACE).as_millis()).unwrap_or(u64::MAX).min(2_147_483_000)
}

fn uuid(id: TicketId) -> String {
    let hex = format!("{:032x}", id.0);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl Target {
    /// The name of the session while it holds this row.
    pub(super) fn session_name(&self, id: Option<TicketId>) -> String {
        let id = id.map_or("%".to_owned(), |id| format!("{:032x}", id.0));
        format!("holdline {id} {:016x}", self.topic.0 as u64)
    }

    /// Takes the lock if it is free. Returns its token; none if it is not free.
    pub(super) async fn try_lock(
        &self,
        claim: &mut Claim,
        id: TicketId,
        lease: Duration,
        address: &Address,
    ) -> Result<Option<Seq>, Fault> {
        claim.may_hold = true;
        match self.kind {
            Kind::Advisory => self.try_advisory(claim, lease).await,
            Kind::Row => self.try_row(claim, id, lease, address).await,
        }
    }

    async fn try_advisory(&self, claim: &mut Claim, lease: Duration) -> Result<Option<Seq>, Fault> {
        let shared = if self.shared { "_shared" } else { "" };
        let idle = idle_time(claim, lease);
        let sql = format!(
            "SELECT pg_try_advisory_lock{shared}({}), \
             set_config('idle_session_timeout', '{idle}', false)",
            self.key
        );
        match claim.conn.session.client.query_typed(&sql, &[]).await.map_err(Fault::from) {
            Ok(rows) => {
                claim.may_hold = rows.first().is_some_and(|row| row.get(0));
                Ok(claim.may_hold.then_some(Seq(0)))
            }
            Err(fault) => {
                // No room in the server's table of locks; anything else leaves a doubt.
                claim.may_hold = !fault.is(&[SqlState::OUT_OF_MEMORY.code()]);
                Err(fault)
            }
        }
    }

    async fn try_row(
        &self,
        claim: &mut Claim,
        id: TicketId,
        lease: Duration,
        address: &Address,
    ) -> Result<Option<Seq>, Fault> {
        let name = fill("$1", &[Param::Text(self.line.as_str())])?;
        let unlimited = if claim.conn.version >= WITH_TRANSACTION_TIMEOUT {
            ", set_config('transaction_timeout', '0', true)"
        } else {
            ""
        };
        // What comes before BEGIN belongs to its transaction, and is undone by itself if it fails.
        // The session has its name from when it holds the row.
        let take = statement(
            &address.schema,
            &format!(
                "SELECT nextval('\"holdline\".lock_token'), \
                 set_config('application_name', '{}', true), \
                 set_config('idle_in_transaction_session_timeout', '{}', true), \
                 set_config('synchronous_commit', 'off', true), \
                 set_config('statement_timeout', '0', true){unlimited} FROM (SELECT 1 FROM \
                 \"holdline\".lock_row WHERE name = {name} FOR UPDATE NOWAIT) AS held; BEGIN",
                self.session_name(Some(id)),
                millis(lease)
            ),
        );
        let make = format!(
            "ROLLBACK; INSERT INTO \"holdline\".lock_row (name) VALUES ({name}) \
             ON CONFLICT DO NOTHING"
        );
        let client = &claim.conn.session.client;
        for last in [false, true] {
            let messages = match client.simple_query(&take).await.map_err(Fault::from) {
                Ok(messages) => messages,
                Err(fault) => {
                    claim.may_hold = !matches!(fault, Fault::Refused(_));
                    let taken = fault.is(&[SqlState::LOCK_NOT_AVAILABLE.code()]);
                    return if taken { Ok(None) } else { Err(fault) };
                }
            };
            let token = messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
                _ => None,
            });
            if let Some(token) = token {
                return Ok(Some(Seq(token)));
            }
            let make = if last { "ROLLBACK" } else { &*statement(&address.schema, &make) };
            client.batch_execute(make).await?;
        }
        claim.may_hold = false;
        Ok(None) // removed again in the meantime
    }

    /// Renews the time after which the server frees it by itself.
    pub(super) async fn keep(&self, claim: &Claim, lease: Duration) -> Result<(), Fault> {
        let (setting, local, idle) = match self.kind {
            Kind::Advisory => ("idle_session_timeout", false, idle_time(claim, lease)),
            Kind::Row => ("idle_in_transaction_session_timeout", true, millis(lease)),
        };
        let sql = format!("SELECT set_config('{setting}', '{idle}', {local})");
        claim.conn.session.client.query_typed(&sql, &[]).await?;
        Ok(())
    }

    /// Frees it, and tells those who wait.
    pub(super) async fn unlock(&self, claim: &mut Claim) -> Result<(), Fault> {
        let client = &claim.conn.session.client;
        // Looked for after the lock is free: a listener that is not seen yet asks again.
        let notify = format!(
            "CASE WHEN NOT pg_try_advisory_xact_lock({LISTENERS}) \
             THEN pg_notify('{CHANNEL}', 'a{}') END",
            uuid(self.topic)
        );
        let sql = match (self.kind, self.notify) {
            (Kind::Advisory, notifies) => {
                let shared = if self.shared { "_shared" } else { "" };
                let unlock = format!("SELECT pg_advisory_unlock{shared}({})", self.key);
                if notifies { format!("{unlock}, {notify}") } else { unlock }
            }
            (Kind::Row, true) => format!("COMMIT; SELECT {notify}"),
            (Kind::Row, false) => "COMMIT".to_owned(),
        };
        client.batch_execute(&sql).await?;
        claim.may_hold = false;
        Ok(())
    }

    /// The process of the server that holds it, and what it says of itself, if it is another
    /// client's. For a row, only a client of this library is seen.
    pub(super) async fn holder(&self, looks: &Connection) -> Result<Option<Holder>, Fault> {
        let sql = match self.kind {
            Kind::Row => format!(
                "SELECT pid, application_name FROM pg_stat_activity \
                 WHERE application_name LIKE '{}' AND datname = current_database()",
                self.session_name(None)
            ),
            Kind::Advisory => {
                let (class, object, part) = match self.key {
                    Key::Number(number) => ((number >> 32) as u32, number as u32, 1),
                    Key::Pair(high, low) => (high as u32, low as u32, 2),
                };
                format!(
                    "SELECT l.pid, coalesce(a.application_name, '') FROM pg_locks l \
                     LEFT JOIN pg_stat_activity a USING (pid) WHERE l.granted \
                     AND l.locktype = 'advisory' AND l.classid = '{class}' \
                     AND l.objid = '{object}' AND l.objsubid = {part} AND l.database = \
                     (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            }
        };
        let rows = looks.ask(&sql).await?;
        Ok(rows.first().and_then(|row| Some(Holder::new(value(row, 0)?, row.try_get(1).ok()??))))
    }
}

/// The longest lease of the locks on a connection: a stopped process's are freed after that.
fn idle_time(claim: &Claim, lease: Duration) -> u64 {
    let lease = millis(lease);
    claim.conn.longest.fetch_max(lease, Ordering::SeqCst).max(lease)
}

/// Another client that holds a lock.
pub(super) struct Holder {
    pub(super) pid: i32,
    pub(super) id: TicketId,
    pub(super) note: String,
}

impl Holder {
    fn new(pid: i32, name: &str) -> Self {
        let told = name.strip_prefix("holdline ").and_then(|rest| rest.get(..32));
        let told = told.and_then(|hex| u128::from_str_radix(hex, 16).ok());
        let id = TicketId(told.unwrap_or(u128::from(pid.unsigned_abs())));
        let note = format!("{name} (process {pid} of the server)");
        Holder { pid, id, note }
    }
}
