//! Keys that are used again: what was sent for one place never touches the next place of that key,
//! and no ticket takes the next place for its own.

use crate::late::{two_ways, used};
use futures_util::future::poll_immediate;
use holdline::store::{Enter, Standing, TicketId};
use holdline::{Client, Guard, Mutex, Name};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{Link, Way, soon, ticket, until};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LEASE: Duration = Duration::from_secs(60);
/// How late a request is that is sent again after a second.
const LATE: Duration = Duration::from_secs(3);
/// How often a sequence is tried that a busy machine may upset.
const TRIES: u32 = 20;

/// The keys of the places of `x`, the oldest first.
fn places(servers: &Servers) -> Vec<String> {
    let text = servers.say(&["get", "x/", "--prefix", "--keys-only", "--sort-by", "CREATE"]);
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Deletes a key and writes it again, with the same value and lease: it is another place.
fn write_anew(servers: &Servers, key: &str) {
    let (place, _) = key.rsplit_once('-').expect("a lease and a slot");
    let lease = place.rsplit_once('/').expect("a line").1;
    let value = servers.say(&["get", key, "--print-value-only"]);
    servers.say(&["del", key]);
    servers.say(&["put", key, value.trim(), "--lease", lease]);
}

/// Compacts the history up to now.
fn forget_history(servers: &Servers) {
    let text = servers.say(&["put", "elsewhere", "1", "-w", "json"]);
    let revision = text.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next());
    servers.say(&["compact", revision.expect("it tells")]);
}

/// Such a key is behind tickets that came after the first one: it is not the waiter's place,
/// whether the lock is still held or free by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_take_a_later_place_for_its_own() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let (store, line, note) = (client.store(), Name::new("x").expect("good"), Arc::from(""));
    for (id, is_free) in [(1, false), (2, true)] {
        let held = Mutex::new(&other, "x").lock().await.expect("it is there");
        let ticket = ticket(id, LEASE);
        let ask = async || {
            let asked = store.enter(&line, &ticket, &note, Enter::Queue);
            soon("an answer", asked).await.expect("it is there")
        };
        assert!(matches!(ask().await, Standing::Waiting { seq: Some(_), .. }));
        write_anew(&servers, &places(&servers)[1]);
        if is_free {
            held.unlock().await.expect("held");
        }
        assert_eq!(ask().await, Standing::Lost, "is the lock free: {is_free}");
        store.leave(&line, ticket.id).await.expect("it is there");
        client.settle().await;
        other.settle().await;
    }
}

/// A key that a waiter stands behind is used again, by a ticket behind it: that does not block it,
/// although no watch has told it so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_blocked_by_a_later_place() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let enter = async |client: &Client, id| {
        let ticket = ticket(id, LEASE);
        let entered = client.store().enter(&line, &ticket, &note, Enter::Queue);
        soon("an answer", entered).await.expect("it is there")
    };
    assert!(matches!(enter(&other, 1).await, Standing::Admitted(_)));
    assert!(matches!(enter(&client, 2).await, Standing::Waiting { .. }));
    let first = places(&servers)[0].clone();
    assert!(other.store().leave(&line, TicketId(1)).await.expect("it is there"));
    assert!(matches!(enter(&other, 3).await, Standing::Waiting { .. }));
    assert_eq!(places(&servers)[1], first, "the key is used again");
    let standing = enter(&client, 2).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
}

/// A waiter is told that it is next, and then misses that its own place is gone: it is not let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_next_is_not_let_in_without_its_place() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let (client, other) = (flaky.client().await, servers.client().await);
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let (store, line, ticket) = (client.store(), Name::new("x").expect("good"), ticket(2, LEASE));
    let note = Arc::from("");
    let enter = async || {
        let entered = store.enter(&line, &ticket, &note, Enter::Queue);
        soon("an answer", entered).await.expect("it is there")
    };
    assert!(matches!(enter().await, Standing::Waiting { .. }));
    let own = places(&servers)[1].clone();
    let news = async || soon("news", store.watch(&line, ticket.id)).await.expect("it is there");
    let released = async {
        until("its watches", async || servers.messages("Watch") >= 2).await;
        held.unlock().await.expect("held");
    };
    tokio::join!(news(), released);
    flaky.cut(Cut::Closed);
    servers.say(&["del", &own]);
    forget_history(&servers);
    flaky.mend();
    news().await;
    assert_eq!(enter().await, Standing::Lost);
}

