//! Losses that come from outside, and replies that do not come.

use crate::linked;
use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{ErrorKind, Guard, Mutex, Name, RwLock, Semaphore, WriteGuard};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, soon, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_is_noticed_at_once() {
    deleted_after_writes(&[]).await;
}

/// A watch over a node is for one event, and is set again after each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_that_was_written_to_is_noticed_at_once() {
    deleted_after_writes(&[b"__REVOKE__", b""]).await;
}

async fn deleted_after_writes(writes: &[&[u8]]) {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let mut quickest = Duration::MAX;
    // A busy machine may be late, but not each time.
    for _ in 0..5 {
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        tokio::time::sleep(Duration::from_millis(500)).await; // it is watched by now
        let child = raw.list_children("/x").await.expect("works").pop().expect("ours");
        let path = format!("/x/{child}");
        for data in writes {
            raw.set_data(&path, data, None).await.expect("works");
            tokio::time::sleep(Duration::from_millis(300)).await; // it is watched again by now
        }
        let began = Instant::now();
        raw.delete(&path, None).await.expect("works");
        soon("the loss", guard.lost()).await;
        quickest = quickest.min(began.elapsed());
        assert!(guard.unlock().await.expect_err("lost").is_lost());
        if quickest < Duration::from_secs(1) {
            return;
        }
    }
    panic!("at best after {quickest:?}, as if it were asked for by and by");
}

/// A short interruption is none of anybody's business.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_takes_no_lock_along() {
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "").await;
    let other = servers.client().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let permits = Semaphore::new(&other, "s", 1).acquire(1).await.expect("works");
    let waits = Semaphore::new(&client, "s", 1);
    let waiter = tokio::spawn(async move { waits.acquire(1).await });
    until("in the line", async || {
        other.inspect("s").await.is_ok_and(|info| info.waiters.len() == 1)
    })
    .await;
    for _ in 0..5 {
        link.reset();
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    assert!(guard.is_valid());
    link.reset();
    permits.unlock().await.expect("held"); // while it is not connected
    drop(soon("its turn", waiter).await.expect("no panic").expect("works"));
    guard.unlock().await.expect("held");
}

/// A node is deleted while its holder is not connected: the holder is told when it is again, since
/// its watches are set again on the new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_during_an_interruption_is_told_after_it() {
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "").await;
    let raw = servers.raw().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let child = raw.list_children("/x").await.expect("works").pop().expect("ours");
    let path = format!("/x/{child}");
    until("its watch", async || servers.ask(0, "wchp").contains(&path)).await;
    link.cut();
    raw.delete(&path, None).await.expect("works");
    link.mend();
    soon("the loss", guard.lost()).await;
}

/// The node is made, and the answer to that is lost: it is found again, and not made twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_makes_no_second_node() {
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "").await;
    let raw = servers.raw().await;
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    for number in 1..=10 {
        link.lose_next_reply();
        let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("works");
        let children = raw.list_children("/x").await.expect("works");
        assert_eq!(children.len(), 1);
        // Nor is the first one given up for another, at the end of the line.
        assert!(children[0].ends_with(&format!("-{number:010}")), "{children:?}");
        link.lose_next_reply();
        soon("the release", guard.unlock()).await.expect("held");
        assert_eq!(raw.list_children("/x").await.expect("works"), [""; 0]);
    }
}

/// Asks until there is an answer: on a busy machine the new connection may take longer than a
/// request may.
async fn downgraded(mut writer: WriteGuard) -> Guard {
    loop {
        writer = match writer.downgrade().await {
            Ok(reader) => return reader,
            Err((writer, error)) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "it is there, but {error:#}");
                writer
            }
        }
    }
}

/// The place has moved to another node, and the answer to that is lost: it is found under its new
/// name, with the weight that it has there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_a_downgrade_costs_no_lock() {
    let Some(servers) = start(1) else { return };
    let (client, link) = linked(&servers, "?session=15s").await;
    let raw = servers.raw().await;
    let lease = Duration::from_secs(4);
    let lock = RwLock::new(&client, "x").lease(lease);
    for _ in 0..20 {
        let writer = soon("the lock", lock.write()).await.expect("works");
        let token = writer.token();
        link.lose_next_reply();
        let (reader, lost) = match writer.downgrade().await {
            Ok(reader) => (reader, false), // a heartbeat's answer was lost
            Err((writer, _)) => {
                let children = raw.list_children("/x").await.expect("works");
                let moved = children.iter().any(|child| child.contains("__READ__"));
                (soon("a reader", downgraded(writer)).await, moved)
            }
        };
        if lost {
            tokio::time::sleep(lease * 5 / 4).await;
            assert!(reader.is_valid() && reader.token() == token);
            let holders = client.inspect("x").await.expect("works").holders;
            assert_eq!(holders.iter().map(|who| who.token).collect::<Vec<_>>(), [token]);
            reader.unlock().await.expect("held");
            return;
        }
        reader.unlock().await.expect("held");
    }
    panic!("no answer to a downgrade was ever lost");
}

/// The place has moved to another node: that one is watched from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_was_a_writer_notices_that_its_node_is_deleted() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let lock = RwLock::new(&client, "x").lease(Duration::from_millis(1500));
    let writer = soon("the lock", lock.write()).await.expect("works");
    let written = raw.list_children("/x").await.expect("works").pop().expect("ours");
    until("its watch", async || servers.ask(0, "wchp").contains(&written)).await;
    let reader = writer.downgrade().await.map_err(|(_, error)| error).expect("held");
    let child = raw.list_children("/x").await.expect("works").pop().expect("ours");
    assert!(child.contains("__READ__"), "{child}");
    raw.delete(&format!("/x/{child}"), None).await.expect("works");
    soon("the loss", reader.lost()).await;
}

