//! Renewals of one lock (G14), and the background release of a place (G6).

use super::scripted::{ADMITTED, Answer, Scripted, waits};
use futures_util::FutureExt;
use holdline::store::{Enter, Seq};
use holdline::{Client, ErrorKind, Guard, Loss, Mutex, Semaphore};
use holdline_conformance::{Chaos, Fault, Op};
use std::time::Duration;

const BRIEF: Duration = Duration::from_millis(200);

async fn memory() -> (Chaos, Client) {
    let client = holdline::open("memory:").await.expect("memory opens");
    let chaos = Chaos::new(client.store().clone());
    let client = chaos.client();
    (chaos, client)
}

/// Drops a lock that was extended by an hour while the store does not take it back.
async fn is_given_up_for_an_hour(guard: Guard, chaos: &Chaos, client: &Client) {
    chaos.always(Op::Leave, Fault::FailBefore);
    drop(guard);
    let settled = tokio::time::timeout(BRIEF * 4, client.settle()).await;
    assert!(settled.is_err(), "it is said to be settled, and the place is there for an hour");
    chaos.heal();
    client.settle().await;
    assert_eq!(client.inspect("x").await.expect("memory works").holders, []);
}

/// The store keeps the place for as long as it was extended, and so long it is given up.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_was_extended_is_given_up_for_as_long() {
    let (chaos, client) = memory().await;
    let guard = Mutex::new(&client, "x").lease(BRIEF).lock().await.expect("memory works");
    guard.extend(Duration::from_secs(3600)).await.expect("memory works");
    is_given_up_for_an_hour(guard, &chaos, &client).await;
}

/// So is one whose extension was not confirmed: it may have been carried out.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_whose_extension_was_not_confirmed_is_given_up_for_as_long() {
    let (chaos, client) = memory().await;
    let guard = Mutex::new(&client, "x").fixed_lease(BRIEF).lock().await.expect("memory works");
    chaos.calls(Op::Enter, 0, 1, Fault::FailAfter);
    guard.extend(Duration::from_secs(3600)).await.expect_err("the answer was lost");
    guard.lost().await;
    is_given_up_for_an_hour(guard, &chaos, &client).await;
}

