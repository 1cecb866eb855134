//! Calls that are sent together share a commit, and nothing else.

#[path = "../shared/at_once.rs"]
mod at_once;

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private};
use at_once::{LEASE, lock, names, refused_calls_fail_alone, some_refused};
use holdline::store::Enter;
use holdline::{Client, Guard, Mutex, Name, open};
use holdline_testkit::{soon, until};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;
use tokio::task::JoinSet;

/// Locks these names at the same time, each in a task of its own.
fn all(client: &Client, names: &[String]) -> JoinSet<holdline::Result<Guard>> {
    names.iter().map(|name| lock(client.clone(), name.clone())).collect()
}

/// The number of committed transactions. Sessions report them after a while of idleness, or when
/// they end.
async fn commits(server: &Server, client: Client) -> i64 {
    drop(client);
    let sql = server.sql().await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    until("its sessions end", async || one::<i64>(&sql, count, &[]).await == 0).await;
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    one(&sql, commits, &[]).await
}

/// There are as many transactions as messages, and far fewer than calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_share_a_commit() {
    let Some(server) = private("share_commits", &["fsync=off"]) else { return };
    let opened = open(&server.url()).await.expect("opens");
    let before = commits(&server, opened).await;
    let client = open(&server.url()).await.expect("opens");
    let guards = all(&client, &names("n", 100)).join_all().await;
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.expect("free")).collect();
    let releases: JoinSet<_> = guards.into_iter().map(Guard::unlock).collect();
    assert!(releases.join_all().await.iter().all(Result::is_ok));
    let took = commits(&server, client).await - before;
    assert!(took < 100, "{took} transactions for 100 locks and their releases");
}

/// A row that another client has locked delays the other calls of its batch only for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_fails_no_other_call() {
    let Some(server) = private("blocked_batch", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    lock(client.clone(), "n0".into()).await.expect("free").unlock().await.expect("held");
    let mut sql = server.sql().await;
    let blocker = sql.transaction().await.expect("begins");
    blocker.execute("SELECT FROM holdline.line FOR UPDATE", &[]).await.expect("locks");
    let blocked = Mutex::new(&client, "n0").lease(LEASE);
    let waits = tokio::spawn(async move { blocked.lock().await });
    for guard in soon("the others", all(&client, &names("other", 60)).join_all()).await {
        guard.expect("it is free").unlock().await.expect("held");
    }
    blocker.rollback().await.expect("ends");
    let guard = soon("the blocked one", waits).await.expect("no panic").expect("free now");
    guard.unlock().await.expect("held");
}

/// Calls for rows that another client has locked, one after the other, hold up no renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_locked_hold_up_no_renewal() {
    let Some(server) = private("blocked_renewals", &["fsync=off"]) else { return };
    let (mut sql, lease) = (server.sql().await, Duration::from_secs(4));
    // A single call waits for longer than a renewal may take.
    let longer = "ALTER ROLE postgres SET holdline.lock_timeout = '1200'";
    sql.batch_execute(longer).await.expect("works");
    let client = open(&(server.url() + "&timeout=20s")).await.expect("opens");
    let names = names("blocked", 4);
    for name in &names {
        lock(client.clone(), name.clone()).await.expect("free").unlock().await.expect("held");
    }
    let guard = Mutex::new(&client, "held").lease(lease).lock().await.expect("free");
    let blocker = sql.transaction().await.expect("begins");
    let locks = "SELECT FROM holdline.line WHERE name LIKE 'blocked%' FOR UPDATE";
    blocker.execute(locks, &[]).await.expect("locks");
    let blocked = names.iter().map(|name| {
        let store = Arc::clone(client.store());
        let raw = Raw { store, line: Name::new(name).expect("a name") };
        async move { while raw.enter(&ticket(1, 1), Enter::Queue).await.is_err() {} }
    });
    let blocked: JoinSet<_> = blocked.collect();
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_valid(), "it was not renewed");
    blocker.rollback().await.expect("ends");
    soon("the blocked ones", blocked.join_all()).await;
    guard.unlock().await.expect("held");
}

/// A call that the server refuses, which undoes its whole batch, fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_fails_no_other_call() {
    let Some(server) = private("refused_batch", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ \
        BEGIN RAISE EXCEPTION 'as the test wants'; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON holdline.line FOR EACH ROW \
        WHEN (new.name LIKE 'refused%') EXECUTE FUNCTION refuse()";
    server.sql().await.batch_execute(refuses).await.expect("works");
    refused_calls_fail_alone(&client, some_refused()).await;
}

/// A waker of an executor that has a bug, and how often it was called.
#[derive(Default)]
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("as it should");
    }
}

/// The calls of others go on, however often a waker panics at an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_harms_no_other_call() {
    let Some(server) = private("panicking_wakers", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let panics = Arc::<Panics>::default();
    let waker = Arc::clone(&panics).into();
    for call in 0..4 {
        let mut look = pin!(raw.store.snapshot(&raw.line));
        assert!(look.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        until("it is answered", async || panics.0.load(Ordering::SeqCst) > call).await;
    }
    let (mine, next) = (ticket(1, 1), ticket(1, 1));
    raw.hold(&mine).await;
    raw.queue(&next).await;
}
