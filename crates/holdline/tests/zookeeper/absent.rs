//! Servers that are not there, or not yet.

use crate::linked;
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{Link, free_port, in_own_process, on_event, persist, soon, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// As soon as with other stores, though sessions are long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_listens_that_is_told_soon() {
    let hosts = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let client = open(&format!("zookeeper://{}", hosts.join(","))).await.expect("a good URL");
    let mut quickest = Duration::MAX;
    // A busy machine may be late, but not each time.
    for _ in 0..5 {
        let began = Instant::now();
        let lock = soon("an answer", Mutex::new(&client, "x").lock()).await.expect_err("nobody");
        let seen = soon("an answer", client.inspect("x")).await.expect_err("nobody");
        quickest = quickest.min(began.elapsed());
        for error in [lock, seen] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
            let text = error.to_string();
            assert!(hosts.iter().all(|host| text.contains(host)), "{text}");
            assert!(text.contains("nobody listens at"), "{text}");
        }
        // Nothing was ever sent, so there is nothing to be given up: long before the lease is over.
        let soon = Duration::from_secs(5);
        tokio::time::timeout(soon, client.settle()).await.expect("nothing is left to be done");
        if quickest < Duration::from_secs(4) {
            return;
        }
    }
    panic!("at best after {quickest:?}");
}

/// Somebody takes the call, and has nothing to say yet, as a member does until there is a leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_starting_is_waited_for() {
    let Some(servers) = start(1) else { return };
    // Takes calls, and hangs up.
    let link = Link::to(servers.hosts()[0].as_str()).expect("a port is free");
    link.cut();
    let nowhere = free_port();
    let url = format!("zookeeper://127.0.0.1:{nowhere},{}", link.address());
    let client = open(&url).await.expect("a good URL");
    let began = Instant::now();
    let lock = Mutex::new(&client, "x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    // Longer than it takes to hear that nobody is there.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!waiter.is_finished(), "it gave up after {:?}", began.elapsed());
    link.mend();
    let guard = soon("the lock", waiter).await.expect("no panic").expect("it is there now");
    guard.unlock().await.expect("held");
}

/// The store would open no session any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_panics_while_a_session_is_opened_ends_that_attempt_alone() {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    let name = "a_subscriber_that_panics_while_a_session_is_opened_ends_that_attempt_alone";
    if !in_own_process(&format!("absent::{name}")) {
        return;
    }
    let Some(servers) = start(1) else { return };
    let link = Link::to(servers.hosts()[0].as_str()).expect("a port is free");
    link.cut();
    let panics = on_event(tracing::Level::DEBUG, |event| {
        let of_the_client = event.metadata().target().starts_with("holdline_zookeeper_client");
        assert!(!of_the_client || PANICKED.swap(true, Ordering::Relaxed), "as it should");
    });
    tracing::subscriber::set_global_default(panics).expect("it is the first");
    let client = open(&format!("zookeeper://{}", link.address())).await.expect("a good URL");
    let lock = Mutex::new(&client, "x");
    lock.lock_within(Duration::from_millis(500)).await.expect_err("it hangs up");
    until("it is told of", async || PANICKED.load(Ordering::Relaxed)).await;
    link.mend();
    let guard = soon("the lock", persist(lock)).await;
    guard.unlock().await.expect("held");
}

/// The tasks of a session that exists: the one of its connection, and the one of its heartbeats,
/// without which no answer would ever come, or nothing vouch for the session, for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_panics_about_a_connection_ends_that_session_alone() {
    let name = "a_subscriber_that_panics_about_a_connection_ends_that_session_alone";
    a_panic_about_a_broken_link_ends_one_session(name, "connection").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_panics_about_a_heartbeat_ends_that_session_alone() {
    let name = "a_subscriber_that_panics_about_a_heartbeat_ends_that_session_alone";
    a_panic_about_a_broken_link_ends_one_session(name, "session").await;
}

async fn a_panic_about_a_broken_link_ends_one_session(name: &str, module: &str) {
    static ARMED: AtomicBool = AtomicBool::new(false);
    if !in_own_process(&format!("absent::{name}")) {
        return;
    }
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "?session=5").await;
    let target = format!("holdline_zookeeper_client::{module}");
    let panics = on_event(tracing::Level::DEBUG, move |event| {
        let panics = event.metadata().target() == target && ARMED.swap(false, Ordering::Relaxed);
        assert!(!panics, "as it should");
    });
    tracing::subscriber::set_global_default(panics).expect("it is the first");
    let lock = Mutex::new(&client, "x").lease(Duration::from_millis(1500));
    drop(soon("the lock", persist(lock.clone())).await);
    ARMED.store(true, Ordering::Relaxed);
    link.cut();
    until("it is told of", async || !ARMED.load(Ordering::Relaxed)).await;
    link.mend();
    // Until then, heartbeats of before the panic may vouch for the session.
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(soon("the lock", persist(lock)).await);
}

/// A session outlives a restart, and so do those who ask on it meanwhile: that everybody refuses
/// for a while is no news to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_waits_for_its_server() {
    let Some(mut servers) = start(1) else { return };
    // The longest, since a busy machine takes its time to start a server.
    let client = open(&format!("{}?session=60", servers.url())).await.expect("a good URL");
    let guard = soon("the lock", persist(Mutex::new(&client, "x"))).await;
    servers.kill(0);
    let lock = Mutex::new(&client, "y");
    let waiter = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!waiter.is_finished(), "it gave up");
    servers.restart(0);
    let other = soon("the lock", waiter).await.expect("no panic").expect("it is there again");
    other.unlock().await.expect("held");
    assert!(guard.is_valid());
    guard.unlock().await.expect("held all the time");
}
