//! Conversations in which bytes are flipped, cut, repeated and invented: errors, and no lock for
//! which the store has no place.
//!
//! A place, not the first place: a contender reads its standing from the keys before its own, and a
//! flipped byte in one of them can hide it. Nothing in a plain connection can tell; TLS can.

use futures_util::future::join_all;
use holdline::{Client, LockInfo, Mutex, Semaphore, open};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::{GarblingProxy, soon};
use std::time::{Duration, Instant};

/// Longer than any operation may take that has a limit of a second, or the default one.
const BOUND: Duration = Duration::from_secs(6);

/// So many locks and faults of each client show something.
const ENOUGH: u64 = 10;

/// A client whose servers' answers are spoiled, and how often it got what the store had.
async fn suffer(servers: &Servers, witness: &Client, seed: u64, every: u64) -> (u64, u64) {
    let garble = GarblingProxy::to(&servers.hosts()[0], seed).expect("a port is free");
    let client = open(&format!("etcd://{}", garble.address())).await.expect("a good URL");
    let (mut granted, start) = (0, Instant::now());
    // On a busy machine until there was enough of both.
    let (least, most) = (Duration::from_secs(8), Duration::from_secs(60));
    let (names, long) = (["g", "h", "s"], Duration::from_secs(1));
    for round in 0.. {
        let enough = start.elapsed() > least && granted.min(garble.faults()) > ENOUGH;
        if enough || start.elapsed() > most {
            break;
        }
        garble.every(if round % 4 == 0 { 0 } else { every });
        let began = Instant::now();
        let name = names[round % 3];
        let got = match round % 3 {
            0 => Mutex::new(&client, name).lock_within(long).await,
            1 => Mutex::new(&client, name).try_lock().await,
            _ => Semaphore::new(&client, name, 3).acquire_within(1, long).await,
        };
        let _ = client.inspect(name).await;
        if let Ok(Some(guard)) = got {
            let info = soon("what is there", seen(witness, name)).await;
            let mut places = info.holders.iter().chain(&info.waiters);
            let there = places.any(|party| party.id == guard.ticket());
            if guard.is_valid() {
                assert!(there, "seed {seed}: {:?} is not in the store: {info:?}", guard.ticket());
                granted += 1;
            }
            let _ = tokio::time::timeout(BOUND, guard.unlock()).await.expect("it ends");
        }
        assert!(began.elapsed() < 3 * BOUND, "seed {seed}: {:?}", began.elapsed());
    }
    garble.every(0);
    let lock = Mutex::new(&client, "g");
    let guard = soon("a lock, once it is over", lock.lock()).await.expect("it is there");
    guard.unlock().await.expect("held");
    (granted, garble.faults())
}

/// What the store has, by a client whose answers are not spoiled; they may be late.
async fn seen(witness: &Client, name: &str) -> LockInfo {
    loop {
        match witness.inspect(name).await {
            Ok(info) => return info,
            Err(error) => assert!(error.retryable(), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spoiled_answers_are_errors_and_never_locks() {
    let Some(servers) = start(1) else { return };
    let witness = servers.client().await;
    let all = (1..=6).map(|seed| suffer(&servers, &witness, seed, 300 << (seed % 3)));
    let all = join_all(all).await;
    println!("locks and faults: {all:?}");
    let faults: u64 = all.iter().map(|(_, faults)| faults).sum();
    let granted: u64 = all.iter().map(|(granted, _)| granted).sum();
    let enough = 6 * ENOUGH;
    assert!(faults > enough && granted > enough, "{granted} locks, {faults} faults");
}
