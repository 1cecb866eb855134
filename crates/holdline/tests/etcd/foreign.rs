//! Keys of other clients, and keys of nobody: refused or shown, and never taken for a free lock.

use crate::users::enable_auth;
use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{ErrorKind, Mutex, Name, RwLock, Semaphore};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::{soon, until};
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);

/// Puts a key with a lease of its own, and says which.
fn leased(servers: &Servers, key: &str, value: &str) -> String {
    let said = servers.say(&["lease", "grant", "60"]);
    let lease = said.split_whitespace().nth(1).expect("its number").to_owned();
    servers.say(&["put", key, value, "--lease", &lease]);
    lease
}

/// python-etcd3 and Node's etcd3 have one key, the name itself with a lease, and do not see ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_one_key_is_refused_by_name() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let lease = leased(&servers, "x", "");
    let (lock, long) = (Mutex::new(&client, "x"), Duration::from_secs(600));
    let errors = [
        lock.lock().await.expect_err("held by another"),
        lock.try_lock().await.expect_err("held by another"),
        lock.lock_within(Duration::from_secs(1)).await.expect_err("held by another"),
        lock.clone().lease(long).lock().await.expect_err("held by another"),
        lock.clone().unfair().lock().await.expect_err("held by another"),
        Semaphore::new(&client, "x", 3).acquire(1).await.expect_err("held by another"),
        Semaphore::new(&client, "x", 3).try_acquire(2).await.expect_err("held by another"),
        client.inspect("x").await.expect_err("not ours to show"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:#}");
        assert!(error.to_string().contains("the key \"x\"") && error.to_string().contains(&lease));
    }
    client.settle().await;
    assert_eq!(servers.keys(), ["x"]);
    servers.say(&["del", "x"]);
    let guard = soon("the lock", lock.lock()).await.expect("free");
    // One that comes later is refused at the next entry, also to those who are let through by a
    // release of this process.
    leased(&servers, "x", "");
    let waiting = tokio::spawn(async move { Mutex::new(&other, "x").lock().await });
    assert!(soon("an error", waiting).await.expect("no panic").is_err());
    let (unlocked, next) = tokio::join!(guard.unlock(), soon("an error", lock.lock()));
    unlocked.expect("held");
    assert_eq!(next.expect_err("held by another").kind(), ErrorKind::Mismatch);
    // What has no lease is data of a program, not a lock.
    servers.say(&["put", "y", "data"]);
    let guard = soon("the lock", Mutex::new(&client, "y").lock()).await.expect("free");
    guard.unlock().await.expect("held");
}

/// A key without a lease holds nothing here, but Go waits for it: it is shown, and can be removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_nobody_is_shown() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    servers.say(&["put", "x/config", "yes"]);
    leased(&servers, "y/whatever", "");
    let info = client.inspect("x").await.expect("it is there");
    assert!(info.holders.is_empty() && info.waiters.len() == 1, "{info:?}");
    let stray = &info.waiters[0];
    let said = stray.note.label.clone().expect("it says what it is");
    assert!(said.contains("x/config") && said.contains("no lease") && stray.weight == 0, "{said}");
    let guard = Mutex::new(&client, "x").try_lock().await.expect("it is there").expect("free");
    guard.unlock().await.expect("held");
    assert!(client.force_unlock("x", stray.id, "a test").await.expect("it is there").is_some());
    let info = client.inspect("x").await.expect("it is there");
    assert!(info.waiters.is_empty() && info.holders.is_empty(), "{info:?}");
    // One with a lease holds, whatever it is called, and is listed.
    assert_eq!(client.inspect("y").await.expect("it is there").holders.len(), 1);
    assert!(Mutex::new(&client, "y").try_lock().await.expect("it is there").is_none());
    let names = client.list("").await.expect("it is there");
    assert_eq!(names.iter().map(holdline::Name::as_str).collect::<Vec<_>>(), ["y"]);
}

