//! A leader of the past.

use holdline::{Mutex, open};
use holdline_testkit::etcd::{start, start_apart};
use holdline_testkit::{Link, Way, soon, until};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A leader that was frozen for longer than an election, and cut off from the others, goes on as if
/// it still led, and says yes to signs of life, of which the one that leads now knows nothing.
/// A client that hears only the old one must not believe it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_of_the_past_prolongs_nothing() {
    const HOLDERS: usize = 4;
    let Some(servers) = start_apart(3) else { return };
    let rival = servers.client().await;
    let leader = servers.leader();
    let host = &servers.hosts()[leader];
    let links: Vec<Link> = (0..HOLDERS).map(|_| Link::to(host).expect("a port")).collect();
    let (mut guards, mut rivals) = (Vec::new(), Vec::new());
    for (number, link) in links.iter().enumerate() {
        let name = format!("x{number}");
        let client = open(&format!("etcd://{}", link.address())).await.expect("a good URL");
        let lock = Mutex::new(&client, &name).lease(Duration::from_millis(5400));
        guards.push(Arc::new(soon("the lock", lock.lock()).await.expect("it is there")));
        let (waiting, held) = (Mutex::new(&rival, &name), Arc::clone(&guards[number]));
        rivals.push(tokio::spawn(async move {
            let next = waiting.lock().await.expect("it is there");
            (next, held.remaining())
        }));
        until("a waiter", async || {
            rival.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
    }
    servers.signal(leader, Signal::STOP);
    servers.network().cut_off(leader);
    tokio::time::sleep(Duration::from_secs(4)).await;
    servers.signal(leader, Signal::CONT);
    // It steps down when it has not heard from the others for half a second. Before that:
    tokio::time::sleep(Duration::from_millis(300)).await;
    for link in &links {
        link.stall(Way::Both);
    }
    println!("left: {:?}", guards.iter().map(|guard| guard.remaining()).collect::<Vec<_>>());
    let mut twice = Vec::new();
    for rival in rivals {
        let (next, left) = soon("the rival", rival).await.expect("no panic");
        twice.extend((!left.is_zero()).then_some(left));
        drop(next);
    }
    links.iter().for_each(Link::mend);
    servers.network().mend();
    assert!(twice.is_empty(), "two held it, for so long: {twice:?}");
}

/// A leader that was frozen for longer than a lease goes on among the others. Before 3.4.30 and
/// 3.5.13 it has leases revoked that live (etcd#15247). As long as it is frozen all locks are kept,
/// and meanwhile moved to leases that the old leader has never counted: nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_frozen_for_longer_than_a_lease_goes_on() {
    const HOLDERS: usize = 24; // more than etcd revokes at a time (see `frozen.rs`)
    let Some(servers) = start(3) else { return };
    let rival = servers.client().await;
    let mut pairs = Vec::new();
    for number in 0..HOLDERS {
        let (client, name) = (servers.client().await, format!("x{number}"));
        let lock = Mutex::new(&client, &name);
        let guard = soon("the lock", lock.lock()).await.expect("it is there");
        let waiting = Mutex::new(&rival, &name);
        let next = tokio::spawn(async move { waiting.lock().await.expect("it is there") });
        until("a waiter", async || {
            rival.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        pairs.push((guard, next));
    }
    let leader = servers.leader();
    servers.signal(leader, Signal::STOP);
    let all_hold_for = async |time| {
        let began = Instant::now();
        while began.elapsed() < time {
            for (guard, next) in &pairs {
                assert!(!next.is_finished(), "two hold {}", guard.name());
                assert!(guard.is_valid(), "{} lost after {:?}", guard.name(), began.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    all_hold_for(Duration::from_secs(13)).await;
    servers.signal(leader, Signal::CONT);
    all_hold_for(Duration::from_secs(10)).await;
    for (guard, next) in pairs {
        let token = guard.token();
        guard.unlock().await.expect("held");
        assert!(soon("the next", next).await.expect("no panic").token() > token);
    }
}
