//! Hundreds of acquisitions that give up: their cost to the server, and a check that no client
//! waits for them longer than they last.

use crate::raw::{Raw, ticket};
use crate::server::{Server, one, private};
use futures_util::FutureExt;
use holdline::store::{Enter, Standing};
use holdline::{Mutex, Name, open};
use holdline_testkit::{Link, Way, soon, until};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const LOGS: [&str; 3] = ["log_statement=all", "log_connections=on", "fsync=off"];
const TASKS: usize = 64;
const ATTEMPTS: usize = 40;

/// Each task has a lock of its own, and gives up after a millisecond, again and again.
async fn storm(server: &Server, options: &str) {
    let client = open(&(server.url() + options)).await.expect("opens");
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..TASKS {
        let lock = Mutex::new(&client, format!("n{at}")).lease(Duration::from_secs(60));
        tasks.spawn(async move {
            for _ in 0..ATTEMPTS {
                // It may be acquired, refused in time, or given up.
                let _ = timeout(Duration::from_millis(1), lock.lock()).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    soon("all is given up", client.settle()).await;
    for at in 0..TASKS {
        let lock = Mutex::new(&client, format!("n{at}"));
        let guard = soon("a lock", lock.lock()).await.expect("it works again");
        guard.unlock().await.expect("it was held");
    }
}

const CONNECTED: &str = "connection authorized: user=postgres database=postgres \
                         application_name=holdline";

/// A request that was never sent is no reason to bar a ticket in the server, or to connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_up_costs_little() {
    // One for commands, one for notices, one that missed the tables and one that installed them. On
    // a busy machine one that is silent for too long is given up for another.
    for _ in 0..5 {
        let Some(connections) = connections_of_a_storm().await else { return };
        println!("{connections} connections");
        if connections <= 4 {
            return;
        }
    }
    panic!("each storm took too many connections");
}

async fn connections_of_a_storm() -> Option<usize> {
    let server = private("storm_table", &LOGS)?;
    storm(&server, "").await;
    let (enters, leaves) = (server.logged("\".enter("), server.logged("\".leave("));
    let barred = server.logged(", '60000000')");
    println!("{enters} enters, {leaves} leaves, {barred} of them barred");
    assert!(enters >= TASKS, "{enters} enters are counted");
    assert!(leaves <= TASKS * (ATTEMPTS + 1), "{leaves} leaves");
    assert!(barred <= enters, "{barred} were barred, but only {enters} sent");
    Some(server.logged(CONNECTED))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_kept_through_a_storm() {
    for (options, most) in [("&scheme=advisory", 1), ("&scheme=row&connections=64", TASKS)] {
        let Some(server) = private("storm_sessions", &LOGS) else { return };
        storm(&server, options).await;
        // Those that hold, one for looks, one for notices, and one for the installation.
        let made = server.logged(CONNECTED);
        println!("{options}: {made} connections");
        assert!(made <= most + 3, "{options}: {made} connections were made");
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND mode = 'ExclusiveLock'";
        assert_eq!(one::<i64>(&server.sql().await, locks, &[]).await, 0);
    }
}

/// Commits that hang, as they do while a synchronous standby is away, take few connections, also if
/// the server answers other calls meanwhile: here those for a row that a hanging commit has locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_hang_take_few_connections() {
    let Some(server) = private("hanging_commits", &["fsync=off"]) else { return };
    let raw = Raw::open(&(server.url() + "&listen=off")).await;
    let (mine, sql) = (ticket(1, 1), server.sql().await);
    let seq = raw.hold(&mine).await;
    server.synchronous_with("away").await;
    until("commits hang", async || raw.keep(&mine, seq).await.is_err()).await;
    let (began, mut name) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(24) {
        name += 1;
        let other = Raw { line: Name::new(format!("n{name}")).expect("good"), ..raw.clone() };
        let ticket = ticket(1, 1);
        let (kept, entered) =
            tokio::join!(raw.keep(&mine, seq), other.enter(&ticket, Enter::Queue));
        assert!(kept.is_err() && entered.is_err(), "{kept:?} {entered:?}");
    }
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    let made = one::<i64>(&sql, ours, &[]).await;
    println!("{made} connections in {name} rounds");
    assert!(made <= 5, "{made} connections were made");
    server.synchronous_with("").await;
    until("commits go on", async || raw.keep(&mine, seq).await.is_ok()).await;
}

/// The same for rows, each of whose connections begins with a commit. Held locks stay held, and a
/// connection that is there locks even a name that was never used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_hang_take_few_connections_for_rows() {
    let Some(server) = private("hanging_rows", &["fsync=off"]) else { return };
    let raw = Raw::open(&(server.url() + "&scheme=row&listen=off")).await;
    let of = |name: &str| Raw { line: Name::new(name).expect("good"), ..raw.clone() };
    let (mine, other) = (ticket(1, 1), ticket(1, 1));
    let seq = raw.hold(&mine).await;
    of("spare").hold(&other).await;
    assert!(of("spare").leave(&other).await);
    server.commits_hang("").await;
    of("new").hold(&other).await;
    for name in 0..12 {
        let entered = of(&format!("n{name}")).enter(&ticket(1, 1), Enter::Try).await;
        assert!(entered.is_err(), "{entered:?}");
        assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    }
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdline%'";
    let made = one::<i64>(&server.sql().await, ours, &[]).await;
    assert!(made <= 6, "{made} connections were made");
    server.synchronous_with("").await;
    let next = ticket(1, 1);
    until("commits go on", async || of("next").enter(&next, Enter::Queue).await.is_ok()).await;
}

/// A ticket that waits only for an attempt of its own process is woken when that has ended,
/// although nothing was released and so no notice is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_has_ended_wakes_its_waiters() {
    let Some(server) = private("storm_wakes", &["fsync=off"]) else { return };
    for scheme in ["advisory", "row"] {
        let link = Link::to(server.address()).expect("a link");
        let far = format!(
            "postgres://postgres@{}/postgres?install=yes&timeout=20s&scheme={scheme}",
            link.address()
        );
        let near = Raw::open(&format!("{}&scheme={scheme}", server.url())).await;
        let (raw, held) = (Raw::open(&far).await, ticket(1, 1));
        near.hold(&held).await;
        let first = ticket(1, 1);
        assert!(matches!(
            raw.enter(&first, Enter::Queue).await.expect("works"),
            Standing::Waiting { .. }
        ));
        let woken = || raw.store.watch(&raw.line, first.id);
        soon("it listens", woken()).await.expect("works");
        // The last wake-ups from when it started listening.
        while timeout(Duration::from_millis(50), woken()).await.is_ok() {}
        link.stall(Way::Both);
        let (slow, next) = (ticket(1, 1), ticket(1, 1));
        let mut abandoned = Box::pin(raw.enter(&slow, Enter::Queue));
        assert!((&mut abandoned).now_or_never().is_none(), "{scheme}: it is stalled");
        let standing = raw.enter(&next, Enter::Queue).await.expect("works");
        assert!(matches!(standing, Standing::Waiting { .. }), "{scheme}: {standing:?}");
        drop(abandoned); // its attempt goes on
        link.mend();
        soon("the wake", raw.store.watch(&raw.line, next.id)).await.expect("works");
        assert!(near.leave(&held).await);
    }
}
