//! A line that only this client has used, so that it no longer lists it: whatever another client
//! does there comes to light with the next number.

use crate::linked;
use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Client, ErrorKind, Mutex, Name};
use holdline_testkit::zookeeper::{Servers, start};
use holdline_testkit::{Way, soon, until};
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client as zk;

/// Locks until that costs two requests: no list. Returns how many numbers are used up.
async fn use_alone(servers: &Servers, client: &Client) -> usize {
    let mut requests = servers.requests();
    // Signs of life may come in between.
    for count in 1..100 {
        let guard = Mutex::new(client, "x").lock().await.expect("it is there");
        guard.unlock().await.expect("held");
        let now = servers.requests();
        if now - std::mem::replace(&mut requests, now) == 2 {
            return count;
        }
    }
    panic!("each lock costs more than two requests");
}

async fn enter(client: &Client, id: u128, (weight, capacity): (u32, u32)) -> Standing {
    let ticket = Ticket {
        id: TicketId(id),
        weight,
        capacity,
        lease: Duration::from_secs(10),
        wait_lease: Duration::from_secs(10),
        token_count: 1,
        min_token: 0,
    };
    let line = Name::new("x").expect("good");
    let note = Arc::from("");
    client.store().enter(&line, &ticket, &note, Enter::Queue).await.expect("it is there")
}

fn is_held(standing: Standing) -> bool {
    matches!(standing, Standing::Admitted(_))
}

async fn leave(client: &Client, id: u128) {
    let line = Name::new("x").expect("good");
    assert!(client.store().leave(&line, TicketId(id)).await.expect("it is there"));
}

fn options(mode: zk::CreateMode) -> zk::CreateOptions<'static> {
    mode.with_acls(zk::Acls::anyone_all())
}

/// Another client takes the lock, as Curator does. Returns its number.
async fn take(raw: &zk::Client) -> usize {
    let stem = "/x/_c_a7b3a4de-05a8-4b0f-8a05-6a1b2b7b0b57-lock-";
    let options = options(zk::CreateMode::EphemeralSequential);
    let (_, number) = raw.create(stem, b"", &options).await.expect("it is there");
    usize::try_from(number.into_i64()).expect("a number")
}

/// Removes all children of the line's node with this number or a lower one.
async fn remove_up_to(raw: &zk::Client, last: usize) {
    for child in raw.list_children("/x").await.expect("it is there") {
        let number: usize = child.rsplit('-').next().and_then(|n| n.parse().ok()).expect("one");
        if number <= last {
            raw.delete(&format!("/x/{child}"), None).await.expect("it is there");
        }
    }
}

/// Removes the line's node and makes it again: the next number is what it would have been, and
/// another client holds the lock.
async fn make_again(raw: &zk::Client, numbers: usize) {
    raw.delete("/x", None).await.expect("it is empty");
    raw.create("/x", b"", &options(zk::CreateMode::Persistent)).await.expect("it is there");
    for number in 0..numbers {
        assert_eq!(take(raw).await, number);
    }
    remove_up_to(raw, numbers - 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_holder_is_seen() {
    let Some(servers) = start(1) else { return };
    let (client, raw) = (servers.client().await, servers.raw().await);
    let numbers = use_alone(&servers, &client).await;
    assert_eq!(take(&raw).await, numbers);
    assert!(!is_held(enter(&client, 1, (1, 1)).await));
    leave(&client, 1).await;
    remove_up_to(&raw, numbers).await;
    assert!(is_held(enter(&client, 2, (1, 1)).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_made_again_is_another_line() {
    let Some(servers) = start(1) else { return };
    let (client, raw) = (servers.client().await, servers.raw().await);
    let numbers = use_alone(&servers, &client).await;
    make_again(&raw, numbers).await;
    assert!(!is_held(enter(&client, 1, (1, 1)).await));
    let child = async || raw.list_children("/x").await.expect("it is there");
    assert!(child().await.iter().any(|child| child.ends_with(&format!("{numbers:010}"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_made_again_during_an_interruption_is_another_line() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let (client, link) = linked(&servers, "").await;
    let numbers = use_alone(&servers, &client).await;
    link.cut();
    make_again(&raw, numbers).await;
    link.mend();
    until("connected", async || client.inspect("x").await.is_ok()).await;
    assert!(!is_held(enter(&client, 1, (1, 1)).await));
}

/// The new node is on its way to the server meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_made_again_just_before_the_new_node_is_another_line() {
    let Some(servers) = start(1) else { return };
    let raw = servers.raw().await;
    let (client, link) = linked(&servers, "").await;
    let numbers = use_alone(&servers, &client).await;
    link.stall(Way::Requests);
    let mut entering = Box::pin(enter(&client, 1, (1, 1)));
    assert!(futures_util::poll!(&mut entering).is_pending());
    make_again(&raw, numbers).await;
    link.mend();
    assert!(!is_held(soon("an answer", entering).await), "two hold it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_of_the_same_client_is_seen() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    use_alone(&servers, &client).await;
    assert!(is_held(enter(&client, 1, (1, 1)).await));
    assert!(!is_held(enter(&client, 2, (1, 1)).await));
    leave(&client, 1).await;
    assert!(!is_held(enter(&client, 3, (1, 1)).await), "the second one has it");
}

/// The next place is taken before it is known here that the last one is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_taken_before_the_last_one_is_known_to_be_gone_is_seen() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    use_alone(&servers, &client).await;
    assert!(is_held(enter(&client, 1, (1, 1)).await));
    let mut leaving = Box::pin(leave(&client, 1));
    assert!(futures_util::poll!(&mut leaving).is_pending(), "it is asked for");
    assert!(is_held(soon("an answer", enter(&client, 2, (1, 1))).await));
    soon("an answer", leaving).await;
    assert!(!is_held(soon("an answer", enter(&client, 3, (1, 1))).await), "two hold it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_beside_the_last_one_is_seen() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    use_alone(&servers, &client).await;
    assert!(is_held(enter(&client, 1, (1, 2)).await));
    assert!(is_held(enter(&client, 2, (1, 2)).await));
    leave(&client, 2).await;
    assert!(!is_held(enter(&client, 3, (2, 2)).await), "the first one is there");
    leave(&client, 1).await;
    assert!(is_held(enter(&client, 3, (2, 2)).await));
}

/// A semaphore of Curator would not see us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_recipe_is_seen() {
    let Some(servers) = start(1) else { return };
    let (client, raw) = (servers.client().await, servers.raw().await);
    use_alone(&servers, &client).await;
    for path in ["/x/leases", "/x/leases/_c_1-lease-0000000000"] {
        raw.create(path, b"", &options(zk::CreateMode::Persistent)).await.expect("it is there");
    }
    let error = Mutex::new(&client, "x").lock().await.expect_err("it would not see us");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:#}");
}
