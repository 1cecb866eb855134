//! Clients that are dropped: what they had in the process and in the server goes with them. And
//! calls that are neither dropped nor polled.

use holdline::{Mutex, open};
use holdline_testkit::etcd::start;
use holdline_testkit::{Link, Way, soon, until};
use std::time::Duration;

/// A waiter's watch is kept for a moment after it has served; a store that is dropped in that
/// moment must not leave it, for it kept the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_leaves_no_connection() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let url = format!("etcd://{}", link.address());
    for round in 0..4 {
        let (one, two) = (open(&url).await.expect("a URL"), open(&url).await.expect("a URL"));
        let held = soon("a lock", Mutex::new(&one, "x").lock()).await.expect("it is there");
        let waiter = tokio::spawn(async move {
            let guard = Mutex::new(&two, "x").lock().await.expect("it is there");
            guard.unlock().await.expect("held");
        });
        until("a waiter", async || {
            one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        held.unlock().await.expect("held");
        soon("the waiter", waiter).await.expect("no panic");
        drop(one);
        until(&format!("no connections, round {round}"), async || link.open() == 0).await;
        assert_eq!(servers.leases(), Vec::<String>::new(), "leases are given back");
    }
}

/// A call whose future is kept and not polled while it asks for a lease, as in a `select!` whose
/// other branch goes on, keeps no other from one.
#[tokio::test]
async fn a_call_that_is_not_polled_keeps_nobody_from_a_lease() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let client = open(&format!("etcd://{}", link.address())).await.expect("a URL");
    let (one, other) = (Mutex::new(&client, "x"), Mutex::new(&client, "y"));
    link.stall(Way::Replies);
    let mut kept = Box::pin(one.lock());
    let polled = tokio::time::timeout(Duration::from_millis(200), &mut kept).await;
    polled.expect_err("it hears nothing");
    link.mend();
    let other = soon("another lock", other.lock()).await.expect("it is there");
    let kept = soon("the kept one", kept).await.expect("it is there");
    other.unlock().await.expect("held");
    kept.unlock().await.expect("held");
}
