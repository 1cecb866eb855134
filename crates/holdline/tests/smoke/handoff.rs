//! Local handoff passes a lock on as it is: to a task that wants it so, and to no other (G20).

use futures_util::FutureExt;
use holdline::{Client, Election, Guard, Mutex};
use std::pin::pin;
use std::time::Duration;
use tokio::task::JoinHandle;

const LEASE: Duration = Duration::from_secs(10);

async fn memory() -> Client {
    holdline::open("memory:").await.expect("memory opens")
}

fn with_handoff(client: &Client) -> Mutex {
    Mutex::new(client, "x").lease(LEASE).handoff(8, Duration::from_secs(60))
}

/// The guard of the next task, which waits while another hands the lock over; and the token of that
/// other one.
async fn next_after(client: &Client, next: Mutex) -> (Guard, u64) {
    let first = with_handoff(client).lock().await.expect("memory works");
    let token = first.token();
    let next = waits(async move { next.lock().await.expect("memory works") }).await;
    drop(first);
    (next.await.expect("no panic"), token)
}

/// Begins to wait for a lock.
async fn waits<T: Send + 'static>(lock: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task = tokio::spawn(lock);
    tokio::task::yield_now().await;
    task
}

#[tokio::test(flavor = "current_thread")]
async fn a_task_with_the_same_terms_gets_it() {
    let client = memory().await;
    let (next, token) = next_after(&client, with_handoff(&client)).await;
    assert_eq!(next.token(), token + 1);
}

/// A ticket takes a number for each holder that it may serve. With too many the line's numbers run
/// away from the clock, and are used up one day.
#[tokio::test(flavor = "current_thread")]
async fn as_many_holders_as_you_like_do_not_use_up_the_tokens() {
    let client = memory().await;
    let lock = Mutex::new(&client, "x").handoff(u32::MAX, Duration::from_secs(1));
    let first = lock.lock().await.expect("memory works").token();
    let next = lock.lock().await.expect("memory works").token();
    assert!(next - first < 10_000_000, "{} more", next - first);
}

#[tokio::test(flavor = "current_thread")]
async fn it_ends_with_its_time() {
    let client = memory().await;
    let time = Duration::from_millis(50);
    let lock = || Mutex::new(&client, "x").handoff(1000, time);
    let first = lock().lock().await.expect("memory works");
    let (token, next) = (first.token(), lock());
    let next = waits(async move { next.lock().await.expect("memory works") }).await;
    tokio::time::sleep(time * 2).await;
    drop(first);
    assert!(next.await.expect("no panic").token() >= token + 1000, "it was handed over");
}

/// A lease, a margin or renewals other than those of the lock that is there.
#[tokio::test(flavor = "current_thread")]
async fn a_task_with_other_terms_gets_what_it_asked_for() {
    let client = memory().await;
    let (margin, rest) = (Duration::from_secs(4), Duration::from_secs(6));
    let (next, token) = next_after(&client, with_handoff(&client).margin(margin)).await;
    assert!(next.token() > token + 1, "the lock was handed over");
    assert!(next.remaining() <= rest, "{next:?} is told too late");
    drop(next);
    let lease = Duration::from_millis(300);
    let (next, _) = next_after(&client, with_handoff(&client).fixed_lease(lease)).await;
    assert!(next.remaining() <= lease, "{next:?} is no fixed lease");
}

#[tokio::test(flavor = "current_thread")]
async fn an_elected_leader_publishes_its_value() {
    let client = memory().await;
    let first = with_handoff(&client).lock().await.expect("memory works");
    let election = Election::new(&client, "x");
    let candidate = election.clone();
    let leader = waits(async move { candidate.campaign("10.0.0.1:80").await }).await;
    drop(first);
    let leader = leader.await.expect("no panic").expect("memory works");
    let seen = election.leader().await.expect("memory works").expect("somebody leads");
    assert_eq!((seen.value.as_str(), seen.token), ("10.0.0.1:80", leader.token()));
}

/// The next task's future is kept but not polled, as a branch of a `select!` may be.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_no_task_comes_for_is_released() {
    let client = memory().await;
    let others = with_handoff(&Client::new(client.store().clone()));
    let mutex = with_handoff(&client);
    for _ in 0..2 {
        let first = mutex.lock().await.expect("memory works");
        let token = first.token();
        let mut next = pin!(mutex.lock());
        assert!(next.as_mut().now_or_never().is_none(), "it is held");
        first.unlock().await.expect("it was held");
        assert!(others.try_lock().await.expect("memory works").is_none(), "it was not handed over");
        let other = others.lock_within(LEASE).await.expect("memory works");
        let other = other.expect("nobody has come for it");
        assert!(other.token() > token);
        assert!(next.as_mut().now_or_never().is_none(), "two hold it");
        let token = other.token();
        other.unlock().await.expect("it was held");
        assert!(next.await.expect("memory works").token() > token);
    }
}
