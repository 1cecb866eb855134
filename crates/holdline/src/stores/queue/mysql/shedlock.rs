//! The scheme `shedlock`: ShedLock's table in MySQL and MariaDB.
//!
//! A `TIMESTAMP` column is written and read in the time zone of the session, and ShedLock writes
//! UTC times whatever its session's zone is. So both see the same times in such a column only if
//! the server's time zone is UTC, which is checked. A `DATETIME` is the same for all sessions.

use super::config::Config;
use super::connection::{Connections, checked};
use super::text::{Statement, hex};
use crate::error::Result;
use crate::store::TicketId;
use crate::stores::queue::calls::Answer;
use crate::stores::queue::in_flight::InFlight;
use crate::stores::queue::shedlock::{Dialect, Shedlock, unusable};
use crate::stores::queue::sql::{Fault, micros};
use mysql_async::{Conn, Opts};
use std::sync::Arc;
use std::time::Duration;

/// ShedLock's table with more room for names, which are compared byte by byte, and with times that
/// do not depend on time zones.
pub(super) const CREATE: &str = "CREATE TABLE IF NOT EXISTS shedlock ( \
    name VARCHAR(255) CHARACTER SET utf8mb4 \
    /*M! COLLATE utf8mb4_nopad_bin */ /*!80017 COLLATE utf8mb4_0900_bin */ PRIMARY KEY, \
    lock_until DATETIME(6) NOT NULL, locked_at DATETIME(6) NOT NULL, \
    locked_by VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL);";

/// The additional settings of a session. A name that is too long is an error, not truncated. A row
/// that turns out not to be free does not stay locked.
const SESSION: &str = "; SET SESSION sql_mode = 'STRICT_ALL_TABLES'; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// The server's time zone, and the column's type.
const COLUMNS: &str = "REPLACE(@@GLOBAL.time_zone, 'SYSTEM', @@system_time_zone), \
    (SELECT COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() \
    AND TABLE_NAME = 'shedlock' AND COLUMN_NAME = 'lock_until')";

/// Connects, and checks the server and the table.
pub(super) async fn open(config: Config) -> Result<Shedlock<Arc<Connections>>> {
    let connections = Connections::new(config)?;
    let opened = connections.call("SELECT 1").await;
    opened.map_err(|fault| fault.explain(&connections, "ShedLock's table"))?;
    Ok(Shedlock::new(connections))
}

/// A connection to a usable server and table.
pub(super) async fn connect(opts: &Opts, config: &Config) -> Result<Conn, Fault> {
    let (conn, found) = checked(opts, config, SESSION, COLUMNS).await?;
    let unusable = |what| Err(unusable("shedlock", config, what));
    let (Some(zone), Some(column)) = (found.text(2), found.text(3)) else { return unusable(None) };
    let (kind, digits) = column.split_once('(').unwrap_or((column, "0)"));
    if !["datetime", "timestamp"].contains(&kind) || digits < "3)" {
        let what = format!(
            "has times of the type {column}; change both to DATETIME(3) or TIMESTAMP(3), as \
             ShedLock says"
        );
        return unusable(Some(&what));
    }
    if kind == "timestamp" && !["UTC", "Etc/UTC", "+00:00"].contains(&zone) {
        let what = format!(
            "has times of the type {column}, and the server's time zone is {zone}: sessions \
             disagree about such times unless it is UTC; change both to DATETIME(3) while nothing \
             is locked, or set the server's time zone"
        );
        return unusable(Some(&what));
    }
    Ok(conn)
}

impl Dialect for Arc<Connections> {
    const NOW: &str = "SYSDATE(6)";
    const LEFT: &str = "TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), lock_until)";
    const SINCE: &str = "CAST(locked_at AS CHAR)";
    const DURABLE: &str = "TRUE"; // a setting of the server
    // Assignments are evaluated from left to right, and each reads the clock, which only moves
    // forward. So the owner is decided first, and the other columns follow it. Under READ
    // COMMITTED, the subquery locks nothing.
    const ENTER: &str = "\
        INSERT INTO {t} (name, lock_until, locked_at, locked_by) \
        SELECT {name}, {until}, {now}, {by} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {t} \
            WHERE name = {name} AND lock_until > {now} AND left(locked_by, 41) <> {mine}) \
        ON DUPLICATE KEY UPDATE \
        locked_by = IF(lock_until <= {now} OR left(locked_by, 41) = {mine}, {by}, locked_by), \
        locked_at = IF(left(locked_by, 41) = {mine} AND lock_until <= {now}, {now}, locked_at), \
        lock_until = \
            IF(left(locked_by, 41) = {mine}, greatest(lock_until, {until}), lock_until); \
        SELECT left(locked_by, 41) = {mine}, {left} FROM {t} WHERE name = {name}";

    fn text(text: &str) -> Result<String> {
        Ok(format!("_utf8mb4 {}", hex(text.as_bytes())))
    }

    /// Times in the table may be truncated to milliseconds.
    fn after(time: &str, span: Duration) -> String {
        let more = if span.is_zero() { 0 } else { 1000 };
        format!("TIMESTAMPADD(MICROSECOND, {}, {time})", micros(span) + more)
    }

    fn table(&self) -> String {
        "shedlock".to_owned()
    }

    fn at_least(&self) -> Duration {
        self.config.at_least
    }

    async fn call(&self, taker: Option<TicketId>, sql: &str) -> Result<Answer, Fault> {
        self.call_for(taker, Statement::text(sql.to_owned())).await
    }

    fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    fn background(&self) -> Self {
        Connections::background(self)
    }
}
