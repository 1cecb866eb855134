//! Storms: 64 tasks of one process ask for a lock each and give up after a millisecond, again and
//! again. Afterwards every lock must be free for that process and for others before a lease is
//! over, nothing may be left in the store, and the memory must be freed. The times are only
//! printed, because they depend on the machine's other work.

use crate::client::opened;
use crate::outages::stores::{Row, rows};
use crate::run::number;
use crate::workers::process;
use crate::{Case, cases};
use holdline::{Client, ErrorKind, Mutex};
use holdline_testkit::Folder;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout, timeout_at};

pub(crate) const CASES: &[Case] = cases![storms];

/// The variable with a process's part.
pub(crate) const PART: &str = "HOLDLINE_STORM_PART";
/// The number of tasks, each with a lock of its own, so that none waits within the process.
const TASKS: usize = 64;
const GIVE_UP: Duration = Duration::from_millis(1);
/// A long lease, to distinguish an attempt left behind, which goes away after a lease, from a busy
/// machine. Giving up what a storm leaves takes less than a second on a quiet machine, and ten on
/// one where forty other programs compete for four processors.
const LEASE: Duration = Duration::from_secs(90);
/// The time within which all locks must be free again and nothing be left.
const BOUND: Duration = Duration::from_secs(60);
/// The allowed growth of the process's memory, in MB.
const MORE: u64 = 64;
/// The number of stores tested at the same time.
const AT_ONCE: usize = 2;
/// A time longer than anything that ends.
const LIMIT: Duration = Duration::from_secs(120);

/// The parameters of the process.
#[derive(Serialize, Deserialize)]
struct Part {
    url: String,
    seconds: u64,
    result: PathBuf,
}

/// The result of a storm.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Outcome {
    given_up: usize,
    granted: usize,
    failed: usize,
    /// The time until the same process had locked the last name; `None` if it failed.
    free_ms: Option<u64>,
    /// The time until the library reported that everything is given up; `None` if it did not.
    settled_ms: Option<u64>,
    /// The memory in MB: before the storm, right after it, and at the end.
    memory: [u64; 3],
    error: Option<String>,
}

fn name(at: usize) -> String {
    format!("storm-{at}")
}

/// A lock with the long lease. In ZooKeeper an entry left behind lasts as long as its client, so
/// any lease will do.
fn mutex(client: &Client, at: usize) -> Mutex {
    let most = client.capabilities().lease_max;
    Mutex::new(client, name(at)).lease(LEASE.min(most))
}

/// Runs the stores named in `HOLDLINE_STORM_STORES`, or one of each kind, a few in parallel: a
/// storm takes all processors that it can get, and giving up what it leaves behind needs them too.
fn storms() {
    let chosen = std::env::var("HOLDLINE_STORM_STORES").ok();
    let wanted = |row: &Row| match &chosen {
        Some(names) => names.split(',').any(|name| name == row.name),
        None => !row.name.ends_with("-three"),
    };
    let rows: Vec<Row> = rows().into_iter().filter(wanted).collect();
    assert!(!rows.is_empty(), "no store is called {chosen:?}");
    let (next, wrong) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    let work = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            // By its thread's name a store whose server is missing is noted.
            let thread = Builder::new().name(format!("storm on {}", row.name));
            let found =
                std::thread::scope(|scope| thread.spawn_scoped(scope, || one(row)).unwrap().join());
            let found = found.unwrap_or_else(|_| vec!["it panicked, or was not run".to_owned()]);
            let named = found.iter().map(|what| format!("{}: {what}", row.name));
            wrong.lock().unwrap().extend(named);
        }
    };
    std::thread::scope(|scope| {
        (0..AT_ONCE).for_each(|_| _ = scope.spawn(work));
    });
    let wrong: Vec<String> = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs the storm on one store, and returns what was wrong after it.
