//! What things cost, by the server's own count.

use holdline::{Client, Mutex, RwLock};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{soon, until};
use std::time::{Duration, Instant};

/// Requests per round, when the rounds are many; what comes by the clock (pings, signs of life)
/// adds little.
async fn requests_of(servers: &Servers, rounds: u32, mut round: impl AsyncFnMut()) -> f64 {
    let before = servers.requests();
    for _ in 0..rounds {
        round().await;
    }
    (servers.requests() - before) as f64 / f64::from(rounds)
}

async fn cycle(client: &Client, name: &str) {
    let guard = Mutex::new(client, name).lock().await.expect("it is there");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_lock_and_unlock_are_three_requests() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    cycle(&client, "x").await;
    let cost = requests_of(&servers, 300, async || cycle(&client, "x").await).await;
    assert!((3.0..3.2).contains(&cost), "{cost} requests for a lock and unlock");
    let lock = RwLock::new(&client, "rw");
    lock.read().await.expect("it is there").unlock().await.expect("held");
    let read = async || lock.read().await.expect("it is there").unlock().await.expect("held");
    let cost = requests_of(&servers, 300, read).await;
    assert!((3.0..3.2).contains(&cost), "{cost} requests for a read lock and unlock");
}

#[tokio::test]
async fn a_failed_try_makes_no_node() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let raw = servers.raw().await;
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let created = async || raw.check_stat("/x").await.expect("works").expect("there").cversion;
    let before = created().await;
    let fail = async || {
        assert!(Mutex::new(&two, "x").try_lock().await.expect("it is there").is_none());
    };
    let cost = requests_of(&servers, 300, fail).await;
    assert!(cost < 2.3, "{cost} requests for a failed try: sync and list");
    assert_eq!(created().await, before, "a try made a node");
    guard.unlock().await.expect("held");
}

/// Two who take turns, each waiting for the other: what it costs to come to stand in the line
/// (create and list, one watch), and one list and one delete to hand over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_is_two_requests() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    cycle(&one, "x").await;
    cycle(&two, "x").await;
    let mut held = Mutex::new(&one, "x").lock().await.expect("it is there");
    let (before, began, mut standing) = (servers.requests(), Instant::now(), 0);
    let rounds = 200;
    for round in 0..rounds {
        let client = if round % 2 == 0 { two.clone() } else { one.clone() };
        let watches = servers.requests();
        let waiter = tokio::spawn(async move { Mutex::new(&client, "x").lock().await });
        until("the watch", async || servers.requests() >= watches + 3).await;
        standing += 3;
        held.unlock().await.expect("held");
        held = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    }
    let all = servers.requests() - before;
    // Pings and signs of life of two sessions, and a watch for what is held for a while.
    let by_time = began.elapsed().as_millis() as u64 / 100;
    let cost = (all - standing).saturating_sub(by_time) as f64 / f64::from(rounds);
    assert!(cost <= 2.1, "{cost} requests for handing over");
    held.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_are_one_session_and_no_traffic() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let mut guards = Vec::new();
    for number in 0..1000 {
        let lock = Mutex::new(&client, format!("lock {number}"));
        guards.push(lock.lock().await.expect("it is there"));
    }
    assert_eq!(servers.sessions(), 1);
    // Watches over the own nodes are set once.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = servers.requests();
    tokio::time::sleep(Duration::from_secs(16)).await; // more than a session
    let cost = servers.requests() - before;
    // Signs of life every 1.5 s, and the client's pings; a round of renewals would be 3,000.
    assert!(cost < 300, "{cost} requests in 16 s for a thousand locks");
    assert!(guards.iter().all(holdline::Guard::is_valid));
}