/// A holder does not see that its key was written anew, because the history was compacted
/// meanwhile: it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_does_not_take_a_later_place_for_its_own() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let lock = Mutex::new(&flaky.client().await, "x").lease(LEASE);
    let guard = soon("the lock", lock.lock()).await.expect("it is there");
    until("its watch", async || servers.messages("Watch") > 0).await;
    flaky.cut(Cut::Closed);
    write_anew(&servers, &places(&servers)[0]);
    forget_history(&servers);
    flaky.mend();
    soon("the loss", guard.lost()).await;
}

/// Another process looks for a place, which is then given up, and its key used again; the removal
/// comes after that. It is told that the place is gone, and the next one stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_comes_late_leaves_the_next_place_alone() {
    let Some(servers) = start(1) else { return };
    for is_forced in [true, false] {
        let mut tries = 0..TRIES;
        while !is_removed_late(&servers, is_forced).await {
            tries.next().expect("no removal had looked in time");
        }
    }
}

/// Removes a place as another process does, by force or as its owner. Returns whether it was there.
fn remove(remover: Client, victim: &Guard, is_forced: bool) -> JoinHandle<bool> {
    let (line, id) = (victim.name().clone(), victim.ticket());
    tokio::spawn(async move {
        if is_forced {
            remover.force_unlock(line.as_str(), id, "a test").await.expect("it is there").is_some()
        } else {
            remover.store().leave(&line, id).await.expect("it is there")
        }
    })
}

/// Whether the removal had looked before the place was given up, or may have looked again.
async fn is_removed_late(servers: &Servers, is_forced: bool) -> bool {
    let link = Link::to(&*servers.hosts()[0]).expect("a port is free");
    let remover = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    let client = servers.client().await;
    assert_eq!(remover.list("").await.expect("it is there"), []);
    let victim = Mutex::new(&client, "x").lock().await.expect("it is there");
    let (key, calls, began) = (places(servers), servers.calls("Txn"), Instant::now());
    link.stall(Way::Replies);
    let removal = remove(remover, &victim, is_forced);
    until("its look", async || servers.calls("Txn") > calls).await;
    victim.unlock().await.expect("held");
    let next = soon("the next", Mutex::new(&client, "x").lock()).await.expect("it is there");
    let waited = began.elapsed();
    link.mend();
    let is_removed = soon("the removal", removal).await.expect("no panic");
    assert!(!is_removed, "what was named was gone");
    assert_eq!(places(servers), key, "the next one has the same key");
    next.unlock().await.expect("nobody took it");
    waited < Duration::from_millis(500) // of the second after which it looks again
}

/// The answer to such a removal is lost, so it is sent again, and finds nothing. Its caller is told
/// that the place was there all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_is_sent_again_was_one() {
    let Some(servers) = start(1) else { return };
    for is_forced in [true, false] {
        let mut tries = 0..TRIES;
        while !is_removed_twice(&servers, is_forced).await {
            tries.next().expect("no removal was sent again");
        }
    }
}

/// Whether the removal was sent twice.
async fn is_removed_twice(servers: &Servers, is_forced: bool) -> bool {
    let link = Link::to(&*servers.hosts()[0]).expect("a port is free");
    let remover = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    assert_eq!(remover.list("").await.expect("it is there"), []);
    let client = servers.client().await;
    let victim = Mutex::new(&client, "x").lock().await.expect("it is there");
    // What comes before it: a look, and a lease for the note.
    let before = if is_forced { "LeaseGrant" } else { "Txn" };
    let (count, transactions) = (servers.calls(before), servers.calls("Txn"));
    link.delay(Duration::from_millis(100));
    let removal = remove(remover, &victim, is_forced);
    until("what comes before", async || servers.calls(before) > count).await;
    link.lose_next_reply();
    assert!(soon("the removal", removal).await.expect("no panic"), "it was there");
    soon("the loss", victim.lost()).await;
    servers.calls("Txn") >= transactions + 3
}

