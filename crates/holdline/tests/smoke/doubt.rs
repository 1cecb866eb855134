//! Answers that are missing, late or errors (G7, G24, G25).

use super::scripted::{ADMITTED, Answer, HELD_BY_OTHERS, Scripted, waits};
use futures_util::FutureExt;
use holdline::store::{Enter, Seq, Standing};
use holdline::{Backoff, ErrorKind, Mutex};
use holdline_conformance::{Chaos, Fault, Op};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(10);

/// Its request may come late. Others need not be given up.
#[tokio::test(flavor = "current_thread")]
async fn a_ticket_is_given_up_if_an_answer_is_missing_though_a_later_one_came() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let chaos = Chaos::new(client.store().clone());
    let rival = chaos.client();
    let _held = Mutex::new(&client, "x").lock().await.expect("memory works");
    // Each try is a ticket of its own.
    let lock = Mutex::new(&rival, "x").unfair().poll(Backoff::fixed(Duration::from_millis(10)));
    for missing in [0, 1] {
        chaos.calls(Op::Enter, 0, missing, Fault::FailBefore);
        let taken = lock.lock_within(Duration::from_millis(400)).await.expect("it answers again");
        assert!(taken.is_none(), "it is held");
        rival.settle().await;
        assert_eq!(chaos.count(Op::Leave), missing as usize);
    }
}

/// G7: the store may have repeated the request that took the place, and the first come late.
#[tokio::test(flavor = "current_thread")]
async fn a_ticket_that_has_lost_its_place_is_given_up() {
    let store = Scripted::new(|before, _| match before {
        0 => waits(Some(Seq(7)), Duration::ZERO),
        1 => Answer::Is(Standing::Lost),
        _ => ADMITTED,
    });
    let client = store.client();
    let guard = Mutex::new(&client, "x").lock().await.expect("it is admitted");
    client.settle().await;
    assert_ne!(store.entries()[0].id, guard.ticket());
    assert_eq!(store.departures(), 1);
}

/// A ticket that stays in doubt, as after a lost reply, is answered by a loss. That says nothing
/// about the lock: another ticket is asked about, be it for a try or by a waiter without a place.
#[tokio::test(flavor = "current_thread")]
async fn a_ticket_in_doubt_that_is_lost_is_replaced() {
    let doubted = || {
        Scripted::new(|before, _| match before {
            0 | 1 => Answer::Fails(ErrorKind::Unavailable),
            2 => Answer::Is(Standing::Lost),
            _ => ADMITTED,
        })
    };
    let (tries, waits) = (doubted(), doubted());
    let (one, two) = (tries.client(), waits.client());
    let tried = Mutex::new(&one, "x").try_lock().await.expect("it answers");
    let unfair = Mutex::new(&two, "x").unfair();
    let waited = tokio::time::timeout(SOON * 1000, unfair.lock()).await.expect("it ends");
    let guards = [tried.expect("it is free"), waited.expect("it answers")];
    for (store, client, guard) in [(tries, one, &guards[0]), (waits, two, &guards[1])] {
        client.settle().await;
        let ids: Vec<_> = store.entries().iter().map(|ticket| ticket.id).collect();
        assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[2] != guard.ticket(), "{ids:?}");
        assert_eq!(store.departures(), 1, "the one in doubt is given up");
    }
}