/// Two requests lower a weight at once, as when a renewal runs beside its holder's request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_beside_a_renewal_is_done_once() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let note: Arc<str> = Arc::from("");
    for round in 0..1000 {
        let writer = writer(TicketId(round));
        let reader = Ticket { weight: 1, ..writer };
        let held = loop {
            let held = soon("the lock", store.enter(&line, &writer, &note, Enter::Queue)).await;
            // A server that has just been started may not answer in time on a busy machine.
            if !held.as_ref().is_err_and(holdline::Error::retryable) {
                break held;
            }
        };
        let Ok(Standing::Admitted(token)) = held else { panic!("{held:?}") };
        let both = [(), ()].map(|()| {
            let (store, line, note) = (Arc::clone(store), line.clone(), Arc::clone(&note));
            tokio::spawn(
                async move { store.enter(&line, &reader, &note, Enter::Keep(token)).await },
            )
        });
        for one in both {
            let outcome = soon("an answer", one).await.expect("no panic").expect("held");
            assert_eq!(outcome, Standing::Admitted(token));
        }
        assert!(store.leave(&line, writer.id).await.expect("works"));
    }
}

/// The node that a place has moved to has its token in the data, also after that is written anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_on_a_place_that_has_moved_keeps_its_token() {
    let Some(servers) = start(1) else { return };
    let (client, other) = (servers.client().await, servers.client().await);
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    soon("an answer", other.inspect("x")).await.expect("works");
    soon("an answer", client.inspect("x")).await.expect("works");
    let writer = writer(TicketId(1));
    let reader = Ticket { weight: 1, ..writer };
    let notes: [Arc<str>; 2] = ["", "{\"label\":\"another\"}"].map(Arc::from);
    let held = soon("the lock", store.enter(&line, &writer, &notes[0], Enter::Queue)).await;
    let Ok(Standing::Admitted(token)) = held else { panic!("{held:?}") };
    for note in &notes {
        let kept = soon("an answer", store.enter(&line, &reader, note, Enter::Keep(token))).await;
        assert_eq!(kept.expect("works"), Standing::Admitted(token));
        let holders = soon("an answer", other.inspect("x")).await.expect("works").holders;
        assert_eq!(holders.iter().map(|who| who.token).collect::<Vec<_>>(), [token.0]);
    }
    assert!(store.leave(&line, writer.id).await.expect("works"));
}

fn writer(id: TicketId) -> Ticket {
    let (lease, capacity) = (Duration::from_secs(10), 1 << 30);
    let (weight, wait_lease) = (capacity, lease);
    Ticket { id, weight, capacity, lease, wait_lease, token_count: 1, min_token: 0 }
}

/// An acquisition that is given up, at any moment, leaves no node behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_acquisition_leaves_no_orphan() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    for micros in (0..3000).step_by(100) {
        let lock = Mutex::new(&client, "x");
        let attempt = tokio::time::timeout(Duration::from_micros(micros), lock.lock()).await;
        drop(attempt);
    }
    until("nobody there", async || raw.list_children("/x").await.expect("works").is_empty()).await;
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("works");
    // A waiter that gives up, too.
    for _ in 0..10 {
        let rival = servers.client().await;
        let lock = Mutex::new(&rival, "x");
        let time = Duration::from_millis(20);
        // In so short a time there may not even be a session.
        assert!(!matches!(lock.lock_within(time).await, Ok(Some(_))));
    }
    until("only ours", async || raw.list_children("/x").await.expect("works").len() == 1).await;
    guard.unlock().await.expect("held");
}

/// Its node is removed behind its back: it takes a new place, at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_node_goes_takes_a_new_place() {
    let Some(servers) = start(1) else { return };
    let (holder, client) = (servers.client().await, servers.client().await);
    let raw = servers.raw().await;
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let lock = Mutex::new(&client, "x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let waiters = async || holder.inspect("x").await.expect("works").waiters;
    until("in the line", async || waiters().await.len() == 1).await;
    let old = waiters().await[0].token;
    let mut children = raw.list_children("/x").await.expect("works");
    children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
    raw.delete(&format!("/x/{}", children[1]), None).await.expect("works");
    until("a new place", async || waiters().await.iter().any(|who| who.token > old)).await;
    guard.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic").expect("works");
    next.unlock().await.expect("held");
}

/// kazoo's and Go's waiters wait on for ever after their session is gone. Ours has an error to
/// show, or a new place; it never holds by the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_dies_does_not_wait_on() {
    let Some(servers) = start(1) else { return };
    let holder = servers.client().await;
    let (client, link) = linked(&servers, "?session=5s").await;
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let lock = Mutex::new(&client, "x").lease(Duration::from_millis(1500));
    let waiter = tokio::spawn(async move { lock.lock().await });
    let waiters = async || holder.inspect("x").await.expect("works").waiters;
    until("in the line", async || waiters().await.len() == 1).await;
    let old = waiters().await[0].token;
    link.cut();
    until("forgotten", async || waiters().await.is_empty()).await;
    link.mend();
    guard.unlock().await.expect("held");
    match soon("an end", waiter).await.expect("no panic") {
        Ok(next) => assert!(next.token() > old),
        Err(error) => assert!(error.retryable(), "{error}"),
    }
    let again = Mutex::new(&client, "x").lease(Duration::from_millis(1500));
    let again = soon("again", persist(again)).await;
    again.unlock().await.expect("held");
}
