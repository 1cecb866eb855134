//! Killed and restarted servers, ended connections, and clients that collide.

use crate::server::{Database, count, databases, first, private, ticket};
use futures_util::future::join_all;
use holdline::store::{Enter, Standing};
use holdline::{Mutex, Name, open};
use holdline_testkit::{Link, soon, until};
use mysql_async::prelude::Queryable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A killed server comes back with its locks, and tokens keep rising. Interrupted calls were
/// carried out or not; there are never two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_forgets_no_lock() {
    let Some(mut server) = private("mysql-killed", &[]) else { return };
    let database = Database::fresh(&server.url(), "killed").await;
    let url = database.url("");
    let (one, other) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    let lease = Duration::from_secs(120);
    let guard = Mutex::new(&one, "x").lease(lease).lock().await.expect("works");
    let token = guard.token();
    let waiting = {
        let lock = Mutex::new(&other, "x");
        tokio::spawn(async move { lock.lock().await })
    };
    until("it waits", async || !one.inspect("x").await.expect("works").waiters.is_empty()).await;
    server.kill(0);
    server.restart(0);
    let line = Name::new("x").expect("good");
    let view = soon("the view", async {
        loop {
            if let Ok(view) = one.store().snapshot(&line).await {
                break view;
            }
        }
    })
    .await;
    let holder = view.holders().next().expect("it is held");
    assert_eq!(holder.seq.0, token, "by the same");
    guard.unlock().await.expect("it is still held");
    let next = soon("the next", waiting).await.expect("no panic").expect("it rode the outage out");
    assert!(next.token() > token);
    next.unlock().await.expect("held");
}

/// Idle connections that the server ends are made again: no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_connections_are_made_again() {
    for database in databases("ended").await {
        let client = open(&database.url("")).await.expect("opens");
        let lock = Mutex::new(&client, "x");
        let mut conn = database.conn().await;
        for _ in 0..10 {
            let guard = lock.lock().await.expect("works");
            let sql = "SELECT id FROM information_schema.processlist \
                       WHERE db = DATABASE() AND id <> CONNECTION_ID()";
            let others: Vec<u64> = conn.query(sql).await.expect("works");
            assert!(!others.is_empty());
            for id in others {
                // It may be gone by then.
                let _ = conn.query_drop(format!("KILL CONNECTION {id}")).await;
            }
            guard.unlock().await.expect("held, and asked once more");
        }
    }
}

/// A slow server that answers in time counts no interrupted handshakes: too many in a row would
/// make it block this machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_given_time() {
    let Some(server) = private("mysql-slow", &[]) else { return };
    let database = Database::fresh(&server.url(), "slow").await;
    drop(open(&database.url("")).await.expect("installs"));
    let mut conn = database.conn().await;
    let before = count(&mut conn, "Aborted_connects").await;
    let link = Link::to(&*server.hosts()[0]).expect("a port is free");
    link.delay(Duration::from_millis(250));
    let address = link.address().to_string();
    let url = database.url("&timeout=20s").replace("install=yes", "install=no");
    let began = Instant::now();
    drop(open(&url.replace(&server.hosts()[0], &address)).await.expect("it is slow"));
    assert!(began.elapsed() > Duration::from_secs(1), "it was slow: {:?}", began.elapsed());
    assert_eq!(count(&mut conn, "Aborted_connects").await, before);
}

/// Many clients use many new names for the first time: none gets a deadlock error, and all tokens
/// of a name differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_uses_do_not_collide() {
    for database in databases("first_uses").await {
        let url = database.url("&timeout=20s");
        let clients = join_all((0..16).map(|_| open(&url))).await;
        let clients: Vec<_> = clients.into_iter().map(|one| one.expect("opens")).collect();
        for round in 0..20 {
            let line = Name::new(format!("name {round}")).expect("good");
            let note = Arc::from("note");
            let tickets: Vec<_> = clients.iter().map(|_| ticket(Duration::from_secs(60))).collect();
            let enters = clients.iter().zip(&tickets);
            let standings = join_all(
                enters.map(|(client, mine)| client.store().enter(&line, mine, &note, Enter::Queue)),
            )
            .await;
            let seqs: BTreeSet<_> = standings
                .into_iter()
                .map(|standing| match standing.expect("no error") {
                    Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. } => seq,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(seqs.len(), clients.len());
            let leaves = clients.iter().zip(&tickets);
            for left in
                join_all(leaves.map(|(client, mine)| client.store().leave(&line, mine.id))).await
            {
                assert!(left.expect("no error"));
            }
        }
    }
}

/// A failed try whose first request had no answer is in doubt: that request may be late, so the
/// departure bars the ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_in_doubt_is_barred() {
    let Some(server) = private("mysql-doubtful-try", &[]) else { return };
    let database = Database::fresh(&server.url(), "doubtful_try").await;
    let link = Link::to(&*server.hosts()[0]).expect("a port is free");
    let url = database.url("");
    let holder = open(&url).await.expect("opens");
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let client = url.replace(&server.hosts()[0], &link.address().to_string());
    let client = open(&client).await.expect("opens");
    let (line, note) = (Name::new("x").expect("good"), Arc::from("note"));
    let mut conn = database.conn().await;
    let (store, barred) = (client.store(), "SELECT COUNT(*) FROM holdline_barred");
    let mine = ticket(Duration::from_secs(60));
    let standing = store.enter(&line, &mine, &note, Enter::Try).await.expect("an answer");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    assert!(!store.leave(&line, mine.id).await.expect("works"));
    assert_eq!(first::<u64>(&mut conn, barred).await, 0);
    link.lose_next_reply();
    let error = store.enter(&line, &mine, &note, Enter::Try).await.expect_err("it is in doubt");
    assert!(error.retryable(), "{error}");
    assert!(!store.leave(&line, mine.id).await.expect("works"));
    assert_eq!(first::<u64>(&mut conn, barred).await, 1);
    guard.unlock().await.expect("held");
}
