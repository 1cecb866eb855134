//! Two nodes of one ticket, which would keep itself out for ever.

use crate::linked;
use holdline::{ErrorKind, Mutex};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, soon, until};
use std::time::Duration;
use zookeeper_client as zk;

/// One that was made for a waiter before its own: it stands in front of it, and must go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_kept_out_by_a_node_of_its_own() {
    let Some(servers) = start(1) else { return };
    let (holder, client) = (servers.client().await, servers.client().await);
    let raw = servers.raw().await;
    // The first number is used up.
    soon("a lock", persist(Mutex::new(&holder, "x"))).await.unlock().await.expect("held");
    let guard = soon("the lock", persist(Mutex::new(&holder, "x"))).await;
    let waiter = tokio::spawn(persist(Mutex::new(&client, "x")));
    let in_line = async || holder.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1);
    until("in the line", in_line).await;
    let mut children = raw.list_children("/x").await.expect("works");
    children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
    let (stem, _) = children[1].rsplit_once('-').expect("a number");
    let double = format!("/x/{stem}-0000000000");
    let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    raw.create(&double, b"", &options).await.expect("works");
    guard.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic");
    assert!(raw.check_stat(&double).await.expect("works").is_none());
    next.unlock().await.expect("held");
}

/// The server dies while answers are on their way, and comes back with what it had: each ticket has
/// one place at most, and nobody is in anybody's way afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_a_restart_loses_make_no_second_place() {
    let Some(mut servers) = start(1) else { return };
    let raw = servers.raw().await;
    let (client, link) = linked(&servers, "").await;
    let mut made = 0;
    for _ in 0..4 {
        soon("a lock", persist(Mutex::new(&client, "x"))).await.unlock().await.expect("held");
        // The node is made, and nobody is told.
        link.stall(holdline_testkit::Way::Replies);
        let attempt = tokio::spawn(persist(Mutex::new(&client, "x")));
        let there = async || !raw.list_children("/x").await.unwrap_or_default().is_empty();
        until("the node is made", there).await;
        made += 1;
        link.reset(); // the answer is lost for good
        servers.between_lives(|_| {});
        link.mend();
        let guard = soon("the lock", attempt).await.expect("no panic");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let left = async || raw.list_children("/x").await.is_ok_and(|left| left.len() == 1);
        until("its place alone", left).await;
        assert!(guard.is_valid());
        guard.unlock().await.expect("held");
    }
    assert_eq!(made, 4);
}

/// Somebody else's node with the number that ours gets: no number tells who came first. Ours goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_same_number_lets_nobody_in_beside_it() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    raw.create("/x", b"", &options).await.expect("works");
    // Ours is the second child of its parent.
    let theirs = "_c_00000000-0000-0000-0000-000000000001-lock-0000000001";
    raw.create(&format!("/x/{theirs}"), b"", &options).await.expect("works");
    let refused = async || {
        let outcome = soon("an answer", Mutex::new(&client, "x").lock()).await;
        let error = outcome.expect_err("somebody stands there");
        assert!(error.retryable() || error.kind() == ErrorKind::Corrupt, "{error:#}");
        !error.retryable()
    };
    until("refused", refused).await;
    soon("what is left to do", client.settle()).await;
    assert_eq!(raw.list_children("/x").await.expect("works"), [theirs]);
}
