//! The scheme `shedlock`: ShedLock's table in PostgreSQL.

use super::address::Address;
use super::batch::Call;
use super::connection::Connection;
use super::encode;
use super::schema::{check_server, statement};
use super::session::{Lane, Session};
use crate::error::Result;
use crate::store::TicketId;
use crate::stores::queue::calls::Answer;
use crate::stores::queue::in_flight::InFlight;
use crate::stores::queue::shedlock::{Dialect, unusable};
use crate::stores::queue::sql::{Fault, micros};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// ShedLock's table in a database, the connection to it, and its lane for calls.
#[derive(Clone)]
pub(super) struct Rows(Arc<Connection>, Lane);

/// As ShedLock documents it, with more room for names. One client at a time, as in `tables.sql`:
/// two that find no table would both create it.
pub(super) const CREATE: &str = "SELECT pg_advisory_xact_lock(x'686f6c64'::bigint); \
    CREATE TABLE IF NOT EXISTS \"holdline\".shedlock (name varchar(255) PRIMARY KEY, \
    lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";

const TYPE: &str = "SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a \
    JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.relname = 'shedlock' AND a.attname = 'lock_until'";

/// The types of times. With fewer digits, a lease could end before its holder expects it to.
const KINDS: [&str; 3] = [
    "timestamp without time zone",
    "timestamp(3) without time zone",
    "timestamp(6) without time zone",
];

impl Rows {
    /// Connects, and checks the server and the table.
    pub(super) async fn open(address: Address) -> Result<Self> {
        let rows = Rows(Arc::new(Connection::new(Arc::new(address))), Lane::Foreground);
        let opened = rows.0.session().await;
        opened.map_err(|fault| fault.explain(&rows, "ShedLock's table"))?;
        Ok(rows)
    }
}

impl Dialect for Rows {
    const NOW: &str = "timezone('utc', clock_timestamp())";
    const LEFT: &str = "(extract(epoch FROM lock_until - timezone('utc', clock_timestamp())) \
        * 1000000)::bigint";
    const SINCE: &str = "locked_at::text";
    const DURABLE: &str = "(SELECT set_config('lock_timeout', '800', true) = '800ms' \
        AND CASE WHEN current_setting('synchronous_commit') = 'off' \
        THEN set_config('synchronous_commit', 'on', true) = 'on' ELSE true END)";
    const ENTER: &str = "\
        WITH other AS MATERIALIZED (SELECT {left} AS us FROM {t} \
            WHERE name = {name} AND lock_until > {now} AND left(locked_by, 41) <> {mine}), \
        mine AS (INSERT INTO {t} AS l (name, lock_until, locked_at, locked_by) \
            SELECT {name}, {until}, {now}, {by} WHERE {durable} AND NOT EXISTS (SELECT FROM other) \
            ON CONFLICT (name) DO UPDATE SET locked_by = {by}, \
                lock_until = greatest({until}, \
                    CASE WHEN left(l.locked_by, 41) = {mine} THEN l.lock_until END), \
                locked_at = CASE WHEN left(l.locked_by, 41) = {mine} AND l.lock_until > {now} \
                    THEN l.locked_at ELSE {now} END \
            WHERE l.lock_until <= {now} OR left(l.locked_by, 41) = {mine} RETURNING 1) \
        SELECT (SELECT count(*) FROM mine), coalesce((SELECT us FROM other), 0)";

    fn text(text: &str) -> Result<String> {
        encode::text(text)
    }

    fn after(time: &str, span: Duration) -> String {
        format!("{time} + '{}'::float8 * interval '1 microsecond'", micros(span))
    }

    fn table(&self) -> String {
        statement(&self.0.address.schema, "\"holdline\".shedlock")
    }

    fn at_least(&self) -> Duration {
        self.0.address.at_least
    }

    async fn call(&self, taker: Option<TicketId>, sql: &str) -> Result<Answer, Fault> {
        let call = Call { lane: self.1, ..Call::alone(sql.to_owned()) };
        self.0.call(taker, call).await
    }

    fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    fn background(&self) -> Self {
        // Connections run on a thread of their own.
        Rows(Arc::clone(&self.0), Lane::Background)
    }
}

/// Checks a new connection and ShedLock's table, which it creates if it is missing and the address
/// says so.
pub(super) async fn check(session: &Session, address: &Address) -> Result<(), Fault> {
    check_server(session, address).await?;
    let look = format!("{TYPE} AND n.nspname = {}", encode::text(&address.schema)?);
    let mut found = session.ask(&look).await?.first();
    if found.text(0).is_none() && address.install {
        session.ask(&statement(&address.schema, CREATE)).await?;
        found = session.ask(&look).await?.first();
    }
    let what = match found.text(0) {
        Some(kind) if KINDS.contains(&kind) => return Ok(()),
        Some(other) => Some(format!("has times of the type {other}, not timestamp")),
        None => None,
    };
    Err(unusable(&format!("{}.shedlock", address.schema), address, what.as_deref()))
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.address.fmt(f)
    }
}
