//! The loss notice, and work that can fail under a lock.

use futures_util::FutureExt;
use holdline::{Client, ErrorKind, Loss, Mutex, open};
use holdline_conformance::{Chaos, Fault, Op};
use std::time::Duration;

async fn memory() -> Client {
    open("memory:").await.expect("memory opens")
}

#[tokio::test(flavor = "current_thread")]
async fn a_notice_tells_a_release_from_a_loss() {
    let client = memory().await;
    let mutex = Mutex::new(&client, "x");

    let guard = mutex.lock().await.expect("works");
    let notice = guard.loss_notice();
    let early = tokio::spawn({
        let notice = notice.clone();
        async move { notice.ended().await }
    });
    tokio::task::yield_now().await;
    assert!(notice.is_valid() && !early.is_finished());
    guard.unlock().await.expect("held");
    assert_eq!(early.await.expect("no panic"), None);
    assert_eq!(notice.ended().await, None, "asked late");
    assert!(!notice.is_valid());

    let guard = mutex.lock().await.expect("works");
    let notice = guard.loss_notice();
    drop(guard);
    assert_eq!(notice.ended().await, None, "a drop is a release");

    let guard = mutex.fixed_lease(Duration::from_millis(200)).lock().await.expect("works");
    let notice = guard.loss_notice();
    assert_eq!(notice.ended().await, Some(Loss::Expired));
    drop(guard);
    assert_eq!(notice.ended().await, Some(Loss::Expired), "the guard's end changes nothing");
}

#[tokio::test(flavor = "current_thread")]
async fn a_release_that_takes_long_is_no_loss() {
    let chaos = Chaos::new(memory().await.store().clone());
    chaos.always(Op::Leave, Fault::Delay(Duration::from_millis(100)));
    let guard = Mutex::new(&chaos.client(), "x").lock().await.expect("works");
    let notice = guard.loss_notice();
    let releasing = tokio::spawn(guard.unlock());
    while chaos.count(Op::Leave) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!notice.is_valid());
    assert_eq!(notice.ended().await, None);
    releasing.await.expect("no panic").expect("held");
}

/// A thread asks again and again: a lock is not taken for lost between two looks at it.
#[test]
fn a_release_that_is_seen_as_it_begins_is_no_loss() {
    let client = holdline::blocking::open("memory:").expect("memory opens");
    for _ in 0..300 {
        let guard = client.mutex("x").lock().expect("works");
        let (notice, (begun, begins)) = (guard.loss_notice(), std::sync::mpsc::channel());
        let asks = std::thread::spawn(move || {
            begun.send(()).expect("it is waited for");
            loop {
                if let Some(end) = notice.ended().now_or_never() {
                    return end;
                }
            }
        });
        begins.recv().expect("it begins");
        guard.unlock().expect("held");
        assert_eq!(asks.join().expect("no panic"), None);
    }
}

/// A renewal that the store handles after the release finds no such holder.
#[tokio::test(flavor = "current_thread")]
async fn a_renewal_that_a_release_overtakes_is_no_loss() {
    let chaos = Chaos::new(memory().await.store().clone());
    let late = Duration::from_millis(200);
    chaos.calls(Op::Enter, 1, 1, Fault::Delay(late));
    let mutex = Mutex::new(&chaos.client(), "x").lease(Duration::from_secs(2));
    let guard = mutex.lock().await.expect("works");
    let notice = guard.loss_notice();
    while chaos.count(Op::Enter) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    chaos.always(Op::Leave, Fault::HangAfter); // the release ends after the renewal
    let error = guard.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(notice.ended().await, None);
}

#[tokio::test(flavor = "current_thread")]
async fn a_notice_says_who_broke_the_lock() {
    let client = memory().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    let notice = guard.loss_notice();
    client.force_unlock("x", guard.ticket(), "stuck").await.expect("works").expect("it was there");
    let Some(Loss::Broken { reason, .. }) = notice.ended().await else { panic!("broken") };
    assert_eq!(reason.as_deref(), Some("stuck"));
    guard.unlock().await.expect_err("lost");
    assert!(matches!(notice.ended().await, Some(Loss::Broken { .. })));
}

/// The next holder in the process has the same ticket: its loss is not this guard's.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_was_handed_over_is_not_lost() {
    let client = memory().await;
    let mutex = Mutex::new(&client, "x").handoff(8, Duration::from_secs(60));
    let first = mutex.lock().await.expect("works");
    let notice = first.loss_notice();
    let next = tokio::spawn(async move { mutex.lock().await });
    tokio::task::yield_now().await;
    let token = first.token();
    first.unlock().await.expect("held");
    let second = next.await.expect("no panic").expect("works");
    assert_eq!(second.token(), token + 1, "handed over");
    client.force_unlock("x", second.ticket(), "").await.expect("works").expect("it was there");
    second.lost().await;
    assert_eq!(notice.ended().await, None);
}

#[derive(Debug, PartialEq)]
enum Failure {
    Own,
    Lock(ErrorKind),
}

impl From<holdline::Error> for Failure {
    fn from(error: holdline::Error) -> Self {
        Failure::Lock(error.kind())
    }
}

#[tokio::test(flavor = "current_thread")]
async fn one_error_type_serves_work_and_lock() {
    let client = memory().await;
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    assert_eq!(guard.try_protect(async { Ok::<_, Failure>(7) }).await, Ok(7));
    assert_eq!(guard.try_protect(async { Err::<(), _>(Failure::Own) }).await, Err(Failure::Own));
    client.force_unlock("x", guard.ticket(), "").await.expect("works").expect("it was there");
    let work = guard.try_protect(async {
        std::future::pending::<()>().await;
        Ok::<_, Failure>(())
    });
    assert_eq!(work.await, Err(Failure::Lock(ErrorKind::Lost)));
}

#[test]
fn ids_are_shown_as_the_program_shows_them() {
    let id: holdline::store::TicketId = "00000000000000000000000000c0ffee".parse().expect("an id");
    assert_eq!(format!("{id:?}"), "TicketId(00000000000000000000000000c0ffee)");
}
