//! The cost of the lease table to its server, by the server's own counters.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private};
use holdline::store::{Enter, Standing};
use holdline::{Mutex, open};
use holdline_testkit::{released, until};
use std::time::Duration;
use tokio_postgres::Client;

/// Settings under which only the store writes, so that writes can be counted.
const QUIET: [&str; 4] =
    ["wal_level=minimal", "max_wal_senders=0", "checkpoint_timeout=1h", "bgwriter_lru_maxpages=0"];

const ENTER: &str = "SELECT \"holdline\".enter(";
const LEAVE: &str = "SELECT \"holdline\".leave(";

/// Each statement is one message and one round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_costs_two_statements() {
    let Some(server) = private("two_statements", &["log_statement=all", "fsync=off"]) else {
        return;
    };
    let client = open(&server.url()).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    until("it looks for old transactions", async || server.logged("pg_prepared_xact") == 1).await;
    let before = server.logged("LOG:  statement: SELECT");
    for _ in 0..100 {
        lock.lock().await.expect("works").unlock().await.expect("held");
    }
    assert_eq!(server.logged("LOG:  statement: SELECT") - before, 200);
    assert_eq!((server.logged(ENTER), server.logged(LEAVE)), (101, 101));
}

async fn wal(sql: &Client) -> String {
    one(sql, "SELECT pg_current_wal_insert_lsn()::text", &[]).await
}

#[tokio::test]
async fn a_failed_try_writes_nothing() {
    let Some(server) = private("no_wal", &QUIET) else { return };
    let (client, rival) = (open(&server.url()).await.expect("opens"), open(&server.url()).await);
    let (sql, rival) = (server.sql().await, rival.expect("opens"));
    let guard = Mutex::new(&client, "x").lease(Duration::from_secs(600)).lock().await;
    let guard = guard.expect("works");
    assert!(Mutex::new(&rival, "x").try_lock().await.expect("works").is_none());
    let before = wal(&sql).await;
    for _ in 0..100 {
        assert!(Mutex::new(&rival, "x").try_lock().await.expect("works").is_none());
    }
    assert_eq!(wal(&sql).await, before);
    guard.unlock().await.expect("held");
    assert_ne!(wal(&sql).await, before, "it is counted");
}

/// A failed try takes no row lock, so it does not wait for a writer.
#[tokio::test]
async fn a_try_does_not_wait_for_a_renewal() {
    let Some(server) = private("no_wait", &["fsync=off"]) else { return };
    let (holder, rival) = (Raw::open(&server.url()).await, Raw::open(&server.url()).await);
    let mine = ticket(1, 1);
    holder.hold(&mine).await;
    let mut sql = server.sql().await;
    let blocker = sql.transaction().await.expect("begins");
    blocker.execute("SELECT 1 FROM holdline.line FOR UPDATE", &[]).await.expect("locks");
    let answer = rival.enter(&ticket(1, 1), Enter::Try).await.expect("is answered meanwhile");
    assert!(matches!(answer, Standing::Waiting { seq: None, .. }), "{answer:?}");
    blocker.rollback().await.expect("ends");
}

/// The number of rows read and written in holdline's tables so far.
async fn work(sql: &Client) -> i64 {
    let count = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins \
                 + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables \
                 WHERE schemaname = 'holdline'";
    one(sql, count, &[]).await
}

/// The number of rows read and written by these handovers with this many waiters.
async fn of_handovers(server: &Server, name: &str, waiters: usize, handovers: usize) -> i64 {
    // A busy machine has time: the work is counted.
    let url = server.url() + "&timeout=30s";
    let raw = Raw::named(&url, name).await;
    let mut tickets = vec![ticket(1, 1)];
    raw.hold(&tickets[0]).await;
    for _ in 0..waiters {
        let next = ticket(1, 1);
        raw.queue(&next).await;
        tickets.push(next);
    }
    let sql = server.sql().await;
    // A session reports its counts when it ends.
    let ended = async |raw: Raw| {
        drop(raw);
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
        until("its sessions end", async || one::<i64>(&sql, sessions, &[]).await == 0).await;
        work(&sql).await
    };
    let before = ended(raw).await;
    let raw = Raw::named(&url, name).await;
    for ticket in &tickets[..handovers] {
        assert!(raw.leave(ticket).await);
    }
    ended(raw).await - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_costs_the_same_with_many_waiters() {
    let Some(server) = private("handover", &["fsync=off"]) else { return };
    let few = of_handovers(&server, "few", 25, 20).await;
    let many = of_handovers(&server, "many", 1000, 20).await;
    assert!(few > 20, "{few} rows are counted");
    assert!(many <= few + few / 10, "{many} rows with 1000 waiters, {few} with 25");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_has_two_connections() {
    let Some(server) = private("two_connections", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let lock = Mutex::new(&client, format!("n{}", n % 50));
            tokio::spawn(async move {
                for _ in 0..5 {
                    released(lock.lock().await.expect("works")).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    server.listened_to().await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    assert_eq!(one::<i64>(&server.sql().await, count, &[]).await, 2);
}
