//! Recent evictions, with their notes (by which process, and why), for the evicted processes.
//!
//! A note is written in the transaction that removes the place. Only a few are kept, and briefly;
//! the next eviction, or the next sweep of idle lines, deletes expired ones.

use super::machine;
use super::rows::{column, ticket};
use crate::store::{EVICTION_TIME, EVICTIONS_KEPT, Eviction, TicketId};
use holdline_kernel::Time;
use rusqlite::{Connection, Result, params};
use std::sync::Arc;

/// The most evictions that are kept, of all lines together.
const MOST: i64 = 1024;

/// Stores the note on the eviction of this ticket.
pub(super) fn keep(conn: &Connection, name: &str, id: TicketId, note: &str) -> Result<()> {
    const ADD: &str = "INSERT INTO eviction (name, id, until, note) VALUES (?1, ?2, ?3, ?4)";
    const OLDER: &str = "DELETE FROM eviction WHERE number <= ?1 OR name = ?2 AND number NOT IN \
        (SELECT number FROM eviction WHERE name = ?2 ORDER BY number DESC LIMIT ?3)";
    let now = machine::now();
    forget(conn, now)?;
    let until = column(now.after(EVICTION_TIME).0);
    conn.prepare_cached(ADD)?.execute(params![name, id.0.to_be_bytes(), until, note])?;
    let too_many = conn.last_insert_rowid().saturating_sub(MOST);
    conn.prepare_cached(OLDER)?.execute(params![too_many, name, column(EVICTIONS_KEPT as u64)])?;
    Ok(())
}

/// Deletes expired notes.
pub(super) fn forget(conn: &Connection, now: Time) -> Result<()> {
    const EXPIRED: &str = "DELETE FROM eviction WHERE until <= ?1";
    conn.prepare_cached(EXPIRED)?.execute([column(now.0)])?;
    Ok(())
}

/// The evictions of a line, oldest first.
pub(super) fn of(conn: &Connection, name: &str, now: Time) -> Result<Vec<Eviction>> {
    const OF_LINE: &str =
        "SELECT id, note FROM eviction WHERE name = ?1 AND until > ?2 ORDER BY number";
    conn.prepare_cached(OF_LINE)?
        .query_map(params![name, column(now.0)], |row| {
            Ok(Eviction { id: ticket(row, 0)?, note: Arc::from(row.get_ref(1)?.as_str()?) })
        })?
        .collect()
}