fn one(row: &Row) -> Vec<String> {
    let Some(subject) = (row.open)() else { return Vec::new() };
    let folder = Folder::on_disk("storm").unwrap();
    let seconds = number("HOLDLINE_STORM_SECONDS").unwrap_or(3);
    let (url, result) = (subject.url(), folder.path().join("result"));
    let part = Part { url: url.clone(), seconds, result: result.clone() };
    let mut child = process(PART, &serde_json::to_string(&part).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    std::thread::sleep(Duration::from_secs(seconds) + Duration::from_millis(500));
    let mut wrong = Vec::new();
    // The process is still running, so that everything it has in the store is kept alive.
    let free = runtime.block_on(others(&url));
    if !ends(&mut child, LIMIT) {
        wrong.push("the process does not end".to_owned());
    }
    let text = std::fs::read_to_string(&result).unwrap_or_default();
    let outcome: Outcome = serde_json::from_str(&text).unwrap_or_default();
    println!(
        "storm of {seconds} s on {}: {} given up, {} granted, {} failed; free after {:?} ms for \
         itself, {:?} for others; settled after {:?} ms; \
         memory before, after, in the end: {:?} MB",
        row.name,
        outcome.given_up,
        outcome.granted,
        outcome.failed,
        outcome.free_ms,
        free,
        outcome.settled_ms,
        outcome.memory
    );
    wrong.extend(outcome.error);
    // If the store is slow, the limit ends unanswered attempts with an error.
    if outcome.given_up + outcome.failed < TASKS {
        wrong.push("too few gave up to prove anything".to_owned());
    }
    wrong.extend(free.err());
    if outcome.free_ms.is_none() {
        wrong.push("its own locks were never free again".to_owned());
    }
    if outcome.settled_ms.is_none() {
        wrong.push(format!("it has not settled within {BOUND:?}"));
    }
    if outcome.memory[2] > outcome.memory[0] + MORE {
        wrong.push(format!("it keeps its memory: {:?} MB", outcome.memory));
    }
    wrong
}

/// The time until another process has had every lock; nothing may be left after that.
async fn others(url: &str) -> Result<Duration, String> {
    let client = opened(url).await;
    let began = Instant::now();
    all_free(&client).await?;
    let free = began.elapsed();
    until_empty(&client).await.map(|()| free)
}

/// Whether a process ends by itself in this time. Otherwise it is killed.
fn ends(child: &mut Child, time: Duration) -> bool {
    let until = Instant::now() + time;
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    let _ = child.wait();
    ended
}

/// Takes every lock once. A store that a busy machine kept from answering is asked again.
async fn all_free(client: &Client) -> Result<(), String> {
    let until = tokio::time::Instant::now() + BOUND;
    for at in 0..TASKS {
        let mutex = mutex(client, at);
        let once = async || mutex.lock().await?.unlock().await;
        let taken = async {
            loop {
                match once().await {
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) =>
                    {
                        sleep(Duration::from_millis(100)).await;
                    }
                    ended => return ended,
                }
            }
        };
        match timeout_at(until, taken).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("{} fails: {error:#}", name(at))),
            Err(_) => return Err(format!("{} is not free within {BOUND:?}", name(at))),
        }
    }
    Ok(())
}

/// Waits until no line has a place.
async fn until_empty(client: &Client) -> Result<(), String> {
    let until = Instant::now() + BOUND;
    for at in 0..TASKS {
        loop {
            let left = match client.inspect(name(at)).await {
                Ok(info) => info.holders.len() + info.waiters.len(),
                Err(error) if error.retryable() => 1,
                Err(error) => return Err(format!("{error:#}")),
            };
            if left == 0 {
                break;
            }
            if Instant::now() > until {
                return Err(format!("{left} are left in the line of {} after {BOUND:?}", name(at)));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// The role of a client process.
pub(crate) fn storm(part: &str) {
    let part: Part = serde_json::from_str(part).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = runtime.block_on(compete(&part));
    std::fs::write(&part.result, serde_json::to_string(&outcome).unwrap()).unwrap();
}

async fn compete(part: &Part) -> Outcome {
    let client = opened(&part.url).await;
    let mut outcome = Outcome::default();
    if let Err(error) = all_free(&client).await {
        return Outcome { error: Some(error), ..outcome };
    }
    outcome.memory[0] = resident();
    let over = Instant::now() + Duration::from_secs(part.seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move { acquire_briefly(&client, at, over).await });
    }
    while let Some(ended) = tasks.join_next().await {
        let (given_up, granted, failed) = ended.unwrap();
        outcome.given_up += given_up;
        outcome.granted += granted;
        outcome.failed += failed;
    }
    outcome.memory[1] = resident();
    let began = Instant::now();
    match all_free(&client).await {
        Ok(()) => outcome.free_ms = Some(u64::try_from(began.elapsed().as_millis()).unwrap()),
        Err(error) => outcome.error = Some(format!("to itself, {error}")),
    }
    if timeout(BOUND, client.settle()).await.is_ok() {
        outcome.settled_ms = Some(u64::try_from(began.elapsed().as_millis()).unwrap());
        // Its own report must be true; the other process's locks come and go.
        if let Err(what) = until_empty(&client).await {
            outcome.error = outcome.error.or(Some(format!("it said that all is given up: {what}")));
        }
    }
    let until = began + BOUND;
    while resident() > outcome.memory[0] + MORE && Instant::now() < until {
        sleep(Duration::from_millis(100)).await;
    }
    outcome.memory[2] = resident();
    outcome
}

/// Gives up by a limit and by dropping the future, in turn.
async fn acquire_briefly(client: &Client, at: usize, over: Instant) -> (usize, usize, usize) {
    let (mut given_up, mut granted, mut failed) = (0, 0, 0);
    let mutex = mutex(client, at);
    while Instant::now() < over {
        let got = if given_up % 2 == 0 {
            mutex.lock_within(GIVE_UP).await
        } else {
            timeout(GIVE_UP, mutex.lock()).await.map_or(Ok(None), |got| got.map(Some))
        };
        match got {
            Ok(None) => given_up += 1,
            Ok(Some(guard)) => {
                granted += 1;
                drop(guard);
            }
            Err(error) => {
                assert!(error.retryable(), "{error:#}");
                failed += 1;
            }
        }
        // If nothing ever waited, this task would never let another run.
        tokio::task::yield_now().await;
    }
    (given_up, granted, failed)
}

/// The memory of this process, in MB; 0 if unknown.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kb.unwrap_or(0) / 1024
}
