//! Answers that are missing (G7).

use holdline::{Backoff, ErrorKind, Mutex};
use holdline_conformance::{Chaos, Fault, Op};
use std::time::Duration;

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
