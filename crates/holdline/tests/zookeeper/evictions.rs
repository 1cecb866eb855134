//! A holder that was removed by force finds out by whom and why; the one to remove can be named.

use holdline::Mutex;
use holdline::store::EVICTIONS_KEPT;
use holdline_testkit::soon;
use holdline_testkit::zookeeper::start;
use std::collections::HashSet;
use zookeeper_client as zk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_finds_why() {
    let Some(servers) = start(1) else { return };
    let (victim, breaker) = (servers.client().await, servers.client().await);
    let raw = servers.raw().await;
    let mut last = Vec::new();
    for number in 0..EVICTIONS_KEPT + 3 {
        let guard = soon("the lock", Mutex::new(&victim, "x").lock()).await.expect("works");
        let reason = format!("test {number}");
        let token = breaker.force_unlock("x", guard.ticket(), &reason).await.expect("works");
        assert!(token.expect("it was there") > guard.token());
        soon("the loss", guard.lost()).await;
        last.push((guard.ticket(), reason.clone()));
        // The victim looks by itself, also when nobody stands there any more.
        let info = victim.inspect("x").await.expect("works");
        assert!(info.holders.is_empty() && info.waiters.is_empty());
        let found = info.evictions.last().expect("it is told");
        assert_eq!((found.id, found.reason.as_deref()), (guard.ticket(), Some(&*reason)));
        assert_eq!(found.by.pid, std::process::id());
    }
    let info = victim.inspect("x").await.expect("works");
    let kept: Vec<_> = info.evictions.iter().map(|gone| gone.id).collect();
    let expected: Vec<_> = last[3..].iter().map(|(id, _)| *id).collect();
    assert_eq!(kept, expected, "the last ones, oldest first");
    // Nothing of that stands in the line, where Curator and kazoo would see it.
    assert_eq!(raw.list_children("/x").await.expect("works"), [""; 0]);
    drop(soon("the lock", Mutex::new(&victim, "x").lock()).await.expect("it is free"));
}

/// A line's node that somebody else uses for data of his own, or that may not be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_others_are_left_alone() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let read_only = zk::Acl::new(
        zk::Permission::READ | zk::Permission::CREATE | zk::Permission::DELETE,
        zk::AuthId::anyone(),
    );
    let acls = [read_only];
    let theirs = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let guarded = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&acls));
    for (name, options) in [("theirs", theirs), ("guarded", guarded)] {
        let path = format!("/{name}");
        raw.create(&path, b"of somebody", &options).await.expect("works");
        let guard = soon("the lock", Mutex::new(&client, name).lock()).await.expect("works");
        let broken = client.force_unlock(name, guard.ticket(), "test").await.expect("works");
        assert!(broken.is_some());
        soon("the loss", guard.lost()).await;
        assert_eq!(raw.get_data(&path).await.expect("works").0, b"of somebody");
    }
}

/// Places of clients that write no ids differ from the first digits of the ids that we make up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_up_ids_differ_from_their_beginning_on() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let raw = servers.raw().await;
    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
    raw.create("/x", b"", &container).await.expect("works");
    let options = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    for _ in 0..50 {
        raw.create("/x/x-72057600000000000-", b"", &options).await.expect("works");
    }
    let info = client.inspect("x").await.expect("works");
    let ids: Vec<_> = info.holders.iter().chain(&info.waiters).map(|one| one.id).collect();
    let beginnings: HashSet<_> =
        ids.iter().map(|id| format!("{:032x}", id.0)[..8].to_owned()).collect();
    assert_eq!((ids.len(), beginnings.len()), (50, 50));
    let again = client.inspect("x").await.expect("works");
    assert_eq!(again.holders[0].id, ids[0], "the same at every look");
    assert!(client.force_unlock("x", ids[7], "test").await.expect("works").is_some());
    assert_eq!(raw.list_children("/x").await.expect("works").len(), 49);
}
