//! Fenced writes in MySQL or MariaDB, with mysql_async: the transaction of the write checks the
//! lock's token, in the database that also keeps the lock. A holder that has lost its lock to
//! another writes nothing.
//!
//! `cargo run -p holdline-examples --bin fenced_mysql -- mysql://root@127.0.0.1/test`

use holdline::{Client, Guard, Mutex, open};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use std::fmt;

/// One row for each lock that guards data: the newest token that the database has seen.
const SCHEMA: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS fence (
        name VARBINARY(512) PRIMARY KEY, -- text would ignore blanks at the end
        token BIGINT UNSIGNED NOT NULL)",
    "CREATE TABLE IF NOT EXISTS accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)",
    "INSERT IGNORE INTO accounts VALUES (17, 0)",
];

#[derive(Debug)]
enum Failure {
    /// A newer holder has been here.
    Stale,
    Sql(mysql_async::Error),
}

impl From<mysql_async::Error> for Failure {
    fn from(error: mysql_async::Error) -> Self {
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

/// Checks the token, and blocks older holders until the transaction ends. It reads the token back
/// instead of counting rows, because that count depends on the client's flag `FOUND_ROWS`.
async fn check(tx: &mut impl Queryable, guard: &Guard) -> Result<(), Failure> {
    let (name, token) = (guard.name().as_str(), guard.token());
    // The first statement locks the row for writing at once. INSERT IGNORE, or a read before it,
    // would first lock it for reading, and two transactions could deadlock.
    let raise = "INSERT INTO fence VALUES (?, ?) \
                 ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))";
    tx.exec_drop(raise, (name, token)).await?;
    let newest = "SELECT token FROM fence WHERE name = ? FOR UPDATE";
    let newest: Option<u64> = tx.exec_first(newest, (name,)).await?;
    if newest != Some(token) {
        return Err(Failure::Stale); // dropping the transaction rolls it back
    }
    Ok(())
}

/// Reading checks the token, too: from here on no older holder can write. If only the write
/// checked, a newer holder could read before an older one writes, and that update would be lost.
async fn read(db: &mut Conn, guard: &Guard, account: i64) -> Result<i64, Failure> {
    let mut tx = db.start_transaction(TxOpts::default()).await?;
    check(&mut tx, guard).await?;
    let sql = "SELECT balance FROM accounts WHERE id = ?";
    let balance: Option<i64> = tx.exec_first(sql, (account,)).await?;
    tx.commit().await?;
    Ok(balance.unwrap_or_default())
}

async fn write(db: &mut Conn, guard: &Guard, account: i64, balance: i64) -> Result<(), Failure> {
    let mut tx = db.start_transaction(TxOpts::default()).await?;
    check(&mut tx, guard).await?;
    tx.exec_drop("UPDATE accounts SET balance = ? WHERE id = ?", (balance, account)).await?;
    Ok(tx.commit().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("say which database: mysql://USER@HOST/DATABASE")?;
    let mut db = Conn::new(Opts::from_url(&url)?).await?;
    for statement in SCHEMA {
        db.query_drop(statement).await?;
    }
    // Two clients of one store stand for two processes.
    let here = open(&format!("{url}?install=yes")).await?;
    let there = Client::new(here.store().clone());

    // The first holder reads, and is then stopped: by a debugger, a full disk, a migrating machine.
    // A store without tokens (as `?scheme=shedlock`) is refused.
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
    db.disconnect().await?;
    Ok(())
}
