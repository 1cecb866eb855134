//! The traps of GUARANTEES.md that a test can show: T2, a guard that is forgotten; T5, a future
//! that is not polled. And what is none: a paused clock.

use futures_util::FutureExt;
use holdline::Mutex;
use holdline_conformance::{Chaos, Op};
use holdline_testkit::until;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(500);

/// The lease is long, so that the lock is not lost on a busy machine; its renewals are frequent.
#[tokio::test]
async fn a_forgotten_guard_is_held_as_long_as_the_process_lives() {
    let chaos = Chaos::new(holdline::open("memory:").await.expect("memory opens").store().clone());
    let (client, rival) = (chaos.client(), chaos.client());
    let (lease, often) = (LEASE * 100, LEASE / 50);
    let lock = Mutex::new(&client, "x").lease(lease).renew_every(often);
    std::mem::forget(lock.lock().await.expect("memory works"));
    until("it is renewed", async || {
        let renewed = chaos.count(Op::Enter) > 20;
        // Without the renewals, 200 ms of its lease are over by now.
        let holders = client.inspect("x").await.expect("memory works").holders;
        renewed && holders[0].expires_in + often * 10 > lease
    })
    .await;
    let taken = Mutex::new(&rival, "x").try_lock().await.expect("memory works");
    assert!(taken.is_none(), "nobody renews it");
    client.settle().await; // it was never dropped, and nothing is given up
    assert_eq!(client.inspect("x").await.expect("memory works").holders.len(), 1);
}

#[tokio::test]
async fn a_forgotten_guard_with_a_fixed_lease_ends_with_it() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let lock = Mutex::new(&client, "x").fixed_lease(LEASE);
    std::mem::forget(lock.lock().await.expect("memory works"));
    let rival = holdline::Client::new(client.store().clone());
    Mutex::new(&rival, "x").lock().await.expect("memory works").unlock().await.expect("held");
}

#[tokio::test]
async fn an_acquisition_that_is_not_polled_holds_up_its_own_client_and_no_other() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let (lock, long) = (Mutex::new(&client, "x"), LEASE * 60);
    let held = lock.lock().await.expect("memory works");
    let mut kept = Box::pin(lock.lock());
    assert!((&mut kept).now_or_never().is_none(), "it is held");
    held.unlock().await.expect("held");
    assert!(lock.lock_within(LEASE).await.expect("memory works").is_none(), "it is not its turn");
    let rival = Mutex::new(&holdline::Client::new(client.store().clone()), "x");
    rival.try_lock().await.expect("memory works").expect("free").unlock().await.expect("held");
    drop(kept);
    assert!(lock.lock_within(long).await.expect("memory works").is_some());
}

/// Leases and waits take real time; the time that a test skips is none of theirs.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_of_tokio_changes_nothing() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let rival = Mutex::new(&holdline::Client::new(client.store().clone()), "x");
    let guard = Mutex::new(&client, "x").lease(LEASE * 100).lock().await.expect("memory works");
    let began = std::time::Instant::now();
    tokio::select! {
        () = guard.lost() => panic!("it is held"),
        taken = rival.lock_within(LEASE / 5) => assert!(taken.expect("memory works").is_none()),
    }
    assert!(began.elapsed() >= LEASE / 5);
    tokio::time::advance(LEASE * 10_000).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
}