/// A try is told that the lock is taken only if the store said so.
#[tokio::test(flavor = "current_thread")]
async fn a_try_whose_tickets_are_all_lost_is_an_error() {
    let store = Scripted::new(|_, _| Answer::Is(Standing::Lost));
    let error = Mutex::new(&store.client(), "x").try_lock().await.expect_err("nobody holds it");
    assert_eq!((error.kind(), store.entries().len()), (ErrorKind::Unavailable, 5));
    assert!(error.to_string().contains("lost each place"), "{error}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_lost_lock_is_lost_though_the_store_does_not_answer() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let chaos = Chaos::new(client.store().clone());
    let lock = Mutex::new(&chaos.client(), "x").fixed_lease(Duration::from_millis(200));
    let guard = lock.lock().await.expect("memory works");
    chaos.always(Op::Leave, Fault::FailBefore);
    guard.lost().await;
    let error = guard.unlock().await.expect_err("it was lost before");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// A caller who retries what failed would do the work under the lock twice.
#[tokio::test(flavor = "current_thread")]
async fn a_release_without_an_answer_is_not_to_be_retried() {
    let client = holdline::open("memory:").await.expect("memory opens");
    let chaos = Chaos::new(client.store().clone());
    chaos.calls(Op::Leave, 0, 1, Fault::FailBefore);
    let guard = Mutex::new(&chaos.client(), "x").lock().await.expect("memory works");
    let error = guard.unlock().await.expect_err("the store does not confirm it");
    assert_eq!((error.kind(), error.retryable()), (ErrorKind::Unknown, false), "{error}");
}

/// A ticket is never used again: a late release of one attempt would take the place of the next.
#[tokio::test(flavor = "current_thread")]
async fn each_attempt_has_a_ticket_of_its_own() {
    let polls = Scripted::new(|before, _| if before < 4 { HELD_BY_OTHERS } else { ADMITTED });
    let queues = Scripted::new(|before, how| match how {
        Enter::Keep(_) => Answer::Is(Standing::Lost),
        _ if before < 8 => waits(Some(Seq(7)), Duration::ZERO),
        _ => ADMITTED,
    });
    let unfair = |lock: Mutex| lock.unfair().poll(Backoff::fixed(SOON));
    let locks = [
        (polls.clone(), unfair(Mutex::new(&polls.client(), "x")), 1),
        (queues.clone(), Mutex::new(&queues.client(), "x"), 2),
    ];
    for (store, lock, entries_of_each) in locks {
        let guard = lock.lock().await.expect("it is admitted");
        let entries = store.entries();
        let tickets: HashSet<_> = entries.iter().map(|ticket| ticket.id).collect();
        assert_eq!(tickets.len(), entries.len().div_ceil(entries_of_each), "{entries:?}");
        assert_eq!(entries.last().map(|ticket| ticket.id), Some(guard.ticket()));
    }
}

/// It is said at once, and is an answer: the store is there, though it may be the wrong one.
#[tokio::test(flavor = "current_thread")]
async fn an_error_that_no_retry_helps_ends_the_wait() {
    let store = Scripted::new(|_, _| Answer::Fails(ErrorKind::Denied));
    store.departures_fail(&[ErrorKind::Denied; 9]);
    let client = store.client();
    let error = Mutex::new(&client, "x").lock().await.expect_err("it is denied");
    assert_eq!((error.kind(), store.entries().len()), (ErrorKind::Denied, 1));
    assert_eq!((client.unavailable_for(), client.has_answered()), (None, false));
}

/// A store that answers without I/O, be it by notices or by the loss of a place, leaves the other
/// tasks of its thread their turns.
#[test]
fn a_store_that_is_always_ready_does_not_keep_the_thread() {
    let place = Some(Seq(7));
    let tells = Scripted::with_notice(Some(Seq(8)), move |_, _| waits(place, SOON * 1000));
    let loses = Scripted::new(|_, _| Answer::Is(Standing::Lost));
    for store in [tells, loses] {
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let lock = Mutex::new(&store.client(), "x");
                let waits = tokio::spawn(async move { lock.lock().await });
                tokio::time::sleep(SOON).await;
                done.send(store.entries().len()).expect("it is waited for");
                waits.abort();
            });
        });
        let asked = ends.recv_timeout(SOON * 6000).expect("no other task had its turn");
        assert!(asked > 1, "it waited for something else");
    }
}

/// The store's own error says more than that the time is up.
#[tokio::test(flavor = "current_thread")]
async fn the_last_error_of_the_store_is_reported() {
    let store = Scripted::new(|before, _| match before {
        0 => Answer::Fails(ErrorKind::Unavailable),
        _ => Answer::Never,
    });
    let lock = Mutex::new(&store.client(), "x");
    let error = lock.lock_within(SOON * 40).await.expect_err("it was not asked");
    assert_eq!(error.to_string(), "the script says so");
}

