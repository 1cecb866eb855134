//! The cost of the lease table to its server, by the server's own counters.

use crate::server::{Database, count, first, private, ticket};
use holdline::store::{Enter, Standing, Ticket};
use holdline::{Mutex, Name, open};
use holdline_testkit::until;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use std::time::Duration;

/// G18: one request to lock and one to unlock. (Reading the counter is a request too.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_costs_two_requests() {
    let Some(server) = private("mysql-cost", &[]) else { return };
    let database = Database::fresh(&server.url(), "cost").await;
    let mut conn = database.conn().await;
    let client = open(&database.url("")).await.expect("opens");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("works").unlock().await.expect("held");
    let before = count(&mut conn, "Questions").await;
    for _ in 0..100 {
        lock.lock().await.expect("works").unlock().await.expect("held");
    }
    assert_eq!(count(&mut conn, "Questions").await - before, 200 + 1);
    assert_eq!(count(&mut conn, "Com_call_procedure").await, 2, "of the row's creation");
    // A try that succeeds, and the release.
    let before = count(&mut conn, "Com_call_procedure").await;
    lock.try_lock().await.expect("works").expect("free").unlock().await.expect("held");
    assert_eq!(count(&mut conn, "Com_call_procedure").await - before, 1);
}

/// G18: a renewal is one request, too, also of a holder that is not the first of its line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_of_each_holder_is_one_request() {
    let Some(server) = private("mysql-renewals", &[]) else { return };
    let database = Database::fresh(&server.url(), "renewals").await;
    let mut conn = database.conn().await;
    let client = open(&database.url("")).await.expect("opens");
    let (store, line) = (client.store(), Name::new("x").expect("a name"));
    for _ in 0..3 {
        let ticket = Ticket { capacity: 3, ..ticket(Duration::from_secs(600)) };
        let enter = async |how| store.enter(&line, &ticket, &"".into(), how).await;
        let standing = enter(Enter::Queue).await.expect("works");
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        let keep = async || enter(Enter::Keep(seq)).await.expect("works");
        assert_eq!(keep().await, standing); // this one finds out that there is another before it
        let before = count(&mut conn, "Questions").await;
        for _ in 0..10 {
            assert_eq!(keep().await, standing);
        }
        assert_eq!(count(&mut conn, "Questions").await - before, 10 + 1);
    }
}

/// A failed try writes nothing, and neither waits for the row nor locks it, so it cannot delay the
/// holder's renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_writes_and_locks_nothing() {
    let Some(server) = private("mysql-tries", &["--log-bin", "--server-id=1"]) else { return };
    let database = Database::fresh(&server.url(), "tries").await;
    let mut conn = database.conn().await;
    let holder = open(&database.url("")).await.expect("opens");
    let guard = Mutex::new(&holder, "x").fixed_lease(Duration::from_secs(3));
    let guard = guard.lock().await.expect("works");
    let due = "SELECT due FROM holdline_line WHERE name = 'x'";
    let due: u64 = first(&mut conn, due).await;
    guard.extend(Duration::from_secs(600)).await.expect("held");
    // It is the renewed lease that a try goes by.
    let over = format!("SELECT UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 > {due}");
    until("the first lease is over", async || first::<bool>(&mut conn, &over).await).await;
    let other = open(&database.url("")).await.expect("opens");
    let lock = Mutex::new(&other, "x");
    // The row is locked by another client, so a try that locked it would not return.
    conn.query_drop("START TRANSACTION").await.expect("works");
    let locked = "SELECT COUNT(*) FROM holdline_line WHERE name = 'x' FOR UPDATE";
    assert_eq!(first::<u64>(&mut conn, locked).await, 1);
    let written = async |conn: &mut Conn| {
        let (file, at, ..): (String, u64, String, String) = first(conn, "SHOW MASTER STATUS").await;
        (file, at, count(conn, "Handler_update").await + count(conn, "Handler_delete").await)
    };
    let before = written(&mut conn).await;
    for _ in 0..50 {
        assert!(lock.try_lock().await.expect("works").is_none());
    }
    let after = written(&mut conn).await;
    assert_eq!(before, after, "the binary log's end, and changed rows");
    conn.query_drop("ROLLBACK").await.expect("works");
    guard.unlock().await.expect("held");
}

/// A process has at most two connections, however many of its tasks wait: one for calls, including
/// renewals, and one for notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_share_two_connections() {
    let Some(server) = private("mysql-waiters", &[]) else { return };
    let database = Database::fresh(&server.url(), "waiters").await;
    let mut conn = database.conn().await;
    let holder = open(&database.url("")).await.expect("opens");
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let client = open(&database.url("")).await.expect("opens");
    let held = Mutex::new(&client, "held").lease(Duration::from_secs(2)).lock().await;
    let held = held.expect("works");
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let lock = Mutex::new(&client, "x");
            tokio::spawn(async move { lock.lock().await?.unlock().await })
        })
        .collect();
    until("they wait", async || !holder.inspect("x").await.expect("works").waiters.is_empty())
        .await;
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()";
    let renewed = "SELECT expires > seq + 3000000 FROM holdline_line WHERE name = 'held'";
    until("it renews", async || first::<bool>(&mut conn, renewed).await).await;
    // One for the holder, two for the waiters, and this one.
    assert!(first::<u64>(&mut conn, sql).await <= 4);
    guard.unlock().await.expect("held");
    for task in waiting {
        task.await.expect("no panic").expect("each gets it");
    }
    assert!(first::<u64>(&mut conn, sql).await <= 4);
    held.unlock().await.expect("held");
}