/// A release is refused together with the entry of the next task, and so sent alone, and then once
/// more. The first of these comes when a later ticket has the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_comes_late_leaves_the_next_place_alone() {
    let Some(servers) = start(1) else { return };
    let mut tries = 0..TRIES;
    while !is_released_late(&servers).await {
        tries.next().expect("no release was late");
    }
}

/// Whether a release came late, when its key was in use again.
async fn is_released_late(servers: &Servers) -> bool {
    let flaky = two_ways(servers);
    let client = flaky.client().await;
    // It keeps the lease alive, and so all places on it.
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let lock = Mutex::new(&client, "x");
    let (first, key) = (lock.lock().await.expect("it is there"), places(servers));
    // Another kind of client has the lock, too, so no place is to be had.
    let said = servers.say(&["lease", "grant", "60"]);
    let lease = said.split_whitespace().nth(1).expect("its number");
    servers.say(&["put", "x", "", "--lease", lease]);
    let (link, calls) = (used(&flaky), servers.calls("Txn"));
    link.stall(Way::Replies);
    let again = lock.clone();
    let both = tokio::spawn(async move {
        let next = again.lock();
        let mut next = pin!(next);
        assert!(poll_immediate(&mut next).await.is_none(), "it is held");
        tokio::join!(first.unlock(), next)
    });
    until("the first request", async || servers.calls("Txn") > calls).await;
    // The answer is delivered, and all requests from now on are late.
    link.mend();
    link.delay(LATE);
    let began = Instant::now();
    let (left, next) = soon("both", both).await.expect("no panic");
    let is_left = left.is_ok();
    assert!(next.is_err(), "it is another client's");
    servers.say(&["del", "x"]);
    let next = soon("the lock", lock.lock()).await.expect("it is there");
    let (is_same, calls) = (places(servers) == key, servers.calls("Txn"));
    let is_used_again = is_left && is_same && began.elapsed() < LATE;
    until("what is late", async || servers.calls("Txn") > calls || !is_used_again).await;
    assert!(places(servers).contains(&key[0]) || !is_same, "the release removed it");
    next.unlock().await.expect("nobody took it");
    kept.unlock().await.expect("held");
    client.settle().await;
    is_used_again
}

/// The answer to a request to enter is lost, so it is sent again: its place is the first one, and
/// it does not wait behind itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_sent_again_takes_no_second_place() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a port is free");
    let client = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    let (store, line, note) = (client.store(), Name::new("x").expect("good"), Arc::from(""));
    let enter = async |id| {
        let ticket = ticket(id, LEASE);
        let entered = store.enter(&line, &ticket, &note, Enter::Queue);
        soon("an answer", entered).await.expect("it is there")
    };
    assert!(matches!(enter(1).await, Standing::Admitted(_)));
    assert!(store.leave(&line, TicketId(1)).await.expect("it is there"));
    let mut sent_again = 0;
    for id in 2..22 {
        let calls = servers.calls("Txn");
        link.lose_next_reply();
        let standing = enter(id).await;
        // Another connection may have lost its reply instead.
        sent_again += u32::from(servers.calls("Txn") > calls + 1);
        let text = servers.say(&["get", "x/", "--prefix", "-w", "json"]);
        let created = text.split("\"create_revision\":").nth(1).and_then(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok())
        });
        let Standing::Admitted(seq) = standing else { panic!("{standing:?}") };
        assert_eq!(Some(seq.0), created, "the number of its place");
        assert!(store.leave(&line, TicketId(id)).await.expect("it is there"));
        if sent_again == 3 {
            break;
        }
    }
    link.mend();
    assert!(sent_again > 0, "no request was sent again");
}
