//! An update without a lock, in SQL: a write carries the version that was read, and the database
//! refuses it if another client was faster. Nothing is held, so nothing can be lost, expire, or
//! block others.
//!
//! `cargo run -p holdline-examples --bin optimistic_sql`, or with a file for the database. The
//! schema is SQLite's. The read and the update are the same on PostgreSQL and MySQL, but for the
//! parameters: `$1` there, and here `?` in the order in which they appear.

use holdline::Backoff;
use rusqlite::{Connection, Result, params};
use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS inventory (
        sku TEXT PRIMARY KEY, stock INTEGER NOT NULL, version INTEGER NOT NULL
    );
    INSERT INTO inventory VALUES ('s101', 100, 0) ON CONFLICT DO NOTHING;
";

const READ: &str = "SELECT stock, version FROM inventory WHERE sku = ?1";

/// It finds no row if another client has written since the version was read.
const WRITE: &str = "
    UPDATE inventory SET stock = ?3, version = version + 1 WHERE sku = ?1 AND version = ?2
";

/// Pauses between attempts: random, so that clients that collided do not collide again.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(50)).jitter(100);

/// Sells one, and returns the number of attempts; `None` if there are none left.
fn sell(db: &Connection, sku: &str) -> Result<Option<u32>> {
    for tries in 1.. {
        let (stock, version): (i64, i64) =
            db.query_row(READ, [sku], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if stock == 0 {
            return Ok(None);
        }
        // The slow part goes here: prices, rules, other services. It may be done in vain, so it
        // must have no effects of its own: no mail, no payment.
        let left = stock - 1;
        if db.execute(WRITE, params![sku, version, left])? == 1 {
            return Ok(Some(tries));
        }
        // If this is the rule rather than the exception, a lock is cheaper: see
        // docs/guides/choosing.
        thread::sleep(PAUSES.pause(tries - 1, fastrand::u64(..)));
    }
    unreachable!("it is tried until it succeeds")
}

fn open(path: &PathBuf) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(30))?;
    Ok(db)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = env::args_os().nth(1).map(PathBuf::from);
    let own = env::temp_dir().join(format!("holdline-inventory-{}.db", std::process::id()));
    let path = given.clone().unwrap_or_else(|| own.clone());
    open(&path)?.execute_batch(SCHEMA)?;
    let sellers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || -> Result<(u32, u32)> {
                let (db, mut sold, mut tries) = (open(&path)?, 0, 0);
                while let Some(more) = sell(&db, "s101")? {
                    (sold, tries) = (sold + 1, tries + more);
                }
                Ok((sold, tries))
            })
        })
        .collect();
    let (mut sold, mut tries) = (0, 0);
    for seller in sellers {
        let (one, more) = seller.join().expect("no thread panics")?;
        (sold, tries) = (sold + one, tries + more);
    }
    println!("sold {sold} in {tries} tries");
    if given.is_none() {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", own.display()));
        }
    }
    Ok(())
}
