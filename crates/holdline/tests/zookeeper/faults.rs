//! Members that die and freeze.

use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::killed;
use holdline_testkit::zookeeper::{start, start_apart, start_with_island};
use holdline_testkit::{Way, behind, contested, persist, soon, until};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_killed_while_one_holds_and_one_waits() {
    let Some(mut servers) = start(3) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    killed::in_turn(&one, &two, &mut servers.members).await;
}

/// The member that the holder talks to is frozen, and with it the connection: the holder goes over
/// to another. The leader is frozen: a holder goes on, or knows before a rival gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_leader_lets_nobody_in_twice() {
    let Some(servers) = start(3) else { return };
    let url = format!("{}?session=5s", servers.url());
    let one = open(&url).await.expect("a good URL");
    let two = open(&url).await.expect("a good URL");
    let lease = Duration::from_millis(1500);
    for _ in 0..3 {
        let guard = Arc::new(soon("the lock", persist(Mutex::new(&one, "x").lease(lease))).await);
        let rival = behind(&guard, Mutex::new(&two, "x").lease(lease));
        let leader = servers.leader();
        servers.signal(leader, Signal::STOP);
        let limit = Instant::now() + Duration::from_secs(10);
        while Instant::now() < limit && guard.is_valid() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(guard);
        servers.signal(leader, Signal::CONT);
        drop(soon("the rival", rival).await.expect("no panic"));
    }
}

/// A follower that is cut off from the others goes on answering reads and pings for many ticks,
/// while the leader ends the sessions of its clients. They must not take its word for anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_vouches_for_nobody() {
    let Some(servers) = start_with_island() else { return };
    assert_ne!(servers.leader(), 0, "the first never leads");
    let hosts = servers.hosts();
    let island = open(&format!("zookeeper://{}?session=5s", hosts[0])).await.expect("good");
    let rest = open(&format!("zookeeper://{},{}", hosts[1], hosts[2])).await.expect("good");
    let watcher = zookeeper_client::Client::connect(&hosts[0]).await.expect("it is there");
    let lease = Duration::from_millis(1500);
    let lock = Mutex::new(&island, "x").lease(lease);
    // Longer than its lease, so that it is renewed.
    let time = Duration::from_secs(3);
    let (guard, rival) = contested(&lock, &Mutex::new(&rest, "x"), &rest, time).await;
    servers.links.iter().for_each(|link| link.stall(Way::Both));
    soon("the loss", guard.lost()).await;
    let (next, _) = soon("the rival", rival).await.expect("no panic");
    let still = tokio::time::timeout(Duration::from_secs(1), watcher.list_children("/x")).await;
    let still = still.expect("the island answers").expect("the island answers");
    assert_eq!(still.len(), 2, "to the island nothing has happened");
    servers.links.iter().for_each(holdline_testkit::Link::mend);
    next.unlock().await.expect("held");
}

/// A leader that is cut off goes on answering reads until it notices, while the others may have
/// agreed on another one. Members of a group rely on what they are shown for longer than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_shows_no_line() {
    let Some(servers) = start_apart(3) else { return };
    let leader = servers.leader();
    let island = open(&format!("zookeeper://{}?session=60", servers.hosts()[leader])).await;
    let island = island.expect("good");
    let guard = soon("the lock", persist(Mutex::new(&island, "x"))).await;
    until("it is shown", async || island.inspect("x").await.is_ok()).await;
    servers.network().cut_off(leader);
    let shown = island.inspect("x").await;
    let error = shown.expect_err("nobody knows whether this is still so");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.network().mend();
    drop(guard);
}

/// The leader, and then a follower, is cut off from the other two: it stops to serve, the others
/// agree on a leader among them, and holders go on with those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_cut_off_takes_no_lock_along() {
    let Some(servers) = start_apart(3) else { return };
    let url = format!("{}?session=60", servers.url());
    let (one, two) = (open(&url).await.expect("good"), open(&url).await.expect("good"));
    // Longer than it takes a busy machine to agree on a leader.
    let lease = Duration::from_secs(40);
    let guard = soon("the lock", persist(Mutex::new(&one, "x").lease(lease))).await;
    let rival = tokio::spawn(persist(Mutex::new(&two, "x").lease(lease)));
    until("a waiter", async || one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1))
        .await;
    let (token, mut last) = (guard.token(), 0);
    for leads in [true, false] {
        let leader = servers.leader();
        let island = if leads { leader } else { (leader + 1) % 3 };
        servers.network().cut_off(island);
        until("it notices", async || !servers.serves(island)).await;
        assert_ne!(servers.leader(), island, "nobody follows it");
        // A third client, who has the other two to ask.
        let third = servers.client().await;
        let other = soon("a lock", persist(Mutex::new(&third, "y"))).await;
        assert!(other.token() > last, "a token of the past");
        last = other.token();
        other.unlock().await.expect("held");
        assert!(guard.is_valid(), "member {island} took the lock along");
        assert!(!rival.is_finished(), "two hold");
        servers.network().mend();
        until("it is back", async || servers.serves(island)).await;
    }
    soon("the release", guard.unlock()).await.expect("held");
    let next = soon("the rival", rival).await.expect("no panic");
    assert!(next.token() > token);
}

/// The leader is frozen for longer than a session, and goes on. By then the others have another
/// one: sessions began anew with that, and live; and what the old one thinks of them counts for
/// nothing, for it cannot end a session without a majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_frozen_for_longer_than_a_session_ends_none() {
    const HOLDERS: usize = 8;
    const SESSION: Duration = Duration::from_secs(20);
    let Some(servers) = start(3) else { return };
    let url = format!("{}?session=20", servers.url());
    let rival = servers.client().await;
    let (mut guards, mut rivals) = (Vec::new(), Vec::new());
    // Sessions of their own, some of them with the leader.
    for number in 0..HOLDERS {
        let (client, name) = (open(&url).await.expect("a good URL"), format!("x{number}"));
        let lock = Mutex::new(&client, &name).lease(Duration::from_secs(15));
        guards.push(soon("the lock", persist(lock)).await);
        rivals.push(tokio::spawn(persist(Mutex::new(&rival, &name))));
        until("a waiter", async || {
            rival.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
    }
    let kept = async |time: Duration| {
        let limit = Instant::now() + time;
        while Instant::now() < limit {
            for (guard, rival) in guards.iter().zip(&rivals) {
                assert!(!rival.is_finished(), "two hold {}", guard.name());
                assert!(guard.is_valid(), "{} was lost", guard.name());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let leader = servers.leader();
    servers.signal(leader, Signal::STOP);
    kept(SESSION + Duration::from_secs(2)).await;
    servers.signal(leader, Signal::CONT);
    // It takes itself for the leader until it hears of the other.
    until("another one leads", async || servers.leader() != leader).await;
    kept(Duration::from_secs(4)).await;
    for (guard, rival) in guards.into_iter().zip(rivals) {
        let token = guard.token();
        soon("the release", guard.unlock()).await.expect("held");
        assert!(soon("the rival", rival).await.expect("no panic").token() > token);
    }
}