/// A bug of one store is the loss of its own locks, when their leases end, and of no others.
#[tokio::test(flavor = "current_thread")]
async fn a_store_that_panics_in_a_renewal_costs_no_lock_of_another_store() {
    let store = Scripted::new(|_, how| match how {
        Enter::Keep(_) => Answer::Panics,
        _ => ADMITTED,
    });
    let broken = Mutex::new(&store.client(), "x").lease(BRIEF * 4);
    let broken = broken.lock().await.expect("it is admitted");
    let (chaos, client) = memory().await;
    let sound = Mutex::new(&client, "x").lease(BRIEF * 100).renew_every(BRIEF / 10);
    let sound = sound.lock().await.expect("memory works");
    broken.lost().await;
    assert_eq!(broken.loss().await, Some(Loss::Expired));
    assert!(store.entries().len() > 1, "it was not renewed");
    let renewals = chaos.count(Op::Enter);
    while chaos.count(Op::Enter) < renewals + 2 {
        assert!(sound.is_valid(), "{:?}", sound.loss().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sound.unlock().await.expect("it was held");
}

/// A renewal without an answer ends long before the lease does, and says that the store is away.
#[tokio::test(flavor = "current_thread")]
async fn a_renewal_has_a_time_limit() {
    let (chaos, client) = memory().await;
    let guard = Mutex::new(&client, "x").lease(BRIEF * 10).lock().await.expect("memory works");
    chaos.always(Op::Enter, Fault::HangBefore);
    while client.unavailable_for().is_none() {
        assert!(guard.is_valid(), "the renewal was waited for until the lock was lost");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The first renewal is sent after a quarter of the lease, and has another quarter.
    assert!(guard.remaining() > BRIEF, "{guard:?}");
}

/// Also of a lock that a notice granted, whose first renewal is due sooner anyway.
#[tokio::test(flavor = "current_thread")]
async fn renewals_are_as_frequent_as_asked_for() {
    let place = Some(Seq(7));
    let granted = Scripted::new(|_, _| ADMITTED);
    let told = Scripted::with_notice(place, move |before, _| match before {
        0 => waits(place, BRIEF * 100),
        _ => ADMITTED,
    });
    for store in [granted, told] {
        let lock = Mutex::new(&store.client(), "x").renew_every(BRIEF / 10);
        let guard = lock.lock().await.expect("it is admitted");
        let renewed = async {
            while store.entries().len() < 6 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Without a wish, each takes 0.6 s at least.
        tokio::time::timeout(BRIEF * 10, renewed).await.expect("it is renewed every 20 ms");
        drop(guard);
    }
}

/// A failed renewal says that the store is away, and the next that it is back.
#[tokio::test(flavor = "current_thread")]
async fn renewals_tell_whether_the_store_is_there() {
    let (chaos, client) = memory().await;
    let guard = Mutex::new(&client, "x").lease(BRIEF * 10).lock().await.expect("memory works");
    chaos.calls(Op::Enter, 0, 1, Fault::FailBefore);
    for away in [true, false] {
        while client.unavailable_for().is_some() != away {
            assert!(guard.is_valid(), "it is not renewed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Rights may be restored, and the place is there until its lease is over.
#[tokio::test(flavor = "current_thread")]
async fn a_release_is_repeated_until_the_store_confirms_it() {
    let store = Scripted::new(|_, _| ADMITTED);
    let client = store.client();
    let denied = [ErrorKind::Denied, ErrorKind::Unavailable, ErrorKind::Corrupt];
    store.departures_fail(&[denied, denied].concat()[..5]);
    drop(Mutex::new(&client, "x").lock().await.expect("it is admitted"));
    client.settle().await;
    assert_eq!(store.departures(), 6);
}

/// A release without an answer is repeated, and has not happened before.
#[tokio::test(flavor = "current_thread")]
async fn a_release_without_an_answer_is_repeated() {
    let (chaos, client) = memory().await;
    chaos.calls(Op::Leave, 0, 1, Fault::HangBefore);
    drop(Mutex::new(&client, "x").lock().await.expect("memory works"));
    client.settle().await;
    assert_eq!(client.inspect("x").await.expect("memory works").holders, []);
    assert_eq!(chaos.count(Op::Leave), 2);
}

/// The next task asks after the release of a guard that was dropped, which would else be first.
#[tokio::test(flavor = "current_thread")]
async fn the_next_task_asks_after_the_release() {
    let (chaos, client) = memory().await;
    let lock = Mutex::new(&client, "x");
    let guard = lock.lock().await.expect("memory works");
    chaos.calls(Op::Leave, 0, 1, Fault::Delay(BRIEF / 2));
    let next = tokio::spawn(async move { lock.lock().await });
    tokio::task::yield_now().await;
    drop(guard);
    while !next.is_finished() {
        let waiters = client.inspect("x").await.expect("memory works").waiters;
        assert_eq!(waiters, [], "it waits in the store");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let next = next.await.expect("no panic").expect("memory works");
    next.unlock().await.expect("it was held");
    client.settle().await;
    assert_eq!(chaos.count(Op::Leave), 2, "each was released once");
    assert_eq!(chaos.count(Op::Enter), 2, "each asked once");
}

/// Once a release is on its way the next task of a mutex asks, and waits in the store's queue: that
/// saves a trip. Other kinds of lock wait for the answer.
#[tokio::test(flavor = "current_thread")]
async fn the_next_task_of_a_mutex_asks_while_it_is_released() {
    let (chaos, client) = memory().await;
    chaos.always(Op::Leave, Fault::HangBefore);
    let (mutex, semaphore) = (Mutex::new(&client, "x"), Semaphore::new(&client, "y", 2));
    let one = mutex.lock().await.expect("memory works");
    let two = semaphore.acquire(2).await.expect("memory works");
    let (mut one, mut two) = (Box::pin(one.unlock()), Box::pin(two.unlock()));
    let (mut next, mut other) = (Box::pin(mutex.lock()), Box::pin(semaphore.acquire(1)));
    assert!((&mut next).now_or_never().is_none() && (&mut other).now_or_never().is_none());
    assert_eq!(chaos.count(Op::Enter), 2, "one was passed on before it was released");
    assert!((&mut one).now_or_never().is_none() && (&mut two).now_or_never().is_none());
    assert!((&mut next).now_or_never().is_none() && (&mut other).now_or_never().is_none());
    assert_eq!(chaos.count(Op::Enter), 3, "one of them asks");
    assert_eq!(client.inspect("x").await.expect("memory works").waiters.len(), 1);
}

/// A request without an answer may have taken the lock itself, and not only a waiter's place, which
/// would be there for 3 s.
#[tokio::test(flavor = "current_thread")]
async fn an_acquisition_that_was_given_up_may_have_been_granted() {
    let (chaos, client) = memory().await;
    chaos.calls(Op::Enter, 0, 1, Fault::HangAfter);
    chaos.always(Op::Leave, Fault::FailBefore);
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(3600));
    let given_up = tokio::time::timeout(BRIEF / 10, lock.lock()).await;
    assert!(given_up.is_err(), "there was no answer");
    let settled = tokio::time::timeout(Duration::from_millis(3_200), client.settle()).await;
    assert!(settled.is_err(), "it is said to be settled, and the lock is held for an hour");
    chaos.heal();
    client.settle().await;
    assert_eq!(client.inspect("x").await.expect("memory works").holders, []);
}

/// So frequent that the store has no rest, or so rare that one failure costs the lock.
#[tokio::test(flavor = "current_thread")]
async fn an_interval_of_renewals_that_makes_no_sense_is_refused() {
    let (chaos, client) = memory().await;
    for interval in [Duration::ZERO, Duration::from_millis(9), BRIEF / 3] {
        let lock = Mutex::new(&client, "x").lease(BRIEF).renew_every(interval);
        let error = lock.lock().await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{interval:?}: {error}");
    }
    assert_eq!(chaos.count(Op::Enter), 0);
}
