//! A storm of those who give up: afterwards every lock is free before its lease is over, what was
//! allocated is given back, and `settle` says so when the server has no place left.

use holdline::{Client, Mutex, open};
use holdline_testkit::in_own_process;
use holdline_testkit::redis::{Server, private};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long, so that an attempt that stays behind is told from a machine that is busy.
const LEASE: Duration = Duration::from_secs(90);
/// Within which all must be free again.
const BOUND: Duration = Duration::from_secs(60);
const MIB: i64 = 1 << 20;

/// The memory that this process has now, in bytes.
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<i64>().ok());
    pages.expect("a number") * 4096
}

fn named(client: &Client, n: usize) -> Mutex {
    Mutex::new(client, format!("name {}", n % 16)).lease(LEASE)
}

/// Every lock can be had before its lease is over; and when all is settled nobody stands anywhere,
/// and the memory is back.
async fn calm(what: &str, server: &Server, client: &Client, before: i64) {
    let start = Instant::now();
    for n in 0..16 {
        let got = named(client, n).lock_within(BOUND).await.expect("works");
        got.expect("it is free before its lease is over").unlock().await.expect("held");
    }
    let free = start.elapsed();
    let settled = tokio::time::timeout(BOUND, client.settle()).await;
    settled.expect("all is given up");
    let settled = start.elapsed();
    let names = client.list("").await.expect("works");
    assert!(names.is_empty(), "{what}: settled, but somebody stands in {names:?}");
    let mut grown = 0;
    for _ in 0..100 {
        grown = resident() - before;
        if grown < 64 * MIB {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let theirs: String = server.query(&["INFO", "memory"]);
    let theirs = theirs.lines().find(|line| line.starts_with("used_memory_human")).map(str::trim);
    println!(
        "{what}: free after {free:?}, settled after {settled:?}, {} MiB more, server {theirs:?}",
        grown / MIB
    );
    assert!(grown < 64 * MIB, "{what}: {} MiB more", grown / MIB);
    assert!(free < BOUND, "{what}: {free:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_given_back_after_a_storm() {
    // Its memory is measured.
    if !in_own_process("storm::everything_is_given_back_after_a_storm") {
        return;
    }
    for (scheme, prefix) in [("line", "line:"), ("string", "string:"), ("redisson", "redisson:")] {
        let Some(server) = private("storm", &[]) else { return };
        let url = format!("{}?scheme={scheme}&prefix={prefix}", server.url());
        let client = open(&url).await.expect("opens");
        named(&client, 0).lock().await.expect("works").unlock().await.expect("held");
        let before = resident();
        let until = Instant::now() + Duration::from_secs(10);
        let tasks = (0..64).map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut tries = 0;
                while Instant::now() < until {
                    let got = named(&client, n).lock_within(Duration::from_millis(1)).await;
                    drop(got);
                    tries += 1;
                }
                tries
            })
        });
        let mut tries = 0;
        for task in tasks.collect::<Vec<_>>() {
            tries += task.await.expect("no panic");
        }
        calm(&format!("{scheme}, {tries} tries of 1 ms"), &server, &client, before).await;
        // Whatever is under way is dropped, at any instant.
        let client = Arc::new(client);
        let mut tasks = Vec::new();
        for task in 0..50 {
            let client = Arc::clone(&client);
            tasks.push(tokio::spawn(async move {
                for n in 0..1000_u64 {
                    let lock = named(&client, task + n as usize);
                    let some = Duration::from_micros(n * 7919 % 1500);
                    let _ = tokio::time::timeout(some, lock.lock()).await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        calm(&format!("{scheme}, 50,000 dropped"), &server, &client, before).await;
    }
}
