//! Fenced writes in PostgreSQL, with sqlx: the statement that writes checks the lock's token, in
//! the database that also keeps the lock. A holder that has lost its lock to another writes
//! nothing.
//!
//! `cargo run -p holdline-examples --bin fenced_sqlx -- postgres://me@127.0.0.1/test`

use holdline::{Client, Guard, Mutex, open};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Executor, Row};
use std::fmt;

/// One row for each lock that guards data: the newest token that the database has seen.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS fence (name text PRIMARY KEY, token bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO accounts VALUES (17, 0) ON CONFLICT DO NOTHING;
";

/// The check and the write are one statement, and so one transaction. The row of the fence stays
/// locked until it ends: an older holder waits for it, and is then refused.
const WRITE: &str = "
    WITH fence AS (
        INSERT INTO fence AS f VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET token = $2 WHERE f.token <= $2 RETURNING 1
    )
    UPDATE accounts SET balance = $4 WHERE id = $3 AND EXISTS (SELECT FROM fence)";

/// Reading checks the token, too: from here on no older holder can write. If only the write
/// checked, a newer holder could read before an older one writes, and that update would be lost. It
/// is a statement of its own, because a statement sees the rows as of its start.
const CHECK: &str = "
    INSERT INTO fence AS f VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET token = $2 WHERE f.token <= $2";

#[derive(Debug)]
enum Failure {
    /// There is no such row, or a newer holder has been here.
    Stale,
    Sql(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
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

/// A statement with the lock's name and its token. SQL has signed integers; tokens fit for some
/// hundred thousand years to come.
fn fenced(
    sql: &'static str,
    guard: &Guard,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(sql).bind(guard.name().as_str().to_owned()).bind(guard.token().cast_signed())
}

async fn read(db: &mut PgConnection, guard: &Guard, account: i64) -> Result<i64, Failure> {
    if fenced(CHECK, guard).execute(&mut *db).await?.rows_affected() == 0 {
        return Err(Failure::Stale);
    }
    let sql = "SELECT balance FROM accounts WHERE id = $1";
    let row: PgRow = sqlx::query(sql).bind(account).fetch_one(db).await?;
    Ok(row.try_get(0)?)
}

async fn write(db: &mut PgConnection, guard: &Guard, id: i64, balance: i64) -> Result<(), Failure> {
    match fenced(WRITE, guard).bind(id).bind(balance).execute(db).await?.rows_affected() {
        0 => Err(Failure::Stale), // roll back what else belongs to it
        _ => Ok(()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("say which database: postgres://ME@HOST/DATABASE")?;
    let mut db = PgConnection::connect(&url).await?;
    db.execute(SCHEMA).await?;
    // Two clients of one store stand for two processes.
    let here = open(&format!("{url}?install=yes")).await?;
    let there = Client::new(here.store().clone());

    // The first holder reads, and is then stopped: by a debugger, a full disk, a migrating machine.
    // A store without tokens (as `?scheme=advisory`) is refused.
    let slow = Mutex::new(&here, "account-17").fenced().lock().await?;
    let seen = read(&mut db, &slow, 17).await?;
    println!("the slow holder read {seen} under token {}", slow.token());

    // Its lease would expire; here the lock is broken instead, which is quicker.
    here.force_unlock("account-17", slow.ticket(), "the example").await?;
    let next = Mutex::new(&there, "account-17").lock().await?;
    let balance = read(&mut db, &next, 17).await? + 100;
    write(&mut db, &next, 17, balance).await?;
    println!("the next holder wrote {balance} under token {}", next.token());

    // It wakes and writes a result of the old balance. The database refuses that.
    match write(&mut db, &slow, 17, seen + 1).await {
        Err(Failure::Stale) => println!("the slow holder's write is refused: {}", Failure::Stale),
        Err(error) => return Err(error.into()),
        Ok(()) => return Err("the stale write was not refused".into()),
    }
    println!("the balance is {}", read(&mut db, &next, 17).await?);
    next.unlock().await?;
    db.close().await?;
    Ok(())
}
