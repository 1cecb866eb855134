//! Clients that are dropped: what they had in the process and in the server goes with them.

use holdline::{Mutex, open};
use holdline_testkit::etcd::start;
use holdline_testkit::{Link, soon, until};

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
