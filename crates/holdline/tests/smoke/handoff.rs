//! Local handoff passes a lock on as it is: to a task that wants it so, and to no other (G20).

use futures_util::FutureExt;
use holdline::{Client, Election, ErrorKind, Guard, Mutex, Semaphore};
use holdline_testkit::until;
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

/// While a ticket waits, others have the lock.
#[tokio::test(flavor = "current_thread")]
async fn its_time_begins_with_the_lock() {
    let client = memory().await;
    let held = Mutex::new(&Client::new(client.store().clone()), "x").lock().await;
    let held = held.expect("memory works");
    let time = Duration::from_secs(2);
    let lock = || Mutex::new(&client, "x").handoff(1000, time);
    let (first, next) = (lock(), lock());
    let first = waits(async move { first.lock().await.expect("memory works") }).await;
    until("it waits", async || client.inspect("x").await.expect("works").waiters.len() == 1).await;
    let next = waits(async move { next.lock().await.expect("memory works") }).await;
    tokio::time::sleep(time).await;
    held.unlock().await.expect("it was held");
    let first = first.await.expect("no panic");
    let token = first.token();
    drop(first);
    assert_eq!(next.await.expect("no panic").token(), token + 1, "it was not handed over");
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

/// If the next holder died, others would wait for as long as the last one wanted, and not for the
/// lease (G11).
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_was_extended_is_not_handed_over() {
    let client = memory().await;
    let first = with_handoff(&client).lock().await.expect("memory works");
    let (ticket, next) = (first.ticket(), with_handoff(&client));
    let next = waits(async move { next.lock().await.expect("memory works") }).await;
    first.extend(LEASE * 10).await.expect("memory works");
    first.unlock().await.expect("it was held");
    let next = next.await.expect("no panic");
    assert_ne!(next.ticket(), ticket, "it was handed over");
    assert!(next.remaining() <= LEASE, "{next:?}");
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
    let mut first = mutex.lock().await.expect("memory works");
    for _ in 0..2 {
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
        first = next.await.expect("memory works"); // so that the local queue stays the same
        assert!(first.token() > token);
    }
}

/// One ticket serves as many holders as asked for, and then the others get their turn.
#[tokio::test(flavor = "current_thread")]
async fn it_ends_with_its_number() {
    let client = memory().await;
    let lock = Mutex::new(&client, "x").handoff(3, Duration::from_secs(60));
    let mut held = lock.lock().await.expect("memory works");
    let mut tickets = vec![held.ticket()];
    let mut waiting = std::collections::VecDeque::new();
    for _ in 0..6 {
        let next = lock.clone();
        waiting.push_back(waits(async move { next.lock().await.expect("memory works") }).await);
    }
    while let Some(next) = waiting.pop_front() {
        held.unlock().await.expect("it was held");
        held = next.await.expect("no panic");
        tickets.push(held.ticket());
    }
    let served: Vec<_> = tickets.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    assert_eq!(served, [3, 3, 1]);
}

/// A lost lock is not passed on; its holder is told, and the next task gets a lock of its own.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_lost_is_not_handed_over() {
    let client = memory().await;
    let first = with_handoff(&client).lock().await.expect("memory works");
    let next = with_handoff(&client);
    let next = waits(async move { next.lock().await.expect("memory works") }).await;
    client.force_unlock("x", first.ticket(), "").await.expect("works").expect("it was there");
    first.lost().await;
    let token = first.token();
    let error = first.unlock().await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let next = next.await.expect("no panic");
    assert!(next.is_valid() && next.token() > token + 1, "{next:?}");
}

/// It is lost on the way: after the last holder passed it on, and before the next took it.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_lost_while_it_is_handed_over_is_not_taken() {
    let client = memory().await;
    let lease = Duration::from_millis(500);
    let lock = with_handoff(&client).fixed_lease(lease);
    let first = lock.lock().await.expect("memory works");
    let (token, ticket, notice) = (first.token(), first.ticket(), first.loss_notice());
    let mut next = pin!(lock.lock());
    assert!(next.as_mut().now_or_never().is_none(), "it is held");
    first.unlock().await.expect("it was held");
    assert!(!notice.is_valid(), "its guard is gone");
    tokio::time::sleep(lease).await;
    let next = next.await.expect("memory works");
    assert!(next.is_valid() && next.ticket() != ticket, "{next:?} was lost before");
    assert!(next.token() > token + 1);
}

/// A task that goes away before the release, or after it, is none to hand over to.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_is_not_kept_for_a_task_that_went_away() {
    let client = memory().await;
    let others = with_handoff(&Client::new(client.store().clone()));
    let lock = with_handoff(&client);
    for goes_first in [true, false] {
        let first = lock.lock().await.expect("memory works");
        let mut next = Some(Box::pin(lock.lock()));
        assert!(next.as_mut().and_then(FutureExt::now_or_never).is_none(), "it is held");
        if goes_first {
            next = None;
        }
        first.unlock().await.expect("it was held");
        drop(next);
        client.settle().await;
        let other = others.try_lock().await.expect("memory works");
        assert!(other.is_some(), "it is kept for nobody, who went first: {goes_first}");
    }
}

/// A name's queue in the process ends with its last task: then it may be another kind of lock.
#[tokio::test(flavor = "current_thread")]
async fn a_name_that_no_task_uses_may_be_another_kind_of_lock() {
    let client = memory().await;
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("it was held");
    let semaphore = Semaphore::new(&client, "x", 2);
    semaphore.acquire(2).await.expect("it is free").unlock().await.expect("it was held");
}
