//! What a holder may believe after which answer (G4), and why its lock was lost.

use super::scripted::{ADMITTED, Answer, Scripted, waits};
use holdline::store::{Enter, Seq, Standing};
use holdline::{Client, Election, ErrorKind, Loss, Mutex};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_millis(100);

async fn memory() -> Client {
    holdline::open("memory:").await.expect("memory opens")
}

/// Renewals that are not answered.
fn only_first(first: Answer) -> impl Fn(usize, Enter) -> Answer {
    move |before, _| if before == 0 { first } else { Answer::Never }
}

/// The reply takes its time, which is the lease's.
#[tokio::test(flavor = "current_thread")]
async fn a_lease_counts_from_before_its_request() {
    let late = Answer::After(LATE, Standing::Admitted(Seq(7)));
    let client = Scripted::new(only_first(late)).client();
    let guard = Mutex::new(&client, "x").lease(LEASE).lock().await.expect("it is admitted");
    // A margin of a twentieth, and an allowance of 102 ms for clocks.
    assert!(guard.remaining() + LATE + Duration::from_millis(102) <= LEASE * 19 / 20);
}

#[tokio::test(flavor = "current_thread")]
async fn an_extension_counts_from_before_its_request() {
    let late = Answer::After(LATE, Standing::Admitted(Seq(7)));
    let store = Scripted::new(move |before, _| if before == 0 { ADMITTED } else { late });
    let guard = Mutex::new(&store.client(), "x").lease(LEASE).lock().await.expect("admitted");
    let (asked, by) = (Instant::now(), LEASE * 2);
    guard.extend(by).await.expect("it is admitted");
    let (left, since) = (guard.remaining(), asked.elapsed());
    assert!(left + LATE * 9 / 10 <= by, "{left:?} of {by:?} after {since:?}");
    assert!(left + asked.elapsed() >= by, "{left:?} of {by:?} after {since:?}");
}

/// The store keeps the place of a waiter for 3 s, however long the lease.
#[tokio::test(flavor = "current_thread")]
async fn a_notice_is_good_for_a_waiters_lease() {
    let place = Some(Seq(7));
    let store = Scripted::with_notice(place, only_first(waits(place, LEASE)));
    let lock = Mutex::new(&store.client(), "x").lease(LEASE * 100).margin(LATE);
    let guard = lock.lock_within(LEASE).await.expect("it is told").expect("it is told");
    assert_eq!(guard.token(), 7);
    let wait_lease = Duration::from_secs(3);
    assert!(guard.remaining() < wait_lease, "{guard:?}");
    assert_eq!(store.entries()[0].wait_lease, wait_lease);
}

/// A fixed lease is not renewed, so a request confirms the notice and begins the whole of it.
#[tokio::test(flavor = "current_thread")]
async fn a_notice_is_no_fixed_lease() {
    let place = Some(Seq(7));
    let store = Scripted::with_notice(place, move |before, _| match before {
        0 => waits(place, LEASE),
        _ => ADMITTED,
    });
    let lock = Mutex::new(&store.client(), "x").fixed_lease(LEASE);
    let guard = lock.lock().await.expect("it is admitted");
    assert_eq!(store.entries().len(), 2, "{guard:?} was not confirmed");
    assert!(guard.remaining() > LEASE / 2, "{guard:?} is not whole");
}

/// A holder cannot wait again: the store has forgotten that it was admitted.
#[tokio::test(flavor = "current_thread")]
async fn a_holder_that_is_told_to_wait_has_lost_its_lock() {
    for answer in [waits(Some(Seq(7)), LEASE), Answer::Is(Standing::Lost)] {
        let store = Scripted::new(move |before, _| if before == 0 { ADMITTED } else { answer });
        let guard = Mutex::new(&store.client(), "x").lock().await.expect("it is admitted");
        let error = guard.extend(LEASE).await.expect_err("it is not extended");
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Gone)));
        assert!(!guard.is_valid());
    }
}