/// Another client's place takes all of a line, whatever its name: one that sorts behind the keys of
/// readers is not counted among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_whose_name_sorts_last_keeps_readers_out() {
    let Some(servers) = start(1) else { return };
    let [one, two] = [servers.client().await, servers.client().await];
    for name in ["été", "~other"] {
        leased(&servers, &format!("x/{name}"), "");
        let lock = RwLock::new(&one, "x");
        let waits = tokio::spawn(async move { lock.read().await });
        until("it waits", async || servers.keys().len() == 2).await;
        let rival = RwLock::new(&two, "x").try_read().await.expect("it is there");
        assert!(rival.is_none(), "beside {name}");
        servers.say(&["del", &format!("x/{name}")]);
        let guard = soon("the lock", waits).await.expect("no panic").expect("it is free");
        guard.unlock().await.expect("held");
    }
}

/// The ids of others' places differ in their first digits, and are the same whenever asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_digits_name_one_party() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    for key in ["x/1", "x/2", "x/3"] {
        leased(&servers, key, "");
    }
    let ids = async || -> Vec<TicketId> {
        let info = client.inspect("x").await.expect("it is there");
        info.holders.iter().chain(&info.waiters).map(|party| party.id).collect()
    };
    let (first, second) = (ids().await, ids().await);
    assert_eq!(first, second);
    let mut digits: Vec<String> = first.iter().map(|id| id.to_string()[..8].to_owned()).collect();
    digits.sort();
    digits.dedup();
    assert_eq!(digits.len(), 3, "{digits:?}");
}

/// A try that fails leaves nothing in the store, not even an empty lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_leaves_no_lease() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let permits = Semaphore::new(&one, "s", 3).acquire(2).await.expect("it is there");
    let before = servers.leases();
    assert!(Mutex::new(&two, "x").try_lock().await.expect("it is there").is_none());
    assert!(Semaphore::new(&two, "s", 3).try_acquire(2).await.expect("it is there").is_none());
    assert_eq!(servers.leases(), before);
    let third = Semaphore::new(&two, "s", 3).try_acquire(1).await.expect("it is there");
    third.expect("there is room").unlock().await.expect("held");
    guard.unlock().await.expect("held");
    permits.unlock().await.expect("held");
}

/// The record of who broke a lock, and why, stands beside it for a while, and Go does not wait for
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_is_told_and_forgotten() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let (store, name) = (two.store(), holdline::Name::new("x").expect("good"));
    let mut last = None;
    for round in 0..10 {
        let guard = soon("the lock", Mutex::new(&one, "x").lock()).await.expect("it is there");
        let reason = format!("round {round}");
        let token = two.force_unlock("x", guard.ticket(), &reason).await.expect("it is there");
        assert!(token.expect("it was there") > guard.token());
        soon("the loss", guard.lost()).await;
        let view = store.snapshot(&name).await.expect("it is there");
        let eviction = view.evictions.last().expect("it is told");
        assert!(eviction.id == guard.ticket() && eviction.note.contains(&reason), "{eviction:?}");
        assert_eq!(view.evictions.len(), 8.min(round + 1));
        last = Some(guard.ticket());
    }
    let view = store.snapshot(&name).await.expect("it is there");
    assert!(view.places.is_empty() && view.evictions[7].id == last.expect("some"));
    assert!(view.evictions[0].note.contains("round 2"), "oldest first, and few: {view:?}");
    assert!(two.list("").await.expect("it is there").is_empty(), "no lock is held");
    // Nobody waits for a note, Go neither.
    let mut go = servers.ctl().args(["lock", "x", "true"]).spawn().expect("etcdctl runs");
    until("Go had it", async || go.try_wait().expect("it runs").is_some()).await;
    // Each has a lease of a minute.
    let keys = servers.keys();
    assert_eq!(keys.len(), 8, "{keys:?}");
    for lease in servers.leases() {
        let said = servers.say(&["lease", "timetolive", &lease]);
        let left = said.split("remaining(").nth(1).and_then(|rest| rest.split('s').next());
        assert!(left.and_then(|left| left.parse::<u64>().ok()).is_some_and(|left| left <= 61));
    }
}

