//! Observers of stores that tell of all changes: they listen instead of polling. A part of the
//! binaries of such stores.

use holdline::store::Lines;
use holdline::{Client, Election, Mutex, open};
use holdline_conformance::{Chaos, Op};
use holdline_testkit::{Link, soon, until};
use std::sync::Arc;
use std::time::Duration;

/// The poll interval: longer than any test may take.
const NEVER: Duration = Duration::from_secs(3600);

pub(crate) async fn an_observer_asks_nothing_while_nothing_changes(client: &Client) {
    let leader = Election::new(client, "x").campaign("a").await.expect("it is there");
    let chaos = Chaos::new(Arc::clone(client.store()));
    let mut observer = Election::new(&chaos.client(), "x").observe();
    let seen = soon("the leader", observer.next()).await.expect("it is there");
    assert_eq!(seen.expect("there is one").value, "a");
    let next = tokio::spawn(async move { observer.next().await });
    until("it listens", async || chaos.count(Op::Snapshot) >= 3).await;
    let before = chaos.count(Op::Snapshot);
    // Four times its poll interval, and less than half of the time after which it looks anyway.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let looks = chaos.count(Op::Snapshot) - before;
    assert!(looks <= 1, "{looks} looks while nothing happened");
    leader.resign().await.expect("it led");
    let seen = soon("the change", next).await.expect("no task fails");
    assert_eq!(seen.expect("it is there"), None);
}

/// `scheme` and `host` are those of the server that `one` has.
pub(crate) async fn what_happened_while_an_observer_was_cut_off_is_seen(
    one: &Client,
    scheme: &str,
    host: &str,
) {
    let link = Link::to(host).expect("a port is free");
    let two = open(&format!("{scheme}://{}", link.address())).await.expect("a good URL");
    assert!(two.list("x").await.expect("it is there").is_empty());
    let mut changes = two.changes(Lines::Prefix("x".to_owned()));
    // It begins to listen.
    soon("the first", changes.next(NEVER)).await;
    link.cut();
    let guard = Mutex::new(one, "x").lock().await.expect("it is there");
    link.mend();
    soon("the change", changes.next(NEVER)).await;
    assert_eq!(two.list("x").await.expect("it is there").len(), 1);
    guard.unlock().await.expect("it was held");
}
