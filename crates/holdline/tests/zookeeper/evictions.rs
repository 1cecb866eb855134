//! A holder that was removed by force finds out by whom and why; the one to remove can be named.

use crate::linked;
use holdline::store::EVICTIONS_KEPT;
use holdline::{Mutex, Semaphore};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{soon, until};
use std::collections::HashSet;
use std::time::Duration;
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

/// Both are written into the same node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_removals_at_once_keep_both_reasons() {
    let Some(servers) = start(1) else { return };
    let (victim, one, two) =
        (servers.client().await, servers.client().await, servers.client().await);
    for round in 0..20 {
        let name = format!("x{round}");
        let permits = Semaphore::new(&victim, &name, 2);
        let first = soon("a permit", permits.acquire(1)).await.expect("works");
        let second = soon("a permit", permits.acquire(1)).await.expect("works");
        let (gone, too) = tokio::join!(
            one.force_unlock(&name, first.ticket(), "the first"),
            two.force_unlock(&name, second.ticket(), "the second"),
        );
        assert!(gone.expect("works").is_some() && too.expect("works").is_some());
        let info = victim.inspect(&name).await.expect("works");
        let told: HashSet<_> = info.evictions.iter().map(|gone| gone.id).collect();
        assert_eq!(told, HashSet::from([first.ticket(), second.ticket()]));
    }
}

/// The place is removed, and the answer to that is lost: it is said all the same that it was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_whose_answer_is_lost_is_told_of() {
    let Some(servers) = start(1) else { return };
    let (victim, raw) = (servers.client().await, servers.raw().await);
    let (breaker, link) = linked(&servers, "").await;
    let guard = soon("the lock", Mutex::new(&victim, "x").lock()).await.expect("works");
    breaker.inspect("x").await.expect("works"); // it is connected
    let ticket = guard.ticket();
    // The answers are under way for so long.
    link.delay(Duration::from_millis(50));
    let asked = tokio::spawn(async move { breaker.force_unlock("x", ticket, "test").await });
    let removed = async || raw.list_children("/x").await.expect("works").is_empty();
    until("removed", async || asked.is_finished() || removed().await).await;
    link.reset();
    link.mend();
    let token = soon("an answer", asked).await.expect("no panic").expect("works");
    assert!(token.expect("it was there") > guard.token());
    soon("the loss", guard.lost()).await;
    let told = victim.inspect("x").await.expect("works").evictions;
    assert_eq!(told.iter().map(|gone| gone.id).collect::<Vec<_>>(), [ticket], "once");
}
