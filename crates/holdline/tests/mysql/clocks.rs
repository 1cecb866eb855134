//! The server's clock, and when it is read.

use crate::server::{Database, blocked, databases, private, ticket};
use holdline::store::{Enter, Standing};
use holdline::{ErrorKind, Name, open};
use holdline_testkit::{soon, until};
use mysql_async::prelude::Queryable;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A statement that waited for the row gives a whole lease: the clock is read after the wait, not
/// before it, as `NOW()` would be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_was_blocked_gives_a_whole_lease() {
    for database in databases("blocked").await {
        let client = open(&database.url("&timeout=30s")).await.expect("opens");
        let (store, line) = (client.store(), Name::new("x").expect("good"));
        let (note, lease) = (Arc::from("note"), Duration::from_secs(60));
        let mine = ticket(lease);
        let standing = store.enter(&line, &mine, &note, Enter::Queue).await.expect("works");
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        let (mut conn, mut observer) = (database.conn().await, database.conn().await);
        for how in [Enter::Keep(seq), Enter::Try] {
            conn.query_drop("START TRANSACTION").await.expect("works");
            let sql = "SELECT name FROM holdline_line WHERE name = 'x' FOR UPDATE";
            conn.query_drop(sql).await.expect("works");
            let (store, line, note) = (Arc::clone(store), line.clone(), Arc::clone(&note));
            let renewal = tokio::spawn(async move { store.enter(&line, &mine, &note, how).await });
            until("it waits", async || blocked(&mut observer).await).await;
            let blocked_for = Duration::from_secs(2);
            tokio::time::sleep(blocked_for).await; // what the server must not count
            let freed = Instant::now();
            conn.query_drop("ROLLBACK").await.expect("works");
            let standing = soon("the renewal", renewal).await.expect("no panic").expect("works");
            assert_eq!(standing, Standing::Admitted(seq));
            let store = client.store();
            let left = store.snapshot(&Name::new("x").expect("good")).await.expect("works");
            let left = left.places[0].expires_in;
            assert!(left + freed.elapsed() >= lease, "{left:?} of {lease:?} for {how:?}");
        }
    }
}

/// A ticket that was barred when it left takes no place by a later request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_late_takes_no_place() {
    for database in databases("barred").await {
        let client = open(&database.url("")).await.expect("opens");
        let mut conn = database.conn().await;
        for name in ["fresh", "used"] {
            if name == "used" {
                let guard = holdline::Mutex::new(&client, name).lock().await.expect("works");
                guard.unlock().await.expect("held");
            }
            let id = format!("x'{:032x}'", fastrand::u128(..));
            let leave = format!("CALL holdline_1_leave('{name}', {id}, 60000000, NULL, 0, 0)");
            let left: (u8, Vec<u8>) = crate::server::first(&mut conn, &leave).await;
            assert_eq!(left.0, 0, "it was not there");
            for how in [-1, -2] {
                let enter = format!(
                    "CALL holdline_1_enter('{name}', {id}, 1, 1, 1000000, 1000000, 1, 0, {how}, \
                     '', 0)"
                );
                let answer: (u8, Option<u64>, i64, Vec<u8>) =
                    crate::server::first(&mut conn, &enter).await;
                assert_eq!(answer.0, 2, "lost, and not admitted");
            }
            // Other tickets are not barred.
            let guard = holdline::Mutex::new(&client, name).lock().await.expect("works");
            guard.unlock().await.expect("held");
        }
    }
}

/// Of places that expired together, only the holder's weight is given back: one waiter gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_expired_with_the_holder_gives_nothing_back() {
    for database in databases("together").await {
        let client = open(&database.url("")).await.expect("opens");
        let (store, line) = (client.store(), Name::new("x").expect("good"));
        let (note, lease) = (Arc::from("note"), Duration::from_secs(600));
        let tickets = [(); 4].map(|()| ticket(lease));
        for ticket in &tickets {
            store.enter(&line, ticket, &note, Enter::Queue).await.expect("works");
        }
        let expire = "UPDATE holdline_line SET expires = 1, due = 1; \
                      UPDATE holdline_place SET expires = 1 ORDER BY seq LIMIT 1";
        database.conn().await.query_drop(expire).await.expect("works");
        let mut standings = Vec::new();
        for ticket in &tickets[2..] {
            let standing = store.enter(&line, ticket, &note, Enter::Queue).await.expect("works");
            standings.push(matches!(standing, Standing::Admitted(_)));
        }
        assert_eq!(standings, [true, false], "which of the last two hold");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_stands_still_is_refused() {
    let Some(server) = private("mysql-still", &["--sysdate-is-now"]) else { return };
    let database = Database::fresh(&server.url(), "still").await;
    let error = open(&database.url("")).await.expect_err("it cannot be used");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("--sysdate-is-now"), "{error}");
}

/// The session's settings are the store's, whatever the server's defaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_defaults_of_a_server_do_not_matter() {
    let Some(server) = private("mysql-odd", &[]) else { return };
    let database = Database::fresh(&server.url(), "odd").await;
    let mut conn = database.conn().await;
    conn.query_drop(
        "SET GLOBAL autocommit = 0, time_zone = '+05:30', sql_mode = 'ANSI,ORACLE', \
         innodb_lock_wait_timeout = 1, completion_type = 'CHAIN', sql_safe_updates = 1, \
         sql_select_limit = 1; \
         SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
    )
    .await
    .expect("it may");
    let (one, other) = (
        open(&database.url("")).await.expect("opens"),
        open(&database.url("")).await.expect("opens"),
    );
    let guard = holdline::Mutex::new(&one, "x").lock().await.expect("works");
    let token = guard.token();
    assert!(holdline::Mutex::new(&other, "x").try_lock().await.expect("works").is_none());
    let _second = holdline::Semaphore::new(&one, "s", 2).acquire(1).await.expect("works");
    let _third = holdline::Semaphore::new(&other, "s", 2).acquire(1).await.expect("works");
    assert_eq!(one.inspect("s").await.expect("works").holders.len(), 2);
    let waiting = {
        let lock = holdline::Mutex::new(&other, "x");
        tokio::spawn(async move { lock.lock().await })
    };
    guard.unlock().await.expect("held");
    let guard = soon("the next", waiting).await.expect("no panic").expect("works");
    assert!(guard.token() > token);
    guard.unlock().await.expect("held");
}
