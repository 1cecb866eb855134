//! Lines of more places than one look shows.

use holdline::store::{Enter, Standing, Ticket};
use holdline::{Name, Semaphore};
use holdline_testkit::etcd::start;
use holdline_testkit::{Link, Way, soon, ticket, until};
use std::sync::Arc;
use std::time::Duration;

/// Of many places of more than one permit only the newest are read at first. A ticket behind them
/// reads the whole line then, and counts neither less than that nor a place that came after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_behind_many_places_counts_all_of_these_and_no_other() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a port is free");
    let client = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    let lease = Duration::from_secs(60);
    let ours = Semaphore::new(&client, "s", 40).lease(lease);
    let theirs = Semaphore::new(&servers.client().await, "s", 40);
    let mut held = Vec::new();
    for _ in 0..17 {
        held.push(theirs.acquire(2).await.expect("there is room"));
    }
    assert!(ours.try_acquire(7).await.expect("it is there").is_none(), "34 of 40 are held");
    let six = ours.try_acquire(6).await.expect("it is there").expect("there is room");
    six.unlock().await.expect("held");
    // Between its place and its look at the whole line, another ticket comes.
    let places = servers.keys().len();
    link.stall(Way::Replies);
    let store = Arc::clone(client.store());
    let entering = tokio::spawn(async move {
        let line = Name::new("s").expect("good");
        let ticket = Ticket { weight: 4, capacity: 40, ..ticket(7, lease) };
        let standing = loop {
            match store.enter(&line, &ticket, &Arc::from(""), Enter::Queue).await {
                Ok(standing) => break standing,
                Err(error) => assert!(error.retryable(), "{error}"), // on a busy machine
            }
        };
        (standing, store.leave(&line, ticket.id).await)
    });
    until("its place", async || servers.keys().len() > places).await;
    let next = tokio::spawn(async move { theirs.acquire(4).await });
    until("the next place", async || servers.keys().len() > places + 1).await;
    link.mend();
    let (standing, left) = soon("its standing", entering).await.expect("no panic");
    assert!(matches!(standing, Standing::Admitted(_)), "38 of 40, and {standing:?}");
    assert!(left.expect("it is there"));
    let next = soon("the next", next).await.expect("no panic").expect("there is room");
    next.unlock().await.expect("held");
    for permits in held {
        permits.unlock().await.expect("held");
    }
}
