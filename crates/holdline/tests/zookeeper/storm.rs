//! Storms of acquisitions that come to nothing: what they leave behind, in the servers and here.
//!
//! Each storm is a process of its own (this program again, with a test that does nothing unless it
//! is told a URL), so that its memory can be measured.

use holdline::{Client, Mutex, open};
use holdline_testkit::zookeeper::{Servers, start};
use std::process::Command;
use std::time::{Duration, Instant};

const URL: &str = "HOLDLINE_TEST_STORM_URL";
const KIND: &str = "HOLDLINE_TEST_STORM_KIND";
/// Within which a lock must be free again. What stays behind lasts as long as its living client, so
/// that any bound will do.
const BOUND: Duration = Duration::from_secs(60);
const TASKS: usize = 64;
/// The most memory that a process may have afterwards, in MiB.
const MOST: u64 = 64;

/// Runs a storm in a process of its own, and looks at what is left of it in the servers while that
/// process says that everything is settled.
fn storm(servers: &Servers, kind: &str) {
    let program = std::env::current_exe().expect("this program has a path");
    let ran = Command::new(program)
        .args(["--exact", "storm::in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(URL, servers.url())
        .env(KIND, kind)
        .output()
        .expect("this program starts");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    println!("{said}");
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("the storm is over"), "it did nothing: {said}");
}

#[test]
fn tasks_that_give_up_at_once_leave_nothing() {
    if let Some(servers) = start(1) {
        storm(&servers, "impatient");
    }
}

#[test]
fn fifty_thousand_dropped_acquisitions_leave_nothing() {
    if let Some(servers) = start(1) {
        storm(&servers, "dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "the other tests here run it, in a process of its own"]
async fn in_a_process_of_its_own() {
    let Ok(url) = std::env::var(URL) else { return };
    let client = open(&url).await.expect("a good URL");
    let before = Mutex::new(&client, "before").lock().await.expect("the server is there");
    before.unlock().await.expect("held");
    let began = Instant::now();
    let asked = match std::env::var(KIND).as_deref() {
        Ok("impatient") => impatient(&client).await,
        _ => dropped(&client).await,
    };
    println!("{asked} acquisitions in {:?}, {} MiB", began.elapsed(), memory());
    let began = Instant::now();
    let again = Mutex::new(&client, "x 0").lock_within(BOUND).await;
    let guard = again.expect("the server is there").expect("it is free again");
    println!("a lock after {:?}, {} MiB", began.elapsed(), memory());
    guard.unlock().await.expect("held");
    tokio::time::timeout(BOUND, client.settle()).await.expect("all is given up");
    println!("settled after {:?}, {} MiB", began.elapsed(), memory());
    assert_eq!(places(&url).await, 0, "places are left though all is settled");
    let rival = open(&url).await.expect("a good URL");
    for name in (0..TASKS).map(|task| format!("x {task}")) {
        let free = Mutex::new(&rival, &name).lock_within(BOUND).await;
        free.expect("the server is there").expect("it is free").unlock().await.expect("held");
    }
    let memory = memory();
    assert!(memory < MOST, "{memory} MiB afterwards");
    println!("the storm is over: {memory} MiB after {:?}", began.elapsed());
}

/// Tasks, each with a name of its own, that give up after a millisecond, for ten seconds.
async fn impatient(client: &Client) -> usize {
    let until = Instant::now() + Duration::from_secs(10);
    all(client, move |client, task| async move {
        let (lock, mut asked) = (Mutex::new(&client, format!("x {task}")), 0);
        while Instant::now() < until {
            asked += 1;
            drop(tokio::time::timeout(Duration::from_millis(1), lock.lock()).await);
        }
        asked
    })
    .await
}

/// As many acquisitions of as many names, dropped at any moment.
async fn dropped(client: &Client) -> usize {
    all(client, |client, task| async move {
        let mut rng = fastrand::Rng::with_seed(task as u64);
        for _ in 0..50_000 / TASKS {
            let lock = Mutex::new(&client, format!("x {}", rng.usize(..TASKS)));
            let time = Duration::from_micros(rng.u64(..3000));
            drop(tokio::time::timeout(time, lock.lock()).await);
        }
        50_000 / TASKS
    })
    .await
}

/// Runs all tasks at once, and adds up what they say.
async fn all<F>(client: &Client, work: impl Fn(Client, usize) -> F) -> usize
where
    F: Future<Output = usize> + Send + 'static,
{
    let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(work(client.clone(), task))).collect();
    let mut asked = 0;
    for task in tasks {
        asked += task.await.expect("no panic");
    }
    asked
}

/// The places of all lines in the servers.
async fn places(url: &str) -> usize {
    let raw = holdline_testkit::zookeeper::raw(url.trim_start_matches("zookeeper://")).await;
    let mut places = 0;
    for task in 0..TASKS {
        let path = format!("/x {task}");
        places += raw.list_children(&path).await.map_or(0, |children| children.len());
    }
    places
}

/// The memory that this process has at the moment, in MiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024
}
