//! Acquisitions that give up, more of them than any server can serve: afterwards nothing is left of
//! them, here or in the store. In a process of its own, whose memory is measured.

use futures_util::future::join_all;
use holdline::{Client, Mutex, open};
use holdline_testkit::etcd::{Servers, start_on_disk};
use holdline_testkit::{soon, until};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const URL: &str = "HOLDLINE_TEST_STORM_URL";
const KIND: &str = "HOLDLINE_TEST_STORM_KIND";
/// Locks that are fought over.
const LOCKS: usize = 64;
/// Within which every lock must be free again. What stays behind lasts as long as its living
/// client, so that any bound will do.
const BOUND: Duration = Duration::from_secs(60);
/// The most memory that the process may keep, in MB.
const MEMORY: u64 = 64;

#[test]
fn sixty_four_tasks_give_up_for_ten_seconds() {
    run("tasks");
}

#[test]
fn fifty_thousand_operations_are_cancelled() {
    run("cancelled");
}

/// Runs the storm in a process of its own, which checks all but what the store has in the end.
fn run(kind: &str) {
    let Some(servers) = start_on_disk() else { return };
    let done = Command::new(std::env::current_exe().expect("it has a path"))
        .args(["storm::in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"])
        .env(URL, servers.url())
        .env(KIND, kind)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&done.stdout);
    println!("{said}");
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("1 passed"), "the storm was not run: {said}");
    assert_eq!(leftovers(&servers), Vec::<String>::new());
}

fn leftovers(servers: &Servers) -> Vec<String> {
    servers.keys()
}

#[test]
#[ignore = "a part of the tests above, which run it"]
fn in_a_process_of_its_own() {
    let url = std::env::var(URL).expect("run by a test above");
    let kind = std::env::var(KIND).expect("run by a test above");
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(storm(&url, &kind));
}

async fn storm(url: &str, kind: &str) {
    let client = open(url).await.expect("a good URL");
    let warm = Mutex::new(&client, "warm").lock().await.expect("it is there");
    warm.unlock().await.expect("held");
    let attempts = match kind {
        "tasks" => tasks(&client).await,
        "cancelled" => cancelled(&client).await,
        other => panic!("no such storm: {other}"),
    };
    let began = Instant::now();
    println!("{attempts} attempts; {} MB at the end", memory());
    // Somebody else, and we, get every lock.
    let other = open(url).await.expect("a good URL");
    for client in [&other, &client] {
        for lock in 0..LOCKS {
            let lock = Mutex::new(client, name(lock));
            let left = BOUND.saturating_sub(began.elapsed()).max(Duration::from_secs(1));
            let guard = timeout(left, lock.lock()).await;
            let guard = guard.unwrap_or_else(|_| panic!("not free after {:?}", began.elapsed()));
            guard.expect("it is there").unlock().await.expect("held");
        }
        println!("all locks were had after {:?}", began.elapsed());
    }
    timeout(BOUND, client.settle()).await.expect("it settles");
    println!("settled after {:?}", began.elapsed());
    for lock in 0..LOCKS {
        let info = other.inspect(name(lock)).await.expect("it is there");
        assert!(info.holders.is_empty() && info.waiters.is_empty(), "settled, but: {info:?}");
    }
    soon("little memory", until("little memory", async || memory() < MEMORY)).await;
    println!("{} MB", memory());
}

fn name(number: usize) -> String {
    format!("storm {}", number % LOCKS)
}

/// 64 tasks that give up after a millisecond, by a limit or by dropping the future.
async fn tasks(client: &Client) -> u64 {
    let end = Instant::now() + Duration::from_secs(10);
    let task = |number: usize| {
        let lock = Mutex::new(client, name(number));
        tokio::spawn(async move {
            let (mut attempts, wait) = (0, Duration::from_millis(1));
            while Instant::now() < end {
                attempts += 1;
                let got = if number.is_multiple_of(4) {
                    lock.lock_within(wait).await.ok().flatten()
                } else {
                    timeout(wait, lock.lock()).await.ok().and_then(Result::ok)
                };
                drop(got);
            }
            attempts
        })
    };
    join_all((0..64).map(task)).await.into_iter().map(|done| done.expect("no panic")).sum()
}

/// 50,000 operations, all at once, dropped at any moment of their first milliseconds.
async fn cancelled(client: &Client) -> u64 {
    let task = |number: usize| {
        let lock = Mutex::new(client, name(number));
        tokio::spawn(async move {
            let wait = Duration::from_micros(fastrand::u64(..3000));
            let work = async {
                match number % 4 {
                    0 => drop(lock.try_lock().await),
                    1 => drop(lock.lock_within(wait).await),
                    _ => {
                        if let Ok(guard) = lock.lock().await {
                            let _ = guard.unlock().await;
                        }
                    }
                }
            };
            let _ = timeout(wait, work).await;
        })
    };
    let mut count = 0;
    for batch in 0..50 {
        for done in join_all((0..1000).map(|number| task(batch * 1000 + number))).await {
            done.expect("no panic");
            count += 1;
        }
    }
    count
}

/// The memory of this process, in MB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is there");
    let kilobytes = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kilobytes.expect("a number") / 1024
}
