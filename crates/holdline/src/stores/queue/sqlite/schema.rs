//! The schema of the database: creating and checking it.

use super::database::Site;
use super::errors::refused;
use super::liveness::any_held;
use super::machine;
use crate::error::{Error, ErrorKind, Result};
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// The `application_id` of our databases: "hold".
const APPLICATION: i32 = i32::from_be_bytes(*b"hold");
/// The `user_version` of the schema below.
const VERSION: i32 = 2;
/// The page size of a new database, in bytes. A row has some 150 bytes, and a lock and its release
/// write four pages to the log, which the next program reads if it is the only one.
const PAGE: u32 = 1024;
/// The tables.
const TABLES: &str = include_str!("schema.sql");

/// Checks that the database is ours and of our version, and that its places are of this boot.
pub(super) fn check(site: &Site, conn: &Connection) -> rusqlite::Result<Result<()>> {
    match marks(conn)? {
        (APPLICATION, VERSION) => {}
        (APPLICATION, version) => return Ok(Err(other_version(site, version))),
        (0, 0) => {
            if let Err(error) = create_schema(site, conn)? {
                return Ok(Err(error));
            }
        }
        _ => return Ok(Err(foreign(site))),
    }
    let boot = machine::boot();
    if stored_boot(conn)? == boot { Ok(Ok(())) } else { purge(site, conn, &boot) }
}

fn begin(conn: &Connection) -> rusqlite::Result<Transaction<'_>> {
    Transaction::new_unchecked(conn, TransactionBehavior::Immediate)
}

/// Creates our tables in an empty database. If the process is killed meanwhile, it stays empty.
fn create_schema(site: &Site, conn: &Connection) -> rusqlite::Result<Result<()>> {
    let tables = |conn: &Connection| -> rusqlite::Result<u32> {
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
    };
    if tables(conn)? > 0 && marks(conn)? == (0, 0) {
        return Ok(Err(foreign(site)));
    }
    conn.pragma_update(None, "page_size", PAGE)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    let txn = begin(conn)?;
    match marks(&txn)? {
        (0, 0) if tables(&txn)? == 0 => {}
        (APPLICATION, VERSION) => return Ok(Ok(())), // another process was first
        (APPLICATION, version) => return Ok(Err(other_version(site, version))),
        _ => return Ok(Err(foreign(site))),
    }
    txn.execute_batch(TABLES)?;
    let boot = machine::boot();
    txn.execute("INSERT INTO meta (one, boot, last, cursor) VALUES (1, ?1, 0, '')", [boot])?;
    txn.pragma_update(None, "application_id", APPLICATION)?;
    txn.pragma_update(None, "user_version", VERSION)?;
    txn.commit()?;
    Ok(Ok(()))
}

/// The `application_id` and `user_version`, read at one instant: another process may be setting
/// both.
fn marks(conn: &Connection) -> rusqlite::Result<(i32, i32)> {
    let read = |pragma| conn.pragma_query_value(None, pragma, |row| row.get(0));
    let instant = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
    let marks = (read("application_id")?, read("user_version")?);
    if let Some(instant) = instant {
        instant.commit()?;
    }
    Ok(marks)
}

fn stored_boot(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("SELECT boot FROM meta", [], |row| row.get(0))
}

/// Removes all places if they are from an earlier boot: their processes are gone, and the clock of
/// their leases has restarted.
///
/// A different boot id alone does not prove that, because a container may have an id of its own.
/// But file locks end with the boot, and a process takes its liveness lock before its first place.
/// So if any liveness lock is held, the places are from this boot.
fn purge(site: &Site, conn: &Connection, boot: &str) -> rusqlite::Result<Result<()>> {
    let txn = begin(conn)?;
    match any_held(&site.live()) {
        Ok(true) => return Ok(Ok(())),
        Ok(false) => {}
        Err(error) => return Ok(Err(refused("look for living processes in", &site.live(), error))),
    }
    if stored_boot(&txn)? != boot {
        let none = i64::MAX;
        txn.execute("DELETE FROM place", [])?;
        txn.execute("DELETE FROM eviction", [])?;
        txn.execute("UPDATE line SET count = 0, held = 0, front = ?1, due = ?1", [none])?;
        txn.execute("UPDATE meta SET boot = ?1", [boot])?;
    }
    txn.commit()?;
    Ok(Ok(()))
}

fn other_version(site: &Site, version: i32) -> Error {
    let message = format!(
        "the lock database {} has version {version}, and this program knows version \
         {VERSION} alone; use the program of that version, or choose another path",
        site.name.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}

fn foreign(site: &Site) -> Error {
    let message = format!(
        "the database {} belongs to another program, and was left as it is; choose another path \
         for the locks",
        site.name.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
