//! A database that is full: etcd refuses all writes but deletions until its alarm is cleared.

use futures_util::poll;
use holdline::{ErrorKind, Mutex};
use holdline_testkit::etcd::{Servers, start_small};
use holdline_testkit::{soon, until};
use std::time::Duration;

fn fill(server: &Servers) {
    let text = "x".repeat(50_000);
    let put = |n| server.ctl().args(["put", &format!("filler{n}"), &text]).output();
    let refused = (0..20).any(|n| !put(n).expect("etcdctl runs").status.success());
    assert!(refused, "{}", server.say(&["alarm", "list"]));
}

fn make_room(server: &Servers) {
    server.say(&["del", "filler", "--prefix"]);
    let newest = server.say(&["get", "x", "--write-out", "fields"]);
    let revision = newest.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    server.say(&["compact", revision.expect("it tells")]);
    server.say(&["defrag"]);
    server.say(&["alarm", "disarm"]);
}

#[tokio::test]
async fn a_full_database_keeps_what_is_held_and_makes_others_wait() {
    let Some(server) = start_small() else { return };
    let client = server.client().await;
    let held = Mutex::new(&client, "held").lease(Duration::from_secs(2)).lock().await;
    let held = held.expect("works");
    fill(&server);
    let error = soon("refused", Mutex::new(&client, "new").try_lock()).await.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(error.to_string().contains("is full"), "{error:#}");
    let writes = || server.calls("Txn") + server.calls("LeaseGrant");
    let before = writes();
    let new = Mutex::new(&client, "new");
    let waiting = tokio::spawn(async move { new.lock().await });
    until("it has been refused", async || writes() > before + 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await; // more than a lease
    assert!(held.is_valid(), "renewed");
    assert!(!waiting.is_finished());
    // The next task of this process would enter along with the deletion.
    let next = Mutex::new(&client, "held").lease(Duration::from_secs(2));
    let mut next = Box::pin(async move { next.lock().await });
    assert!(poll!(&mut next).is_pending());
    let next = tokio::spawn(next);
    held.unlock().await.expect("a deletion needs no room");
    make_room(&server);
    let next = soon("admitted", next).await.expect("no panic").expect("there is room");
    next.unlock().await.expect("held");
    let new = soon("admitted", waiting).await.expect("no panic").expect("there is room");
    new.unlock().await.expect("held");
}
