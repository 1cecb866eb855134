//! The line store on a real Redis server: what a user sees when all goes well.
#![cfg(feature = "redis")]

mod redis_server;

use holdline::store::{Enter, Seq, Standing, Ticket, TicketId};
use holdline::{Client, ErrorKind, Multi, Mutex, Name, RwLock, Semaphore, open};
use redis_server::{Server, private, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A store with keys of its own.
async fn client(server: &Server) -> Client {
    client_of(server, &format!("t{:016x}:", fastrand::u64(..))).await
}

async fn client_of(server: &Server, prefix: &str) -> Client {
    open(&format!("{}?prefix={}:{prefix}", server.url(), std::process::id()))
        .await
        .expect("the server takes us")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn ticket(id: u128) -> Ticket {
    Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: Duration::from_secs(10),
        patience: Duration::from_secs(3),
        span: 1,
        floor: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_one_at_a_time_tokens_rise() {
    let Some(server) = start("many_tasks") else { return };
    let prefix = format!("t{:016x}:", fastrand::u64(..));
    // Four clients are four processes as far as the server can see: each has a gate of its own.
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client_of(&server, &prefix).await);
    }
    let (inside, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..32).map(|n| {
        let lock = Mutex::new(&clients[n % 4], "x");
        let (inside, last) = (inside.clone(), last.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = lock.lock().await.expect("it works");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                assert!(last.swap(guard.token(), Ordering::SeqCst) < guard.token());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("held to the end");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task fails");
    }
}

#[tokio::test]
async fn a_try_fails_at_once_and_a_wait_in_time() {
    let Some(server) = start("a_try") else { return };
    let one = client_of(&server, "try:").await;
    let other = client_of(&server, "try:").await;
    let guard = Mutex::new(&one, "x").lock().await.expect("works");
    assert!(Mutex::new(&other, "x").try_lock().await.expect("works").is_none());
    let start = Instant::now();
    let wait = Duration::from_millis(100);
    assert!(Mutex::new(&other, "x").lock_within(wait).await.expect("works").is_none());
    assert!(start.elapsed() >= wait);
    other.settle().await;
    assert!(one.inspect("x").await.expect("works").waiters.is_empty());
    guard.unlock().await.expect("held");
    assert!(Mutex::new(&other, "x").try_lock().await.expect("works").is_some());
}

#[tokio::test]
async fn a_release_wakes_the_next_at_once() {
    let Some(server) = start("a_release") else { return };
    let one = client_of(&server, "wake:").await;
    let other = client_of(&server, "wake:").await;
    for _ in 0..20 {
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let lock = Mutex::new(&other, "x");
        let waiting = tokio::spawn(async move { lock.lock().await.expect("works") });
        while one.inspect("x").await.expect("works").waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        guard.unlock().await.expect("held");
        let next = waiting.await.expect("no panic");
        // Far less than the third of its patience after which a waiter looks by itself.
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        next.unlock().await.expect("held");
    }
}

#[tokio::test]
async fn renewal_outlives_a_blocked_executor() {
    let Some(server) = start("renewal") else { return };
    let client = client(&server).await;
    let guard =
        Mutex::new(&client, "x").lease(Duration::from_millis(300)).lock().await.expect("works");
    std::thread::sleep(Duration::from_secs(1)); // three leases, with the executor blocked
    assert!(guard.is_valid());
    guard.unlock().await.expect("held to the end");
}

#[tokio::test]
async fn a_fixed_lease_ends_and_the_next_one_comes_by_itself() {
    let Some(server) = start("a_fixed_lease") else { return };
    let one = client_of(&server, "fixed:").await;
    let other = client_of(&server, "fixed:").await;
    let lock = Mutex::new(&one, "x").fixed_lease(Duration::from_millis(300));
    let guard = lock.lock().await.expect("works");
    let start = Instant::now();
    let next = Mutex::new(&other, "x").lock().await.expect("works");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(next.token() > guard.token());
    assert!(!guard.is_valid());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    assert!(next.is_valid());
}

#[tokio::test]
async fn force_unlock_tells_the_holder_and_fences_it() {
    let Some(server) = start("force_unlock") else { return };
    let one = client_of(&server, "force:").await;
    let other = client_of(&server, "force:").await;
    let guard = Mutex::new(&one, "x").lock().await.expect("works");
    let holder = other.inspect("x").await.expect("works").holders.remove(0);
    assert_eq!(holder.id, guard.ticket());
    let token = other.force_unlock("x", holder.id, "test").await.expect("works").expect("there");
    assert!(token > guard.token());
    tokio::time::timeout(Duration::from_secs(1), guard.lost()).await.expect("told at once");
    assert_eq!(other.force_unlock("x", holder.id, "test").await.expect("works"), None);
}

#[tokio::test]
async fn recipes_share_the_rule() {
    let Some(server) = start("recipes") else { return };
    let client = client(&server).await;
    let semaphore = Semaphore::new(&client, "s", 2);
    let (one, _two) =
        (semaphore.acquire(1).await.expect("works"), semaphore.acquire(1).await.expect("works"));
    assert!(semaphore.try_acquire(1).await.expect("works").is_none());
    drop(one);
    drop(semaphore.acquire(1).await.expect("free again"));
    let table = RwLock::new(&client, "t");
    let writer = table.write().await.expect("works");
    assert!(table.try_read().await.expect("works").is_none());
    let reader = writer.downgrade().await.expect("held");
    assert!(table.try_read().await.expect("works").is_some());
    assert!(table.try_write().await.expect("works").is_none());
    drop(reader);
    let both = Multi::new(&client, ["b", "a", "b"]).lock().await.expect("works");
    assert_eq!(both.guards().len(), 2);
    both.unlock().await.expect("held");
    assert!(Mutex::new(&client, "s").lock().await.is_err()); // another capacity
}

#[tokio::test]
async fn names_are_kept_apart_and_listed() {
    let Some(server) = start("names") else { return };
    let client = client(&server).await;
    let names = ["a", "a}b", "{a}", "%7D", "a*", "b:q", "with space", "ü"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(Mutex::new(&client, name).try_lock().await.expect("works").expect("free"));
    }
    let listed = |names: Vec<Name>| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(listed(client.list("").await.expect("works")), sorted);
    assert_eq!(listed(client.list("a").await.expect("works")), ["a", "a*", "a}b"]);
    assert_eq!(listed(client.list("a*").await.expect("works")), ["a*"]);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    assert!(client.list("").await.expect("works").is_empty());
}

#[tokio::test]
async fn keys_expire_by_themselves() {
    let Some(server) = private("keys_expire", &[]) else { return };
    let client = open(&format!("{}?idle=1s", server.url())).await.expect("opens");
    let store = client.store();
    let (line, note) = (name("x"), Arc::from("note"));
    for id in 1..4 {
        // A holder and two waiters, which all die.
        let short = Ticket { lease: Duration::from_millis(500), ..ticket(id) };
        store.enter(&line, &short, &note, Enter::Queue).await.expect("works");
    }
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 4);
    let until = Instant::now() + Duration::from_secs(10);
    while server.query::<i64>(&["DBSIZE"]) > 0 {
        assert!(Instant::now() < until, "{:?}", server.query::<Vec<String>>(&["KEYS", "*"]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_was_abandoned_in_flight_cannot_enter_later() {
    let Some(server) = private("abandoned", &[]) else { return };
    let client = client_of(&server, "late:").await;
    let store = client.store();
    let (line, note) = (name("x"), Arc::from("note"));
    let one = ticket(1);
    store.enter(&line, &one, &note, Enter::Queue).await.expect("works"); // the connection is there
    store.leave(&line, one.id).await.expect("works");
    server.pause();
    let two = ticket(2);
    let enter = store.enter(&line, &two, &note, Enter::Queue);
    assert!(tokio::time::timeout(Duration::from_millis(50), enter).await.is_err());
    // The keeper gives it up over another connection, which the server happens to serve first or
    // last. Either way nothing may be left behind.
    let twin = store.twin();
    let leave = tokio::spawn({
        let line = line.clone();
        async move { twin.leave(&line, TicketId(2)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.thaw();
    leave.await.expect("no panic").expect("works");
    // A question over the first connection is answered after what was sent before it.
    let three = store.enter(&line, &ticket(3), &note, Enter::Try).await.expect("works");
    assert!(matches!(three, Standing::Admitted(_)), "{three:?}");
    assert_eq!(store.look(&line).await.expect("works").places.len(), 1);
    // The same ticket again, over any connection, as a late message would.
    let late = store.enter(&line, &two, &note, Enter::Queue).await.expect("works");
    assert_eq!(late, Standing::Lost);
}

#[tokio::test]
async fn a_kept_place_is_the_same_place() {
    let Some(server) = start("a_kept_place") else { return };
    let client = client(&server).await;
    let store = client.store();
    let (line, note) = (name("x"), Arc::from("note\nwith lines"));
    let Ok(Standing::Admitted(seq)) = store.enter(&line, &ticket(1), &note, Enter::Queue).await
    else {
        panic!("it is free")
    };
    let again = store.enter(&line, &ticket(1), &note, Enter::Queue).await.expect("works");
    assert_eq!(again, Standing::Admitted(seq));
    let other = store.enter(&line, &ticket(1), &note, Enter::Keep(Seq(seq.0 + 1))).await;
    assert_eq!(other.expect("works"), Standing::Lost);
    let view = store.look(&line).await.expect("works");
    assert_eq!((view.capacity, view.places.len()), (1, 1));
    assert_eq!(*view.places[0].note, *"note\nwith lines");
    let heavy = Ticket { weight: 2, capacity: 1, ..ticket(9) };
    let error = store.enter(&line, &heavy, &note, Enter::Try).await.expect_err("too heavy");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let wide = Ticket { capacity: 2, ..ticket(9) };
    let error = store.enter(&line, &wide, &note, Enter::Try).await.expect_err("another capacity");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn a_runtime_may_end_and_another_go_on() {
    let Some(server) = start("runtimes") else { return };
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it is given");
    let first = runtime();
    let (one, two) = first.block_on(async {
        let (one, two) = (client_of(&server, "rt:").await, client_of(&server, "rt:").await);
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let second = Mutex::new(&two, "x").lock_within(Duration::from_millis(50)).await;
        assert!(second.expect("works").is_none());
        guard.unlock().await.expect("held");
        (one, two)
    });
    drop(first); // with all connections, for commands and for notices
    runtime().block_on(async {
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let lock = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await.expect("works") });
        while one.inspect("x").await.expect("works").waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        guard.unlock().await.expect("held");
        waiting.await.expect("no panic").unlock().await.expect("held");
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    });
}
