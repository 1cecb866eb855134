//! Renewals of one lock (G14), and a lock that was extended and is given up (G6).

use holdline::{Client, Guard, Mutex};
use holdline_conformance::{Chaos, Fault, Op};
use std::time::Duration;

const BRIEF: Duration = Duration::from_millis(200);

async fn memory() -> (Chaos, Client) {
    let client = holdline::open("memory:").await.expect("memory opens");
    let chaos = Chaos::new(client.store().clone());
    let client = chaos.client();
    (chaos, client)
}

/// A renewal that is due when the answer arrives is sent then.
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_was_granted_late_is_renewed_three_times() {
    let (chaos, client) = memory().await;
    // The first renewal is due 704 ms after the request.
    chaos.calls(Op::Enter, 0, 1, Fault::Delay(Duration::from_millis(800)));
    chaos.calls(Op::Enter, 1, u32::MAX, Fault::FailBefore);
    let lease = Duration::from_secs(3);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("it comes in time");
    guard.lost().await;
    assert_eq!(chaos.count(Op::Enter), 1 + 3);
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
