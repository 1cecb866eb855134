//! Requests that arrive late, or again.

use futures_util::FutureExt;
use holdline::store::{Enter, Standing, TicketId};
use holdline::{Mutex, Name, Semaphore};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{Link, Way, soon, ticket, until};
use std::sync::Arc;
use std::time::Duration;

/// A client that asks again for a ticket that has lapsed meanwhile (it was stopped for long) must
/// not get a place whose key is on its way out: what removed the first one, or waits for it to
/// arrive late, would remove the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_has_lapsed_is_not_entered_again() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let client = flaky.client().await;
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let lease = Duration::from_secs(4); // so that what is looked at has not lapsed meanwhile
    let ticket = |id| ticket(id, lease);
    let note: Arc<str> = Arc::from("");
    let warm = soon("warm", store.enter(&line, &ticket(1), &note, Enter::Try)).await;
    assert!(matches!(warm, Ok(Standing::Admitted(_))));
    assert!(store.leave(&line, TicketId(1)).await.expect("it is there"));
    // Written, but nobody knows.
    flaky.cut(Cut::Replies);
    let second = ticket(2);
    let entering = store.enter(&line, &second, &note, Enter::Try);
    assert!(tokio::time::timeout(Duration::from_millis(150), entering).await.is_err());
    until("the key", async || servers.keys().len() == 1).await;
    flaky.mend();
    until("the lapse", async || servers.keys().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..5 {
        let again = soon("an answer", store.enter(&line, &second, &note, Enter::Try)).await;
        if let Standing::Admitted(_) = again.expect("it is there") {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(servers.keys().len(), 1, "it holds, and its key is gone");
        }
    }
    let other = soon("an answer", store.enter(&line, &ticket(3), &note, Enter::Try)).await;
    assert!(matches!(other, Ok(Standing::Admitted(_))));
    assert!(store.leave(&line, TicketId(3)).await.expect("it is there"));
}

/// An acquisition that is kept but not polled lapses, and another ticket gets its slot, and so its
/// key. When it is polled after all, it must not take that key for its own, and remove it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_that_is_polled_after_its_lapse_touches_no_other_ticket() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let lease = Duration::from_secs(6);
    let ticket = |id| ticket(id, lease);
    let note: Arc<str> = Arc::from("");
    let enter = async |id, how| {
        let ticket = ticket(id);
        soon("an answer", store.enter(&line, &ticket, &note, how)).await.expect("it is there")
    };
    let leave = async |id| {
        soon("its release", store.leave(&line, TicketId(id))).await.expect("it is there");
    };
    assert!(matches!(enter(1, Enter::Queue).await, Standing::Admitted(_)));
    // Of two that come while the lock is released, one goes along, and the other waits: for long.
    let mut leaving = store.leave(&line, TicketId(1));
    assert!((&mut leaving).now_or_never().is_none());
    let (second, third) = (ticket(2), ticket(3));
    let mut along = store.enter(&line, &second, &note, Enter::Queue);
    let mut unpolled = store.enter(&line, &third, &note, Enter::Queue);
    assert!((&mut along).now_or_never().is_none() && (&mut unpolled).now_or_never().is_none());
    assert!(soon("the release", leaving).await.expect("it is there"));
    let second = soon("the lock", along).await.expect("it is there");
    assert!(matches!(second, Standing::Admitted(_)));
    leave(2).await;
    let mut holder = 10;
    loop {
        for id in holder..holder + 3 {
            enter(id, Enter::Queue).await;
        }
        let has_its_slot = servers.keys().iter().any(|key| key.ends_with("-2"));
        for id in [holder, holder + 1] {
            leave(id).await;
        }
        holder += 2;
        if has_its_slot {
            break;
        }
        leave(holder).await;
        holder += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let Standing::Admitted(seq) = enter(holder, Enter::Queue).await else { panic!("it is first") };
    let late = soon("an answer", unpolled).await.expect("it is there");
    assert_eq!(late, Standing::Lost);
    for _ in 0..10 {
        assert_eq!(enter(holder, Enter::Keep(seq)).await, Standing::Admitted(seq));
        assert_eq!(servers.keys().len(), 1, "its key was removed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    leave(holder).await;
}

/// A release that is kept but not polled lapses, and another ticket gets its slot, and so its key.
/// When it is polled after all, it must not remove that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_polled_after_its_lapse_touches_no_other_ticket() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let lease = Duration::from_secs(6);
    // It keeps the lease alive, which keys are named after.
    let kept = Mutex::new(&client, "kept").lease(lease).lock().await.expect("it is there");
    let note: Arc<str> = Arc::from("");
    let enter = async |id, how| {
        let ticket = ticket(id, lease);
        soon("an answer", store.enter(&line, &ticket, &note, how)).await.expect("it is there")
    };
    let key = || key_of_x(&servers);
    assert!(matches!(enter(1, Enter::Queue).await, Standing::Admitted(_)));
    let before = key();
    let mut leaving = store.leave(&line, TicketId(1));
    assert!((&mut leaving).now_or_never().is_none());
    until("the lapse", async || key().is_none()).await;
    let (mut holder, mut seq) = (2, None);
    until("the same key", async || {
        let Standing::Admitted(token) = enter(holder, Enter::Queue).await else { return false };
        seq = Some(token);
        if key() == before {
            return true;
        }
        soon("its release", store.leave(&line, TicketId(holder))).await.expect("it is there");
        holder += 1;
        false
    })
    .await;
    let seq = seq.expect("it holds");
    soon("the late release", leaving).await.expect("it is there");
    assert_eq!(enter(holder, Enter::Keep(seq)).await, Standing::Admitted(seq));
    assert_eq!(key(), before, "its key was removed");
    soon("its release", store.leave(&line, TicketId(holder))).await.expect("it is there");
    kept.unlock().await.expect("held");
}

/// The first key of the lock `x`.
fn key_of_x(servers: &Servers) -> Option<String> {
    servers.keys().into_iter().find(|key| key.starts_with("x/"))
}

/// Two links to one server, so that a request can be late on one while the next overtakes it.
pub(super) fn two_ways(servers: &Servers) -> FlakyLinks {
    let host = servers.hosts()[0].clone();
    FlakyLinks::to("etcd", &[host.clone(), host], "")
}

/// The link that a client uses now.
pub(super) fn used(flaky: &FlakyLinks) -> &Link {
    flaky.links.iter().find(|link| link.open() > 0).expect("it is connected")
}

/// The server's revision: how much has been written.
fn revision(servers: &Servers) -> u64 {
    let text = servers.say(&["get", "nothing", "-w", "json"]);
    let digits = text.split("\"revision\":").nth(1).expect("it tells");
    digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("one")
}

/// A try whose first request is late is told by the second one that the lock is held. The first is
/// carried out when the lock is free: it must not take the lock for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_of_a_failed_try_takes_no_lock() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    // It keeps the lease alive, and so all places on it.
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let link = used(&flaky);
    link.stall(Way::Requests);
    let tried = soon("the try", Mutex::new(&client, "x").try_lock()).await;
    assert!(tried.expect("the other way").is_none(), "it is held");
    held.unlock().await.expect("held");
    let before = revision(&servers);
    link.mend();
    until("the late request", async || revision(&servers) > before).await;
    let next = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    next.unlock().await.expect("held");
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
}