/// Others may hold it: there is no time left, neither to work nor to stop.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_gone_leaves_no_time() {
    let client = memory().await;
    let lock = Mutex::new(&client, "x").lease(LEASE).margin(LEASE / 3);
    let guard = lock.lock().await.expect("memory works");
    let (stop, left) = (guard.time_to_stop(), guard.remaining());
    let margin = stop.saturating_sub(left);
    assert!(margin > LEASE / 4 && margin < LEASE / 2, "{stop:?} to stop, {left:?} to work");
    client.force_unlock("x", guard.ticket(), "").await.expect("works").expect("it was there");
    guard.lost().await;
    assert_eq!((guard.remaining(), guard.time_to_stop()), (Duration::ZERO, Duration::ZERO));
}

/// Another holder's eviction does not count, and an answer is not asked for again.
#[tokio::test(flavor = "current_thread")]
async fn the_cause_of_a_loss_is_this_tickets_own() {
    for broken in [false, true] {
        let store = Scripted::new(|before, _| match before {
            0 => ADMITTED,
            _ => Answer::Is(Standing::Lost),
        });
        let guard = Mutex::new(&store.client(), "x").lock().await.expect("it is admitted");
        if broken {
            store.evicted(guard.ticket());
        }
        store.evicted(holdline::store::TicketId(1));
        guard.extend(LEASE).await.expect_err("it is gone");
        for _ in 0..2 {
            let loss = guard.loss().await.expect("it is lost");
            assert_eq!(matches!(loss, Loss::Broken { .. }), broken, "{loss:?}");
        }
        assert_eq!(store.snapshots(), 1);
    }
}

/// A cause that the store did not tell is asked for again.
#[tokio::test(flavor = "current_thread")]
async fn a_cause_that_could_not_be_asked_for_is_told_later() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client();
    let guard = Mutex::new(&client, "x").lock().await.expect("memory works");
    client.force_unlock("x", guard.ticket(), "").await.expect("works").expect("it was there");
    guard.lost().await;
    chaos.calls(Op::Snapshot, 0, 1, Fault::FailBefore);
    chaos.calls(Op::Snapshot, 1, 1, Fault::HangBefore);
    for _ in 0..2 {
        let loss = tokio::time::timeout(LEASE, guard.loss()).await.expect("a second is enough");
        assert_eq!(loss, Some(Loss::Gone), "nobody knows more");
    }
    assert!(matches!(guard.loss().await, Some(Loss::Broken { .. })));
}

/// The time to stop is the holder's: its place is given up after it, and not before.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_expired_is_given_up_after_the_time_to_stop() {
    let store = Scripted::new(only_first(ADMITTED));
    let (lease, margin) = (Duration::from_millis(400), Duration::from_millis(200));
    let lock = Mutex::new(&store.client(), "x").fixed_lease(lease).margin(margin);
    let guard = lock.lock().await.expect("it is admitted");
    guard.lost().await;
    loop {
        let left = store.departures();
        if guard.time_to_stop().is_zero() {
            break;
        }
        assert_eq!(left, 0, "it was given up early");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until("it is given up", async || store.departures() > 0).await;
    assert_eq!(guard.loss().await, Some(Loss::Expired));
}

/// It may have been extended in the store, without an answer.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_expired_is_given_up_though_its_guard_is_kept() {
    let chaos = Chaos::new(memory().await.store().clone());
    let lock = Mutex::new(&chaos.client(), "x").fixed_lease(Duration::from_millis(200));
    let guard = lock.lock().await.expect("memory works");
    chaos.calls(Op::Enter, 0, 1, Fault::FailAfter);
    guard.extend(LEASE * 360).await.expect_err("the answer was lost");
    let rival = Mutex::new(&chaos.client(), "x");
    let next = rival.lock_within(LEASE * 3).await.expect("memory works");
    assert!(next.is_some() && !guard.is_valid(), "it was kept for its extension");
}