/// And what it said before its last answer says nothing of its silence since.
#[tokio::test(flavor = "current_thread")]
async fn an_error_from_before_an_answer_is_not_reported() {
    let store = Scripted::new(|before, _| match before {
        0 => Answer::Fails(ErrorKind::Unavailable),
        1 => waits(Some(Seq(7)), SOON),
        _ => Answer::Never,
    });
    let lock = Mutex::new(&store.client(), "x").lease(SOON * 30);
    let error = lock.lock_within(SOON * 200).await.expect_err("it is silent");
    assert!(error.to_string().contains("did not answer in time"), "{error}");
}

/// An outage that begins during the wait is no answer, be the last request refused or silent.
#[tokio::test(flavor = "current_thread")]
async fn an_outage_until_the_limit_is_an_error_though_others_were_first() {
    for last in [Answer::Fails(ErrorKind::Unavailable), Answer::Never] {
        let store = Scripted::new(move |before, _| match before {
            0 => waits(Some(Seq(7)), SOON),
            1..4 => Answer::Fails(ErrorKind::Unavailable),
            _ => last,
        });
        let lock = Mutex::new(&store.client(), "x");
        // The pauses after three failures are 525 ms at most.
        let error = lock.lock_within(SOON * 100).await.expect_err("it could not be asked");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

/// A silent call is repeated, with its own time limit.
#[tokio::test(flavor = "current_thread")]
async fn a_call_without_an_answer_is_made_again() {
    let store = Scripted::new(|before, _| if before == 0 { Answer::Never } else { ADMITTED });
    let lock = Mutex::new(&store.client(), "x").lease(SOON * 30);
    let guard = tokio::time::timeout(SOON * 1000, lock.lock()).await.expect("it asks again");
    let entries = store.entries();
    assert_eq!(entries[0].id, entries[1].id, "the same ticket is asked about");
    drop(guard);
}

/// A caller may be in more of a hurry than any store can be.
#[tokio::test(flavor = "current_thread")]
async fn a_caller_in_a_hurry_is_no_outage() {
    let chaos = Chaos::new(Arc::new(Scripted::new(|_, _| Answer::Never)));
    chaos.always(Op::Leave, Fault::HangBefore); // the release of the place is no answer either
    let client = chaos.client();
    let lock = Mutex::new(&client, "x");
    lock.lock_within(SOON).await.expect_err("there was no answer");
    assert_eq!(client.unavailable_for(), None, "the store had no time to answer");
    lock.lock_within(SOON * 100).await.expect_err("there was no answer");
    assert!(client.unavailable_for().is_some(), "the store had time to answer");
}

/// A request that is sent as the time runs out has a moment for its answer.
#[tokio::test(flavor = "current_thread")]
async fn a_request_at_the_limit_is_answered() {
    let moment = Answer::After(Duration::from_millis(1), Standing::Admitted(Seq(7)));
    let client = Scripted::new(move |_, _| moment).client().response_timeout(Duration::ZERO);
    let guard = Mutex::new(&client, "x").try_lock().await.expect("there was time");
    assert!(guard.is_some());
}

/// How long a store has been away counts from the first call that failed.
#[tokio::test(flavor = "current_thread")]
async fn an_outage_counts_from_its_first_failure() {
    let store = Scripted::new(|before, _| match before {
        0..2 => Answer::Fails(ErrorKind::Unavailable),
        _ => Answer::Never,
    });
    let client = store.client();
    let lock = Mutex::new(&client, "x");
    let waits = tokio::spawn(async move { lock.lock_within(SOON * 100).await });
    // There is a pause of 25 ms at least between the two.
    let mut away = Duration::ZERO;
    while store.entries().len() < 3 {
        let now = client.unavailable_for().unwrap_or_default();
        assert!(now >= away, "it began anew");
        away = now;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(away >= SOON, "{away:?}");
    waits.abort();
}

/// A task behind one that waits for another client knows that the lock is held.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_another_task_waits_for_is_held() {
    let client = Scripted::new(|_, _| waits(Some(Seq(7)), SOON * 1000)).client();
    let lock = Mutex::new(&client, "x");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    tokio::task::yield_now().await;
    assert!(lock.lock_within(SOON).await.expect("it is known").is_none());
    let at_once = lock.try_lock().now_or_never().expect("a try does not wait");
    assert!(at_once.expect("it is known").is_none());
    first.abort();
}
