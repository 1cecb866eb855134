//! Members that die and freeze.

use holdline::Mutex;
use holdline_testkit::etcd::start;
use holdline_testkit::flaky_links::FlakyLinks;
use holdline_testkit::{behind, killed, soon};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_killed_while_one_holds_and_one_waits() {
    let Some(mut servers) = start(3) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    killed::in_turn(&one, &two, &mut servers.0).await;
}

/// The leader is frozen, and everybody who talks to it is cut off without a word. A
/// holder goes on holding over the others; and if not, it knows before a rival gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_leader_lets_nobody_in_twice() {
    let Some(servers) = start(3) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    for _ in 0..3 {
        let lock = Mutex::new(&one, "x").lease(Duration::from_secs(3));
        let guard = Arc::new(soon("the lock", lock.lock()).await.expect("it is there"));
        let rival = behind(&guard, Mutex::new(&two, "x").lease(Duration::from_secs(3)));
        let leader = servers.leader();
        servers.signal(leader, Signal::STOP);
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until && !rival.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        servers.signal(leader, Signal::CONT);
        println!("lost: {}", !guard.is_valid());
        drop(guard);
        drop(soon("the rival", rival).await.expect("no panic"));
        one.settle().await;
        two.settle().await;
    }
}

/// The only member: nobody can be told, so the deadline must do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_is_loss_in_time() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let lock = Mutex::new(&one, "x").lease(Duration::from_secs(2));
    let guard = lock.lock().await.expect("it is there");
    let rival = tokio::spawn(async move {
        let lock = Mutex::new(&two, "x").lease(Duration::from_secs(2));
        loop {
            if let Ok(guard) = lock.lock().await {
                return guard;
            }
        }
    });
    servers.signal(0, Signal::STOP);
    let stopped = Instant::now();
    soon("the loss", guard.lost()).await;
    assert!(stopped.elapsed() < Duration::from_secs(3), "{:?}", stopped.elapsed());
    assert!(!rival.is_finished());
    servers.signal(0, Signal::CONT);
    let next = soon("the rival", rival).await.expect("no panic");
    assert!(next.token() > guard.token() && !guard.is_valid());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    next.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_restart_of_the_store() {
    let Some(mut servers) = start(1) else { return };
    let client = servers.client().await;
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(20));
    let guard = lock.lock().await.expect("it is there");
    servers.kill(0);
    servers.restart(0);
    let other = servers.client().await;
    let inside = Mutex::new(&other, "x").try_lock().await.expect("it is there");
    assert!(inside.is_none() && guard.is_valid());
    guard.unlock().await.expect("held all the time");
}

/// Each answer takes longer than another member would be given first, if there were one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lasts_on_a_server_that_is_slow() {
    let Some(servers) = start(1) else { return };
    let way = FlakyLinks::to("etcd", &servers.hosts(), "");
    let client = holdline::open(&way.url()).await.expect("opens");
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(5));
    let guard = soon("the lock", lock.lock()).await.expect("it is there");
    way.links[0].delay(Duration::from_millis(450));
    tokio::time::sleep(Duration::from_secs(12)).await; // two leases
    assert!(guard.is_valid(), "{:?}", guard.loss().await);
    way.mend();
    guard.unlock().await.expect("held");
}