/// A user who may see nothing but what is under the lock's own prefix can do all of it, but for
/// notes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_role_suffices() {
    let Some(servers) = start(1) else { return };
    enable_auth(
        &servers,
        &[
            &["user", "add", "me:mine"],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "x/"],
            &["user", "grant-role", "me", "locks"],
        ],
    );
    let url = servers.url().replace("etcd://", "etcd://me:mine@");
    let client = holdline::open(&url).await.expect("a good URL");
    let lock = Mutex::new(&client, "x");
    let guard = soon("the lock", lock.lock()).await.expect("allowed");
    assert!(lock.try_lock().await.expect("allowed").is_none());
    assert_eq!(client.inspect("x").await.expect("allowed").holders.len(), 1);
    let broken = client.force_unlock("x", guard.ticket(), "a test").await.expect("allowed");
    assert!(broken.is_some());
    drop(guard);
    let again = soon("the lock", lock.lock()).await.expect("allowed");
    again.unlock().await.expect("held");
    // What is denied altogether is so the first time and the next.
    for _ in 0..2 {
        let error = soon("no", Mutex::new(&client, "y").lock()).await.expect_err("not allowed");
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
    let guard = soon("the lock", lock.lock()).await.expect("allowed still");
    guard.unlock().await.expect("held");
}

/// A key with the name of a ticket's own, but of another ticket, is not that ticket's place: it has
/// another weight, and another id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_an_earlier_ticket_left_is_not_taken_for_ones_own() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let semaphore = Semaphore::new(&client, "s", 3);
    let first = semaphore.acquire(1).await.expect("free");
    let keys = servers.keys();
    let (place, slot) = keys[0].rsplit_once('-').expect("a lease and a slot");
    let (lease, next) = (place.rsplit_once('~').expect("a light ticket").1, format!("{place}-1"));
    assert_eq!(slot, "0");
    let value = servers.say(&["get", &keys[0], "--print-value-only"]);
    let ticket = format!("{:x}", first.ticket().0);
    assert!(value.contains(&ticket), "{value}");
    servers.say(&["put", &next, &value.trim().replace(&ticket, "123"), "--lease", lease]);
    let second = soon("a place", semaphore.acquire(1)).await.expect("there is room");
    let info = client.inspect("s").await.expect("it answers");
    // The other place is removed in the background.
    let there = |id| info.holders.iter().any(|holder| holder.id == id);
    assert!(there(first.ticket()) && there(second.ticket()), "{info:?}");
    first.unlock().await.expect("held");
    second.unlock().await.expect("held");
    client.settle().await;
    assert_eq!(servers.keys(), [""; 0]);
}

/// A key of the ticket itself, written by an attempt whose answer was lost, is its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_an_earlier_attempt_left_is_taken() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let first = Semaphore::new(&client, "s", 3).lease(LEASE).acquire(1).await.expect("free");
    let key = servers.keys().remove(0);
    let (place, _) = key.rsplit_once('-').expect("a lease and a slot");
    let (lease, next) = (place.rsplit_once('~').expect("a light ticket").1, format!("{place}-1"));
    let value = servers.say(&["get", &key, "--print-value-only"]);
    let value = value.trim().replace(&format!("{:x}", first.ticket().0), "123");
    servers.say(&["put", &next, &value, "--lease", lease]);
    let (store, line, id) = (client.store(), Name::new("s").expect("good"), TicketId(0x123));
    let (weight, capacity, token_count, min_token) = (1, 3, 1, 0);
    let (lease, wait_lease) = (LEASE, LEASE);
    let ticket = Ticket { id, weight, capacity, lease, wait_lease, token_count, min_token };
    let entered = store.enter(&line, &ticket, &Arc::from("note"), Enter::Queue).await;
    assert!(matches!(entered, Ok(Standing::Admitted(_))), "{entered:?}");
    assert_eq!(servers.keys().len(), 2, "it has no other");
    assert!(store.leave(&line, id).await.expect("it answers"));
    first.unlock().await.expect("held");
}
