//! Clients whose requests are late, lost and repeated at random: each has several ways to the
//! servers, which fail by turns. At no time do too many hold a lock, and nothing is left in the
//! end.

use crate::eventually::{soon, until};
use crate::flaky_links::FlakyLinks;
use crate::link::{Link, Way};
use futures_util::future::join_all;
use holdline::{Client, Guard, Mutex, RwLock, Semaphore, WriteGuard, open};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The servers, and the clients' locks.
#[derive(Debug)]
pub struct Plan {
    /// The URL's scheme.
    pub scheme: &'static str,
    /// The servers, one for each way to them.
    pub hosts: Vec<String>,
    /// The part of the URL after the servers.
    pub options: &'static str,
    /// The lease of the locks.
    pub lease: Duration,
}

const CLIENTS: usize = 3;
const TASKS: usize = 4;
const WRITER: u32 = 1 << 30;
/// How long the links fail at least.
const FAILING: Duration = Duration::from_secs(15);

/// A guard of any recipe.
enum Held {
    Plain(Guard),
    Write(WriteGuard),
}

impl Held {
    fn guard(&self) -> &Guard {
        match self {
            Held::Plain(guard) => guard,
            Held::Write(guard) => guard,
        }
    }

    async fn unlock(self) {
        let _ = match self {
            Held::Plain(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
        };
    }
}

/// The name of a lock, and a holder's token.
type Hold = (&'static str, u64);

/// The holders of all locks, by what they believe.
#[derive(Default)]
struct Holders {
    /// The holders, with their weights.
    all: std::sync::Mutex<HashMap<Hold, (Held, u32)>>,
    grants: AtomicU64,
}

impl Holders {
    /// Adds a holder of a lock with this capacity.
    fn add(&self, name: &'static str, held: Held, weight: u32, capacity: u32) -> u64 {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let token = held.guard().token();
        let mut all = self.all.lock().expect("no panic");
        // One that is valid now, was valid when the new one came.
        let others =
            all.iter().filter(|((of, _), (held, _))| *of == name && held.guard().is_valid());
        let others: Vec<_> = others.map(|((_, token), (_, weight))| (*token, *weight)).collect();
        let sum = others.iter().map(|(_, weight)| weight).sum::<u32>() + weight;
        let fits = sum <= capacity || !held.guard().is_valid();
        assert!(fits, "{name}: {weight} with token {token} beside {others:?}");
        all.insert((name, token), (held, weight));
        token
    }

    fn take(&self, name: &'static str, token: u64) -> Held {
        self.all.lock().expect("no panic").remove(&(name, token)).expect("it is there").0
    }
}

fn random(millis: u64) -> Duration {
    Duration::from_micros(fastrand::u64(..millis * 1000))
}

/// Lets a link fail in one way after another.
async fn fail(link: &Link, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        sleep(random(600)).await;
        match fastrand::u8(..6) {
            0 | 1 => link.stall(Way::Requests),
            2 => link.stall(Way::Replies),
            3 => link.delay(random(100)),
            4 => link.lose_next_reply(),
            _ => link.reset(),
        }
        sleep(random(1500)).await;
        link.mend();
    }
}

/// Acquires one lock in some way, perhaps without waiting for the outcome.
async fn acquire(client: &Client, lease: Duration) -> Option<(&'static str, Held, u32, u32)> {
    let wait = random(500);
    let mutex = Mutex::new(client, "m").lease(lease);
    let permits = Semaphore::new(client, "s", 3).lease(lease);
    let rwlock = RwLock::new(client, "r").lease(lease);
    let weight = fastrand::u32(1..=3);
    let plain = |guard| Some(Held::Plain(guard));
    let (name, held, weight, capacity) = match fastrand::u8(..8) {
        0 => ("m", mutex.try_lock().await.ok()?.and_then(plain), 1, 1),
        1 => ("m", mutex.lock_within(wait).await.ok()?.and_then(plain), 1, 1),
        2 => ("m", timeout(wait, mutex.lock()).await.ok()?.ok().and_then(plain), 1, 1),
        3 => ("s", permits.try_acquire(weight).await.ok()?.and_then(plain), weight, 3),
        4 => (
            "s",
            timeout(wait, permits.acquire(weight)).await.ok()?.ok().and_then(plain),
            weight,
            3,
        ),
        5 => ("r", timeout(wait, rwlock.read()).await.ok()?.ok().and_then(plain), 1, WRITER),
        6 => ("r", rwlock.try_write().await.ok()?.map(Held::Write), WRITER, WRITER),
        _ => ("r", timeout(wait, rwlock.write()).await.ok()?.ok().map(Held::Write), WRITER, WRITER),
    };
    Some((name, held?, weight, capacity))
}

/// Acquires one lock, changes and holds it for a while, and releases it.
async fn lock(client: &Client, lease: Duration, holders: &Holders) {
    let Some((name, held, weight, capacity)) = acquire(client, lease).await else {
        return sleep(random(20)).await;
    };
    let mut token = holders.add(name, held, weight, capacity);
    sleep(random(50)).await;
    let held = match (holders.take(name, token), fastrand::u8(..4)) {
        (Held::Write(guard), 0 | 1) => match timeout(random(20), guard.downgrade()).await {
            Ok(Ok(guard)) => {
                token = holders.add(name, Held::Plain(guard), 1, capacity);
                sleep(random(50)).await;
                holders.take(name, token)
            }
            Ok(Err((guard, _))) => Held::Write(guard),
            Err(_) => return,
        },
        (held, 0 | 2) => {
            let longer = lease * fastrand::u32(1..5);
            let _ = timeout(random(20), held.guard().extend(longer)).await;
            token = holders.add(name, held, weight, capacity);
            sleep(random(100)).await;
            holders.take(name, token)
        }
        (held, _) => held,
    };
    match fastrand::u8(..3) {
        0 => drop(held),
        1 => drop(timeout(random(5), held.unlock()).await),
        _ => held.unlock().await,
    }
}

/// Runs the clients, and then checks that nothing is left of them.
///
/// # Panics
///
/// If too many held a lock, or anything is left.
pub async fn run(plan: Plan) {
    let Plan { scheme, hosts, options, lease } = plan;
    let (holders, over) = (Arc::<Holders>::default(), Arc::<AtomicBool>::default());
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let flaky = Arc::new(FlakyLinks::to(scheme, &hosts, options));
        let client = flaky.client().await;
        for _ in 0..TASKS {
            let (client, holders) = (client.clone(), Arc::clone(&holders));
            let over = Arc::clone(&over);
            tasks.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    lock(&client, lease, &holders).await;
                }
            }));
        }
        for at in 0..hosts.len() {
            let (flaky, over) = (Arc::clone(&flaky), Arc::clone(&over));
            tasks.push(tokio::spawn(async move { fail(&flaky.links[at], &over).await }));
        }
        clients.push((client, flaky));
    }
    sleep(FAILING).await;
    // A busy machine is slow, too.
    until("enough was held", async || holders.grants.load(Ordering::Relaxed) > 20).await;
    over.store(true, Ordering::Relaxed);
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    // The clients live on, so that nothing ends with them.
    let other =
        open(&format!("{scheme}://{}{options}", hosts.join(","))).await.expect("a good URL");
    // From then on it waits for a server that a busy machine delays.
    until("an answer", async || other.list("").await.is_ok()).await;
    let mutex = Mutex::new(&other, "m").lease(lease);
    soon("the mutex", mutex.lock()).await.expect("there").unlock().await.expect("held");
    let permits = Semaphore::new(&other, "s", 3).lease(lease);
    soon("all permits", permits.acquire(3)).await.expect("there").unlock().await.expect("held");
    let rwlock = RwLock::new(&other, "r").lease(lease);
    soon("the writer", rwlock.write()).await.expect("there").unlock().await.expect("held");
    for (client, _) in &clients {
        soon("the rest", client.settle()).await;
    }
    until("nothing left", async || other.list("").await.is_ok_and(|names| names.is_empty())).await;
}
