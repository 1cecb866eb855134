//! The library's first steps, on the memory store. The conformance suite goes much further.

use holdline::{Client, Multi, Mutex, RwLock, Semaphore, open};
use holdline_conformance::{Chaos, Op};
use holdline_testkit::wait_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

async fn client() -> Client {
    open("memory:").await.expect("memory opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_one_at_a_time_tokens_rise() {
    let client = client().await;
    let (inside, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..64).map(|_| {
        let (lock, inside, last) = (Mutex::new(&client, "x"), inside.clone(), last.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = lock.lock().await.expect("memory works");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                assert!(last.swap(guard.token(), Ordering::SeqCst) < guard.token());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("held to the end");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task fails");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handoff_spares_the_store_and_tokens_rise() {
    let client = client().await;
    let last = Arc::new(AtomicU64::new(0));
    let tasks = (0..32).map(|_| {
        let lock = Mutex::new(&client, "x").handoff(50, Duration::from_secs(5));
        let last = last.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                let guard = lock.lock().await.expect("memory works");
                assert!(last.swap(guard.token(), Ordering::SeqCst) < guard.token());
                drop(guard);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task fails");
    }
    client.settle().await;
    assert!(client.inspect("x").await.expect("works").holders.is_empty());
}

#[tokio::test]
async fn a_try_fails_at_once_and_a_wait_in_time() {
    let (one, two) = (client().await, client().await);
    drop(two);
    let other = Client::new(one.store().clone()); // as another process would be
    let guard = Mutex::new(&one, "x").lock().await.expect("works");
    assert!(Mutex::new(&other, "x").try_lock().await.expect("works").is_none());
    let start = Instant::now();
    let wait = Duration::from_millis(100);
    assert!(Mutex::new(&other, "x").lock_within(wait).await.expect("works").is_none());
    assert!(start.elapsed() >= wait);
    other.settle().await;
    assert!(one.inspect("x").await.expect("works").waiters.is_empty());
    guard.unlock().await.expect("held");
    assert!(Mutex::new(&other, "x").try_lock().await.expect("works").is_some());
}

#[tokio::test]
async fn a_fixed_lease_ends_and_protect_stops_the_work() {
    let client = client().await;
    let lock = Mutex::new(&client, "x").fixed_lease(Duration::from_millis(200));
    let guard = lock.lock().await.expect("works");
    let error = guard.protect(std::future::pending::<()>()).await.expect_err("it is lost");
    assert!(error.is_lost(), "{error:?}");
    assert!(!guard.is_valid());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
}

/// The lease is long, so that the lock is not lost on a busy machine; its renewals are frequent.
#[tokio::test(flavor = "current_thread")]
async fn renewal_outlives_a_blocked_executor() {
    let chaos = Chaos::new(client().await.store().clone());
    let (lease, often) = (Duration::from_secs(60), Duration::from_millis(10));
    let lock = Mutex::new(&chaos.client(), "x").lease(lease).renew_every(often);
    let guard = lock.lock().await.expect("works");
    let first = guard.deadline();
    // The executor is blocked here.
    wait_until("it is renewed five times", || chaos.count(Op::Enter) > 5);
    wait_until("it is held for longer", || guard.deadline() > first + often * 4);
    guard.unlock().await.expect("held to the end");
}

#[tokio::test]
async fn force_unlock_tells_the_holder_and_fences_it() {
    let client = client().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let holder = client.inspect("x").await.expect("works").holders.remove(0);
    assert_eq!(holder.id, guard.ticket());
    let token = client.force_unlock("x", holder.id, "test").await.expect("works").expect("there");
    assert!(token > guard.token());
    tokio::time::timeout(Duration::from_secs(1), guard.lost()).await.expect("told at once");
}

#[tokio::test]
async fn recipes_share_the_rule() {
    let client = client().await;
    let semaphore = Semaphore::new(&client, "s", 2);
    let (one, _two) =
        (semaphore.acquire(1).await.expect("works"), semaphore.acquire(1).await.expect("works"));
    assert!(semaphore.try_acquire(1).await.expect("works").is_none());
    drop(one);
    drop(semaphore.acquire(1).await.expect("free again"));
    let table = RwLock::new(&client, "t");
    let writer = table.write().await.expect("works");
    assert!(table.try_read().await.expect("works").is_none());
    let reader = writer.downgrade().await.expect("held");
    assert!(table.try_read().await.expect("works").is_some());
    assert!(table.try_write().await.expect("works").is_none());
    drop(reader);
    let both = Multi::new(&client, ["b", "a", "b"]).lock().await.expect("works");
    assert_eq!(both.guards().len(), 2);
    both.unlock().await.expect("held");
    assert!(Mutex::new(&client, "s").lock().await.is_err()); // another capacity
}
