//! The speed of the lease table relative to the bare idiom through the same client: ratios from one
//! run on one server. Not a test of correctness, so it runs only on request:
//! `cargo test --release --features mysql --test mysql speed -- --ignored --nocapture`.

use crate::server::{Database, databases};
use holdline::{Mutex, open};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::future::Future;
use std::time::Instant;

/// One bare lock and unlock: a synchronous update by primary key, until it finds the lock free, and
/// another that frees it.
async fn bare(conn: &mut Conn, n: usize) {
    let lock = format!(
        "UPDATE bare SET owner = x'01', token = LAST_INSERT_ID(token + 1), expires = SYSDATE(6) + \
         INTERVAL 10 SECOND WHERE name = 'bare{n}' AND (owner IS NULL OR expires <= SYSDATE(6))"
    );
    loop {
        conn.query_drop(&lock).await.expect("works");
        if conn.last_insert_id().is_some_and(|token| token > 0) {
            break;
        }
    }
    let sql = format!("UPDATE bare SET owner = NULL WHERE name = 'bare{n}' AND owner = x'01'");
    conn.query_drop(sql).await.expect("works");
    assert_eq!(conn.affected_rows(), 1);
}

/// The library's procedures alone.
async fn procedures(conn: &mut Conn, n: usize) {
    let id = format!("x'{:032x}'", fastrand::u128(..));
    let note = "ab".repeat(60);
    let enter = format!(
        "CALL holdline_1_enter('raw{n}', {id}, 1, 1, 10000000, 3000000, 1, 0, -2, x'{note}', 0)"
    );
    let (answer, seq): (u8, u64) = enter_answer(conn, enter).await;
    assert!(answer == 0 && seq > 0);
    let leave = format!("CALL holdline_1_leave('raw{n}', {id}, 0, NULL, 0, 0)");
    let left: Option<(u8, Vec<u8>)> = conn.query_first(leave).await.expect("works");
    assert_eq!(left.map(|(left, _)| left), Some(1));
}

async fn enter_answer(conn: &mut Conn, sql: String) -> (u8, u64) {
    let row: Option<(u8, u64, i64, Vec<u8>)> = conn.query_first(sql).await.expect("works");
    row.map(|(answer, seq, ..)| (answer, seq)).expect("a row")
}

async fn rate<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    each: u32,
    work: impl AsyncFn(usize) -> F,
) -> f64 {
    let mut ready = Vec::new();
    for n in 0..tasks {
        ready.push(work(n).await);
    }
    let start = Instant::now();
    let running: Vec<_> = ready.into_iter().map(tokio::spawn).collect();
    for task in running {
        task.await.expect("no panic");
    }
    f64::from(each) * tasks as f64 / start.elapsed().as_secs_f64()
}

/// The median; NaN if there is none.
fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The usual table of locks: a row for each.
async fn bare_table(database: &Database) {
    let mut conn = database.conn().await;
    conn.query_drop(
        "CREATE TABLE bare (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(16), \
         token BIGINT NOT NULL, expires DATETIME(6) NOT NULL)",
    )
    .await
    .expect("works");
    for n in 0..16 {
        let sql = format!("INSERT INTO bare VALUES ('bare{n}', NULL, 0, SYSDATE(6))");
        conn.query_drop(sql).await.expect("works");
    }
}

#[allow(clippy::async_yields_async, reason = "what is made ready, and then timed")]
async fn measure(database: &Database) {
    drop(open(&database.url("")).await.expect("installs"));
    bare_table(database).await;
    let shared = open(&database.url("")).await.expect("opens");
    for (tasks, each, what) in [
        (1, 500, "client"),
        (16, 100, "clients on a lock each"),
        (16, 100, "tasks of a client, on a lock each"),
        (16, 50, "clients on one lock"),
    ] {
        let (together, one_client) = (what.ends_with("one lock"), what.starts_with("tasks"));
        let name = move |n: usize| if together { 0 } else { n };
        let bare_work = async |n: usize| {
            let mut conn = database.conn().await;
            async move {
                for _ in 0..each {
                    bare(&mut conn, name(n)).await;
                }
            }
        };
        let raw_work = async |n: usize| {
            let mut conn = database.conn().await;
            procedures(&mut conn, n).await;
            async move {
                for _ in 0..each {
                    procedures(&mut conn, n).await;
                }
            }
        };
        let line_work = async |n: usize| {
            // A separate client each, as in separate processes.
            let separate = async || open(&database.url("")).await.expect("opens");
            let client = if one_client { shared.clone() } else { separate().await };
            let lock = Mutex::new(&client, format!("line{}", name(n)));
            lock.lock().await.expect("works").unlock().await.expect("held");
            async move {
                for _ in 0..each {
                    lock.lock().await.expect("works").unlock().await.expect("held");
                }
            }
        };
        let [mut bares, mut lines, mut ratios, mut raws] = [const { Vec::new() }; 4];
        for _ in 0..7 {
            let bare = rate(tasks, each, bare_work).await;
            let line = rate(tasks, each, line_work).await;
            if !together {
                raws.push(rate(tasks, each, raw_work).await / bare);
            }
            bares.push(bare);
            lines.push(line);
            ratios.push(line / bare);
        }
        println!(
            "{}: {tasks} {what}: bare {:.0}/s, holdline {:.0}/s; of bare: procedures {:.2}, \
             holdline {:.2}, its time {:.2}",
            database.url(""),
            middle(bares),
            middle(lines),
            middle(raws),
            middle(ratios.clone()),
            1.0 / middle(ratios)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn beside_the_bare_idiom() {
    for database in databases("speed").await {
        measure(&database).await;
    }
}
