//! Replies with flipped, cut, repeated and invented bytes: no panic, no hang beyond the bound, and
//! no lock that the server does not have.

use holdline::{Mutex, open};
use holdline_testkit::GarblingProxy;
use holdline_testkit::redis::private;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A bound of an answer is 1.8 s; what is more is for a busy machine.
const BOUND: Duration = Duration::from_secs(4);

async fn conversation(scheme: &str, seed: u64) {
    let Some(server) = private("garble", &[]) else { return };
    let garble = GarblingProxy::to(("127.0.0.1", server.port()), seed).expect("there is a port");
    let options = format!("?scheme={scheme}&prefix=p:");
    let clean = open(&format!("{}{options}", server.url())).await.expect("opens");
    let through = open(&format!("redis://{}{options}", garble.address())).await.expect("opens");
    garble.every(150);
    let panicked = Arc::new(AtomicBool::new(false));
    let (mut held, mut refused) = (0, 0);
    for n in 0..50 {
        let name = format!("name {n}");
        let lock = Mutex::new(&through, &name).lease(Duration::from_secs(5));
        let start = Instant::now();
        let got = tokio::spawn(async move { lock.lock_within(Duration::from_millis(500)).await });
        let got = got.await.unwrap_or_else(|_| {
            panicked.store(true, Ordering::SeqCst);
            Ok(None)
        });
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
        if let Ok(Some(guard)) = got {
            held += 1;
            let info = clean.inspect(&name).await.expect("works");
            let there = info.holders.iter().any(|one| one.id == guard.ticket());
            assert!(there || !guard.is_valid(), "{scheme} {seed} {n}: {info:?}");
            let _ = tokio::time::timeout(BOUND, guard.unlock()).await.expect("no hang");
        } else {
            refused += 1;
        }
        let start = Instant::now();
        let _ = (through.inspect(&name).await, through.list("").await);
        assert!(start.elapsed() < 2 * BOUND, "{:?}", start.elapsed());
    }
    assert!(!panicked.load(Ordering::SeqCst), "{scheme} {seed}");
    assert!(garble.faults() > 20 && held > 0, "{} faults, {held}, {refused}", garble.faults());
    garble.every(0);
    let lock = Mutex::new(&through, "at last").lease(Duration::from_secs(5));
    let got = lock.lock_within(Duration::from_secs(20)).await;
    if got.is_err() {
        // The connection of before had one fault more to come.
        let again = lock.lock_within(Duration::from_secs(20)).await.expect("it answers");
        drop(again.expect("free"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line() {
    for seed in 0..3 {
        conversation("line", seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string() {
    for seed in 0..3 {
        conversation("string", seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash() {
    for seed in 0..3 {
        conversation("redisson", seed).await;
    }
}