/// The lock is acquired by the second request, and released while the first is still late: that
/// must not take the lock for nobody, although it is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_for_a_lock_that_was_released_takes_no_lock() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    // It keeps the lease alive, and so all places on it.
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let link = used(&flaky);
    link.stall(Way::Requests);
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("the other way");
    let key = || key_of_x(&servers);
    let before = key();
    soon("its release", guard.unlock()).await.expect("held");
    // Its key may yet be written, and is then removed: no other ticket gets it.
    let again = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("the other way");
    assert_ne!(key(), before);
    soon("its release", again.unlock()).await.expect("held");
    let before = revision(&servers);
    link.mend();
    until("the late request", async || revision(&servers) > before).await;
    let next = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    next.unlock().await.expect("held");
    assert!(kept.is_valid());
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
}

/// A release whose first request is late is answered to the second one. The first deletes its key
/// when it arrives: no other ticket gets that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_removes_no_later_place() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let client = flaky.client().await;
    // It keeps the lease alive, and so all places on it.
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let guard = Mutex::new(&client, "x").lock().await.expect("it is there");
    let key = || key_of_x(&servers);
    let before = key();
    let link = used(&flaky);
    link.stall(Way::Requests);
    soon("its release", guard.unlock()).await.expect("the other way");
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("the other way");
    assert_ne!(key(), before, "the late request would remove it");
    link.mend(); // it may arrive now, or be cancelled before that
    guard.unlock().await.expect("held");
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
}

/// The same if its answer comes before that of the second one, which was carried out first: when
/// the try has failed, no request of it is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_of_a_failed_try_that_is_answered_first_takes_no_lock() {
    let Some(servers) = start(1) else { return };
    for _ in 0..10 {
        if fails_though_answered_first(&servers).await {
            return;
        }
    }
    panic!("no try failed");
}

