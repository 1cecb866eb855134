//! A storm of acquisitions that are given up, on a quorum of five Redis servers of which one is
//! silent: what is under way and in memory stays bounded, and every lock is free afterwards. G6.

use holdline::{Mutex, open};
use holdline_testkit::in_own_process;
use holdline_testkit::redis::{Server, private};
use std::time::{Duration, Instant};

/// The memory of this process, in MB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is told");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes / 1024
}

const TASKS: usize = 64;
const STORM: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_leaves_no_lock_and_no_memory_behind() {
    // Its memory is measured.
    if !in_own_process("storm::a_storm_leaves_no_lock_and_no_memory_behind") {
        return;
    }
    let servers: Option<Vec<Server>> = (0..5).map(|_| private("quorum_storm", &[])).collect();
    let Some(servers) = servers else { return };
    let urls: Vec<&str> = servers.iter().map(Server::url).collect();
    let client = open(&format!("quorum:{}", urls.join(","))).await.expect("all are there");
    for name in 0..TASKS {
        let lock = Mutex::new(&client, format!("lock {name}"));
        lock.lock().await.expect("all are there").unlock().await.expect("held");
    }
    servers[4].pause();
    let before = resident();
    let end = Instant::now() + STORM;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let mut count = 0_u64;
            while Instant::now() < end {
                let name = format!("lock {}", (task + fastrand::usize(..8)) % TASKS);
                let lock = Mutex::new(&client, name).lease(LEASE);
                let _ = tokio::time::timeout(Duration::from_millis(1), lock.lock()).await;
                count += 1;
            }
            count
        });
    }
    let (mut count, mut most) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        count += done.expect("no panic");
        most = most.max(resident());
    }
    println!("{count} given up; {before} MB before, {most} MB at the end of the storm");
    // What was not given up by now lapses, and then the locks are free; on a busy machine late.
    let limit = Instant::now() + LEASE + Duration::from_secs(55);
    for name in 0..TASKS {
        let lock = Mutex::new(&client, format!("lock {name}"));
        let left = limit.saturating_duration_since(Instant::now());
        let guard = lock.lock_within(left).await.expect("a majority is there");
        guard.expect("free after a lease").unlock().await.expect("held");
    }
    client.settle().await;
    let after = resident();
    println!("{after} MB when all was free, {:?} before its limit", limit - Instant::now());
    assert!(after <= before + 64, "{before} MB before, {after} MB after");
}
