//! Places that a request may have made, or may yet make, when its ticket is given up.

use crate::linked;
use holdline::store::{Enter, Standing, Ticket};
use holdline::{Mutex, Name};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{Way, soon, until};
use std::sync::Arc;
use std::time::Duration;

fn ticket(wait_lease: Duration) -> Ticket {
    Ticket { wait_lease, ..holdline_testkit::ticket(7, Duration::from_secs(10)) }
}

/// The node is made, and its answer is on its way when the ticket leaves; then nobody waits for the
/// answer any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_leaves_while_its_node_is_made_leaves_none() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let (client, link) = linked(&servers, "").await;
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("works");
    guard.unlock().await.expect("held");
    let (store, line) = (Arc::clone(client.store()), Name::new("x").expect("good"));
    let (note, ticket): (Arc<str>, _) = (Arc::from(""), ticket(Duration::from_secs(10)));
    link.stall(Way::Replies);
    let mut entering = Box::pin(store.enter(&line, &ticket, &note, Enter::Queue));
    let made = async {
        until("the node is made", async || {
            !raw.list_children("/x").await.expect("works").is_empty()
        })
        .await;
    };
    tokio::select! {
        biased;
        standing = &mut entering => panic!("there was no answer: {standing:?}"),
        () = made => {}
    }
    let mut leaving = Box::pin(store.leave(&line, ticket.id));
    let early = futures_util::poll!(&mut leaving);
    assert!(early.is_pending(), "it is not known: {early:?}");
    let again = soon("an answer", store.enter(&line, &ticket, &note, Enter::Queue)).await;
    assert_eq!(again.expect("known here"), Standing::Lost, "what it made is being removed");
    drop(entering);
    link.mend();
    assert!(soon("an answer", leaving).await.expect("works"), "it was there");
    assert_eq!(raw.list_children("/x").await.expect("works"), [""; 0]);
}

/// A waiter that was not heard of for too long is removed by its number; a place that it takes
/// later would go with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_has_lapsed_is_not_entered_again() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("works");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let (note, ticket): (Arc<str>, _) = (Arc::from(""), ticket(Duration::from_millis(500)));
    let enter = async || soon("an answer", store.enter(&line, &ticket, &note, Enter::Queue)).await;
    let standing = enter().await.expect("works");
    assert!(matches!(standing, Standing::Waiting { seq: Some(_), .. }), "{standing:?}");
    let places = async || raw.list_children("/x").await.expect("works").len();
    until("it is removed", async || places().await == 1).await;
    // Then nothing is left of it in its client, either, but that it has lapsed.
    let there = soon("an answer", store.leave(&line, ticket.id)).await.expect("works");
    assert!(!there);
    assert_eq!(enter().await.expect("works"), Standing::Lost);
    assert_eq!(places().await, 1);
    guard.unlock().await.expect("held");
}

/// Another client comes between the look at the line and the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_somebody_overtakes_leaves_no_node() {
    let Some(servers) = start(1) else { return };
    let rival = servers.client().await;
    let raw = servers.raw().await;
    let (client, link) = linked(&servers, "").await;
    for _ in 0..3 {
        let guard = soon("the lock", Mutex::new(&client, "x").lock()).await.expect("works");
        guard.unlock().await.expect("held");
        let before = servers.requests();
        link.stall(Way::Replies);
        let lock = Mutex::new(&client, "x");
        let trial = tokio::spawn(async move { lock.try_lock().await });
        // The line is looked at, and nobody is told yet.
        until("asked", async || servers.requests() >= before + 2).await;
        let guard = soon("the lock", Mutex::new(&rival, "x").lock()).await.expect("works");
        link.mend();
        let outcome = soon("an answer", trial).await.expect("no panic").expect("works");
        assert!(outcome.is_none(), "somebody has it");
        assert_eq!(raw.list_children("/x").await.expect("works").len(), 1);
        guard.unlock().await.expect("held");
    }
}