/// Whether the try failed: on a busy machine a later request may get the lock.
async fn fails_though_answered_first(servers: &Servers) -> bool {
    let flaky = two_ways(servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let link = used(&flaky);
    let second = flaky.links.iter().find(|link| link.open() == 0).expect("one is not used");
    second.delay(Duration::from_millis(300));
    link.stall(Way::Requests);
    let calls = servers.calls("Txn");
    let store = Arc::clone(client.store());
    let tried = tokio::spawn(async move {
        let (line, ticket) = (Name::new("x").expect("good"), ticket(7, Duration::from_secs(10)));
        let tried = store.enter(&line, &ticket, &Arc::from(""), Enter::Try).await;
        if let Ok(Standing::Admitted(_)) = tried {
            store.leave(&line, ticket.id).await.expect("it is there");
        }
        matches!(tried, Ok(Standing::Waiting { .. }))
    });
    until("the second request", async || servers.calls("Txn") > calls).await;
    held.unlock().await.expect("held");
    link.mend();
    let failed = soon("the try", tried).await.expect("no panic");
    let next = soon("the lock", Mutex::new(&other, "x").lock()).await.expect("it is there");
    next.unlock().await.expect("held");
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
    failed
}

/// The key of such a request is not taken for that of the next ticket, which may be heavier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_of_a_failed_try_is_not_taken_for_another() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let (ours, theirs) = (Semaphore::new(&client, "s", 4), Semaphore::new(&other, "s", 4));
    let held = theirs.acquire(4).await.expect("it is there");
    let link = used(&flaky);
    link.stall(Way::Requests);
    let tried = soon("the try", ours.try_acquire(2)).await;
    assert!(tried.expect("the other way").is_none(), "it is held");
    held.unlock().await.expect("held");
    let before = revision(&servers);
    link.mend();
    until("the late request", async || revision(&servers) > before).await;
    let three = soon("three permits", ours.acquire(3)).await.expect("it is there");
    let two = theirs.try_acquire(2).await.expect("it is there");
    assert!(two.is_none() || !three.is_valid(), "5 permits of 4");
    three.unlock().await.expect("held");
    kept.unlock().await.expect("held");
    until("no keys", async || servers.keys().is_empty()).await;
}

/// A try sees that there is room, and somebody else takes it before the try is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_has_seen_room_does_not_enter_beside_a_later_one() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let (ours, theirs) = (flaky.client().await, servers.client().await);
    let (ours, theirs) = (Semaphore::new(&ours, "s", 3), Semaphore::new(&theirs, "s", 3));
    let one = theirs.acquire(1).await.expect("it is there");
    let warm = ours.try_acquire(1).await.expect("it is there").expect("there is room");
    warm.unlock().await.expect("held");
    let calls = servers.calls("Txn");
    flaky.cut(Cut::Replies);
    let tried = tokio::spawn(async move { ours.try_acquire(2).await });
    until("its look", async || servers.calls("Txn") > calls).await;
    let two = theirs.try_acquire(2).await.expect("it is there").expect("there is room");
    flaky.mend();
    let tried = soon("the try", tried).await.expect("no panic").expect("it is there");
    assert!(tried.is_none() || !two.is_valid(), "5 permits of 3");
    for permits in [one, two] {
        permits.unlock().await.expect("held");
    }
}

/// A request to enter that comes long after its ticket was given up, when nobody awaits its answer
/// any more: its key is removed, although its lease goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_awaits_any_more_leaves_nothing() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let held = Mutex::new(&other, "x").lock().await.expect("it is there");
    let calls = servers.calls("Txn");
    used(&flaky).delay(Duration::from_secs(6));
    let tried = soon("the try", Mutex::new(&client, "x").try_lock()).await;
    assert!(tried.expect("the other way").is_none(), "it is held");
    let asked = servers.calls("Txn");
    assert!(asked > calls);
    held.unlock().await.expect("held");
    until("the late request", async || servers.calls("Txn") > asked).await;
    until("its end", async || servers.keys().len() == 1).await;
    assert!(kept.is_valid());
    kept.unlock().await.expect("held");
}

/// A request to enter that is late, after the next one took the place behind others, and after the
/// place was admitted and moved to the lock's own lease: it must not move the key back, to a lease
/// that nobody keeps for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_to_enter_moves_no_key() {
    let Some(servers) = start(1) else { return };
    let flaky = two_ways(&servers);
    let (client, other) = (flaky.client().await, servers.client().await);
    let long = |client, name| Mutex::new(client, name).lease(Duration::from_secs(60));
    // Both leases are there, the one to wait on and the lock's own.
    let kept = Mutex::new(&client, "kept").lock().await.expect("it is there");
    let own = long(&client, "own").lock().await.expect("it is there");
    let held = long(&other, "x").lock().await.expect("it is there");
    let link = used(&flaky);
    link.stall(Way::Requests);
    let lock = long(&client, "x");
    let waiter = tokio::spawn(async move { lock.lock().await.expect("the other way") });
    until("a waiter", async || {
        servers.keys().iter().filter(|key| key.starts_with("x/")).count() == 2
    })
    .await;
    held.unlock().await.expect("held");
    let guard = soon("the lock", waiter).await.expect("no panic");
    let key = || servers.say(&["get", "x/", "--prefix", "-w", "json"]);
    let lease = || key().split("\"lease\":").nth(1).expect("it has one").to_owned();
    let (before, calls) = (lease(), servers.calls("Txn"));
    link.mend();
    until("the late request", async || servers.calls("Txn") > calls).await;
    assert_eq!(lease(), before, "it is on another lease");
    for guard in [guard, own, kept] {
        guard.unlock().await.expect("held");
    }
    until("no keys", async || servers.keys().is_empty()).await;
}
