//! A leader of the past.

use crate::etcd_server::{soon, start, start_apart, until};
use holdline::{Guard, Mutex, open};
use holdline_rig::{Link, Way};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A leader that was frozen for longer than an election, and cut off from the others, goes on as if
/// it still led, and says yes to signs of life, of which the one that leads now knows nothing.
/// Whoever hears only the old one must not believe it.
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
    servers.peers().cut_off(leader);
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
    servers.peers().mend();
    assert!(twice.is_empty(), "two held it, for so long: {twice:?}");
}

/// A holder, when it was told of its loss, and who waits for it.
struct Pair {
    guard: Arc<Guard>,
    told: JoinHandle<Instant>,
    rival: JoinHandle<(Guard, Instant)>,
}

/// A leader that was frozen for longer than a lease goes on among the others. As long as it is
/// frozen everybody keeps what he has. When it goes on, leases that live may be ended by it before
/// 3.4.30 and 3.5.13 (etcd#15247): then the holder is told, though perhaps only after the next is
/// in, who has a higher token. Later versions end none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_frozen_for_longer_than_a_lease_goes_on() {
    const HOLDERS: usize = 8;
    let Some(servers) = start(3) else { return };
    let version = servers.version();
    let sound = version >= [3, 5, 13] || ([3, 4, 30]..[3, 5, 0]).contains(&version);
    let rival = servers.client().await;
    let mut pairs = Vec::new();
    for number in 0..HOLDERS {
        let (client, name) = (servers.client().await, format!("x{number}"));
        let lock = Mutex::new(&client, &name);
        let guard = Arc::new(soon("the lock", lock.lock()).await.expect("it is there"));
        let (held, waiting) = (Arc::clone(&guard), Mutex::new(&rival, &name));
        let told = tokio::spawn(async move {
            held.lost().await;
            Instant::now()
        });
        let next = tokio::spawn(async move {
            let guard = waiting.lock().await.expect("it is there");
            (guard, Instant::now())
        });
        until("a waiter", async || {
            rival.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1)
        })
        .await;
        pairs.push(Pair { guard, told, rival: next });
    }
    let leader = servers.leader();
    servers.signal(leader, Signal::STOP);
    let frozen = Instant::now();
    while frozen.elapsed() < Duration::from_secs(13) {
        for Pair { guard, rival, .. } in &pairs {
            assert!(!rival.is_finished(), "two hold {}", guard.name());
            assert!(guard.is_valid(), "{} was lost", guard.name());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    servers.signal(leader, Signal::CONT);
    // It looks for leases that have run out twice a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut late = Vec::new();
    for Pair { guard, told, rival } in pairs {
        let token = guard.token();
        if rival.is_finished() {
            assert!(!sound, "a lease that lives was ended");
            assert!(!guard.is_valid(), "two hold {}, and nobody was told", guard.name());
            let told = soon("the loss", told).await.expect("no panic");
            let (next, at) = soon("the rival", rival).await.expect("no panic");
            assert!(next.token() > token, "a token of the past");
            late.push(told.saturating_duration_since(at));
        } else {
            assert!(guard.is_valid(), "{} was lost for nothing", guard.name());
            told.abort();
            drop((soon("an end", told).await, guard));
            let (next, _) = soon("the rival", rival).await.expect("no panic");
            assert!(next.token() > token);
        }
    }
    println!("{} of {HOLDERS} leases ended; told so much too late: {late:?}", late.len());
}
