//! A leader of the past.

use crate::etcd_server::{soon, start_apart, until};
use holdline::{Mutex, open};
use holdline_rig::{Link, Way};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;

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
