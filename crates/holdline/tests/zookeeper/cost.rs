//! What things cost, by the server's own count.

use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Client, Mutex, Name, RwLock, open};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{soon, until};
use std::sync::Arc;
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

/// A create and a delete; the number tells that the node is the first one.
#[tokio::test]
async fn a_lock_and_unlock_of_a_line_of_our_own_are_two_requests() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let lock = RwLock::new(&client, "rw");
    let read = async || lock.read().await.expect("it is there").unlock().await.expect("held");
    for _ in 0..3 {
        cycle(&client, "x").await;
        read().await;
    }
    let cost = requests_of(&servers, 300, async || cycle(&client, "x").await).await;
    assert!((2.0..2.2).contains(&cost), "{cost} requests for a lock and unlock");
    let cost = requests_of(&servers, 300, read).await;
    assert!((2.0..2.2).contains(&cost), "{cost} requests for a read lock and unlock");
}

/// With a list: two clients that take turns have only every second number.
#[tokio::test]
async fn a_lock_and_unlock_of_a_line_that_others_use_are_three_requests() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let both = async || {
        cycle(&one, "x").await;
        cycle(&two, "x").await;
    };
    both().await;
    let cost = requests_of(&servers, 150, both).await / 2.0;
    assert!((3.0..3.4).contains(&cost), "{cost} requests for a lock and unlock");
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

/// The places of others are not read.
#[tokio::test]
async fn a_force_unlock_reads_the_victim_alone() {
    let Some(servers) = start(1) else { return };
    let client = open(&format!("{}?session=60s", servers.url())).await.expect("a good URL");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    for id in 0..100 {
        store.enter(&line, &permit(id, 1), &Arc::from(""), Enter::Queue).await.expect("works");
    }
    let before = servers.requests();
    let token = client.force_unlock("x", TicketId(0), "test").await.expect("works");
    let cost = servers.requests() - before;
    // Some are those of the entries, which the store watches in the background.
    assert!(token.is_some() && cost < 80, "{cost} requests to remove one of a hundred");
}

fn permit(id: u128, capacity: u32) -> Ticket {
    let (lease, wait_lease) = (Duration::from_secs(50), Duration::from_secs(50));
    let (id, weight) = (TicketId(id), 1);
    Ticket { id, weight, capacity, lease, wait_lease, token_count: 1, min_token: 0 }
}

const PERMITS: u128 = 20;

/// Waiters of a semaphore watch those that keep them waiting, one by one: of its holders, the one
/// that has held for longest wakes one waiter, and any other at most as many as there are permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_a_semaphore_wakes_no_more_than_its_permits() {
    let Some(servers) = start(1) else { return };
    let client = open(&format!("{}?session=60s", servers.url())).await.expect("a good URL");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let mut waiters = Vec::new();
    for id in 0..PERMITS * 4 {
        let (ticket, note) = (permit(id, PERMITS as u32), Arc::from(""));
        let seq = match store.enter(&line, &ticket, &note, Enter::Queue).await.expect("works") {
            Standing::Waiting { seq: Some(seq), .. } => seq,
            Standing::Admitted(_) if id < PERMITS => continue,
            other => panic!("{other:?}"),
        };
        let (store, line) = (Arc::clone(store), line.clone());
        waiters.push(tokio::spawn(async move {
            let keep = async || store.enter(&line, &ticket, &note, Enter::Keep(seq)).await;
            while !matches!(keep().await.expect("works"), Standing::Admitted(_)) {
                store.watch(&line, ticket.id).await.expect("works");
            }
        }));
    }
    quiet(&servers).await;
    let mut waiters = waiters.into_iter();
    let mut release = async |id| {
        let before = servers.requests();
        store.leave(&line, TicketId(id)).await.expect("works");
        soon("its turn", waiters.next().expect("one")).await.expect("no panic");
        quiet(&servers).await;
        servers.requests() - before
    };
    let oldest = [release(0).await, release(1).await].into_iter().min().expect("two");
    let youngest = release(PERMITS + 1).await;
    println!("{oldest} requests after the oldest's release, {youngest} after the youngest's");
    assert!(oldest < 15, "{oldest} requests after the oldest's release");
    // Each wakes, lists the line, and watches one more; and heartbeats.
    assert!(youngest < PERMITS as u64 * 2 + 15, "{youngest} requests after the youngest's release");
}

/// Waits until there are no requests but those that come by the clock.
async fn quiet(servers: &Servers) {
    let mut before = servers.requests();
    until("quiet", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = servers.requests();
        now - std::mem::replace(&mut before, now) < 3
    })
    .await;
}
