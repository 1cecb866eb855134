//! Fenced writes: a database that refuses a holder which has lost its lock to another. This is the
//! only complete protection, because a process can be stopped at any point, for any time.
//!
//! `cargo run -p holdline-examples --bin fenced_sql`, or with a file for the database.

use holdline::{Client, Mutex, open};
use rusqlite::{Connection, OptionalExtension, params};
use std::fmt;

/// Each row that a lock guards stores the newest token that it has seen. If a lock guards more than
/// one row, use a table for it: see `holdline::Fence`.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (
        id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL
    );
    INSERT INTO accounts VALUES (17, 0, 0) ON CONFLICT DO NOTHING;
";

/// Reading presents the token, too: from here on no older holder can write. If only the write
/// checked, a newer holder could read before an older one writes, and that update would be lost.
const READ: &str = "UPDATE accounts SET token = ?1 WHERE id = ?2 AND token <= ?1 RETURNING balance";

/// The check and the write are one statement: nothing can come between them.
const WRITE: &str = "UPDATE accounts SET token = ?1, balance = ?3 WHERE id = ?2 AND token <= ?1";

#[derive(Debug)]
enum Failure {
    /// There is no such row, or a newer holder has been here.
    Stale,
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sql(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Stale => f.write_str("a newer holder of the lock has been here"),
            Failure::Sql(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// SQL has signed integers. Tokens fit for some hundred thousand years to come.
fn sql(token: u64) -> i64 {
    i64::try_from(token).expect("tokens are below 2^63")
}

fn read(db: &Connection, account: i64, token: u64) -> Result<i64, Failure> {
    let found = db.query_row(READ, params![sql(token), account], |row| row.get(0)).optional()?;
    found.ok_or(Failure::Stale)
}

fn write(db: &Connection, account: i64, token: u64, balance: i64) -> Result<(), Failure> {
    match db.execute(WRITE, params![sql(token), account, balance])? {
        0 => Err(Failure::Stale), // roll back what else belongs to it
        _ => Ok(()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let db = match std::env::args_os().nth(1) {
        Some(path) => Connection::open(path)?,
        None => Connection::open_in_memory()?,
    };
    db.execute_batch(SCHEMA)?;
    // Two clients of one store stand for two processes.
    let here = open("memory:").await?;
    let there = Client::new(here.store().clone());

    // The first holder reads, and is then stopped: by a debugger, a full disk, a migrating machine.
    let slow = Mutex::new(&here, "account-17").lock().await?;
    let seen = read(&db, 17, slow.token())?;
    println!("the slow holder read {seen} under token {}", slow.token());

    // Its lease would expire; here the lock is broken instead, which is quicker.
    here.force_unlock("account-17", slow.ticket(), "the example").await?;
    let next = Mutex::new(&there, "account-17").lock().await?;
    let balance = read(&db, 17, next.token())? + 100;
    write(&db, 17, next.token(), balance)?;
    println!("the next holder wrote {balance} under token {}", next.token());

    // It wakes and writes a result of the old balance. The database refuses that.
    match write(&db, 17, slow.token(), seen + 1) {
        Err(Failure::Stale) => println!("the slow holder's write is refused: {}", Failure::Stale),
        Err(error) => return Err(error.into()),
        Ok(()) => return Err("the stale write was not refused".into()),
    }
    println!("the balance is {}", read(&db, 17, next.token())?);
    next.unlock().await?;
    Ok(())
}