/// A lock that the store did not have when it was released was lost, and says why.
#[tokio::test(flavor = "current_thread")]
async fn a_release_that_finds_nothing_says_who_broke_the_lock() {
    let client = memory().await;
    let chaos = Chaos::new(client.store().clone());
    let guard = Mutex::new(&chaos.client(), "x").lock().await.expect("memory works");
    // The hint of the loss leads to a request, which is not answered.
    chaos.always(Op::Enter, Fault::HangBefore);
    client.force_unlock("x", guard.ticket(), "stuck").await.expect("works").expect("was there");
    let error = guard.unlock().await.expect_err("it was lost");
    let Some(Loss::Broken { reason, .. }) = error.loss() else { panic!("{error}") };
    assert_eq!(reason.as_deref(), Some("stuck"));
}

#[tokio::test(flavor = "current_thread")]
async fn an_extension_that_the_store_does_not_accept_changes_nothing() {
    let store = Scripted::new(only_first(ADMITTED));
    let guard = Mutex::new(&store.client(), "x").lock().await.expect("it is admitted");
    let error = guard.extend(LEASE * 3600 * 24).await.expect_err("it is too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(guard.is_valid() && store.entries().len() == 1);
}

/// A lock that is held for so long anyway is not refused an extension.
#[tokio::test(flavor = "current_thread")]
async fn an_extension_may_be_short() {
    let store = Scripted::new(|_, _| ADMITTED);
    let lock = Mutex::new(&store.client(), "x").margin(Duration::ZERO);
    let guard = lock.lock().await.expect("it is admitted");
    let before = guard.deadline();
    guard.extend(Duration::ZERO).await.expect("it is held for longer");
    assert!(guard.deadline() + LATE >= before, "it was shortened");
    let shortest = store.client().capabilities().lease_min;
    assert!(store.entries().iter().all(|ticket| ticket.lease >= shortest));
}

/// Of the two ways to set a lease the last one counts.
#[tokio::test(flavor = "current_thread")]
async fn a_lease_after_a_fixed_lease_is_renewed() {
    let store = Scripted::new(|_, _| ADMITTED);
    let lock = Mutex::new(&store.client(), "x").fixed_lease(LEASE).lease(LEASE);
    let guard = lock.renew_every(LATE / 10).lock().await.expect("it is admitted");
    until("it is renewed", async || store.entries().len() > 2).await;
    drop(guard);
}

/// A change of a lock ends with the lock, if that is before its time limit of 5 s.
#[tokio::test(flavor = "current_thread")]
async fn a_change_without_an_answer_ends_with_the_lock() {
    let client = Scripted::new(only_first(ADMITTED)).client();
    let lock = Mutex::new(&client, "x").fixed_lease(LATE * 2);
    let guard = lock.lock().await.expect("it is admitted");
    let error = tokio::time::timeout(LEASE / 4, guard.extend(LEASE)).await;
    let error = error.expect("it is over").expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// A change of a lock that lasts longer than its time limit of 5 s ends with an error; the lock is
/// still held (G25).
#[tokio::test(flavor = "current_thread")]
async fn a_change_without_an_answer_ends_before_the_lock() {
    let client = || Scripted::new(only_first(ADMITTED)).client();
    let long = LEASE * 30;
    let guard = Mutex::new(&client(), "x").fixed_lease(long).lock().await.expect("it is admitted");
    let election = Election::new(&client(), "y").lease(long);
    let leader = election.campaign("old").await.expect("it is admitted");
    let changes = futures_util::future::join(guard.extend(long), leader.proclaim("new"));
    let (extended, proclaimed) = tokio::time::timeout(long / 10, changes).await.expect("both end");
    for error in [extended.expect_err("no answer"), proclaimed.expect_err("no answer")] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(guard.is_valid() && leader.is_valid());
}
