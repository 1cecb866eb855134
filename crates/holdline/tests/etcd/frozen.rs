//! Servers that are all frozen for longer than a lease, and what is entered right after.

use holdline::{Guard, Mutex};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::{gives_up_on_a_frozen_server, soon, until};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LEASE: Duration = Duration::from_secs(5);
/// What etcd was asked for is 6 s: it is over by then.
const FROZEN: Duration = Duration::from_secs(9);
/// etcd asks for 16 leases to be revoked at a time, and waits for each for 6 s at most: what an old
/// leader asked for is lost with its term, what it asks for then is carried out by the new one.
const CLIENTS: usize = 40;
const REVOKES: Duration = Duration::from_secs(10);

fn freeze_all(servers: &Servers) {
    (0..3).for_each(|at| servers.signal(at, Signal::STOP));
}

/// A lock of each of some clients, all of which had a lease before.
async fn warm(servers: &Servers, count: usize) -> Vec<Mutex> {
    let mut locks = Vec::new();
    for number in 0..count {
        let client = servers.client().await;
        let lock = Mutex::new(&client, format!("x{number}")).lease(LEASE);
        soon("the lock", lock.lock()).await.expect("there").unlock().await.expect("held");
        locks.push(lock);
    }
    locks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gives_up_on_a_frozen_server() {
    let Some(servers) = start(1) else { return };
    gives_up_on_a_frozen_server(&servers).await;
}

/// The old leader goes on last, with all leases of before run out by its clock, while the new one
/// has begun to count anew. What it then asks to be revoked must not be what places were entered
/// on since (etcd#15247, before 3.4.30 and 3.5.13).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_is_not_entered_on_a_lease_that_outlived_a_silence() {
    let Some(servers) = start(3) else { return };
    let locks = warm(&servers, CLIENTS).await;
    let leader = servers.leader();
    freeze_all(&servers);
    tokio::time::sleep(FROZEN).await;
    // Half of them ask while nobody answers, the others when there is an answer again.
    let (during, after) = locks.split_at(CLIENTS / 2);
    let ask = |lock: &Mutex| {
        let lock = lock.clone();
        tokio::spawn(async move { soon("the lock", lock.lock()).await.expect("there") })
    };
    let mut asked: Vec<JoinHandle<Guard>> = during.iter().map(ask).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    (0..3).filter(|at| *at != leader).for_each(|at| servers.signal(at, Signal::CONT));
    let next = servers.client().await;
    until("a new leader", async || next.list("").await.is_ok()).await;
    asked.extend(after.iter().map(ask));
    let mut guards = Vec::new();
    for guard in asked {
        guards.push(guard.await.expect("no panic"));
    }
    servers.signal(leader, Signal::CONT);
    let began = Instant::now();
    while began.elapsed() < REVOKES {
        let lost: Vec<_> = guards.iter().filter(|guard| !guard.is_valid()).collect();
        assert!(lost.is_empty(), "{} of {CLIENTS} lost after {:?}", lost.len(), began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
}

/// All go on at once, again and again, with everybody waiting: nobody is let in beside another, and
/// what was granted after the thaw stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_granted_after_a_thaw_is_taken_back() {
    const ROUNDS: usize = 2;
    let Some(servers) = start(3) else { return };
    let (grants, holders) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut tasks = Vec::new();
    for number in 0..8 {
        let lock = Mutex::new(&servers.client().await, "x").lease(LEASE);
        let (grants, holders) = (Arc::clone(&grants), Arc::clone(&holders));
        tasks.push(tokio::spawn(async move {
            loop {
                let guard = lock.lock().await.expect("it rides the outage out");
                let began = Instant::now();
                let until = began + Duration::from_millis(if number == 0 { 2000 } else { 20 });
                let frozen = grants.fetch_add(1, Ordering::SeqCst);
                let others = holders.fetch_add(1, Ordering::SeqCst);
                while Instant::now() < until && guard.is_valid() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                holders.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(others, 0, "two hold it (grant {frozen})");
                // Lost before its first lease was over: that was not for want of an answer.
                let short = !guard.is_valid() && began.elapsed() < LEASE / 2;
                assert!(!short, "lost {:?} after it was granted", began.elapsed());
                drop(guard);
            }
        }));
    }
    let count = || grants.load(Ordering::SeqCst);
    for _ in 0..ROUNDS {
        let before = count();
        until("grants", async || count() > before + 30).await;
        freeze_all(&servers);
        tokio::time::sleep(FROZEN).await;
        (0..3).for_each(|at| servers.signal(at, Signal::CONT));
        let before = count();
        let began = Instant::now();
        until("grants", async || {
            assert!(tasks.iter().all(|task| !task.is_finished()), "one of them has failed");
            count() > before + 30 && began.elapsed() > Duration::from_secs(8)
        })
        .await;
    }
    tasks.iter().for_each(JoinHandle::abort);
}
