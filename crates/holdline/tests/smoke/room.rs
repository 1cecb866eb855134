//! Acquisitions wait while too many places are still to be released (G6), and no longer than an
//! outage of the store may last (G24).

use super::scripted::{Answer, Scripted};
use futures_util::FutureExt;
use holdline::testing::{MOST_UNDONE, undone};
use holdline::{Client, ErrorKind, Mutex};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
use std::sync::Arc;
use std::time::Duration;

/// Gives up as many acquisitions as a client may leave behind.
async fn many_tasks(client: &Client) {
    for number in 0..MOST_UNDONE {
        let lock = Mutex::new(client, number.to_string()).lease(Duration::from_secs(3600));
        assert!(lock.lock().now_or_never().is_none(), "it is not answered");
        tokio::task::yield_now().await; // so that the next may do as much
    }
    assert_eq!(undone(client), MOST_UNDONE);
}

#[tokio::test(flavor = "current_thread")]
async fn a_store_that_has_answered_is_waited_for() {
    let chaos = Chaos::new(holdline::open("memory:").await.expect("opens").store().clone());
    let client = chaos.client();
    client.inspect("x").await.expect("memory works");
    chaos.always(Op::Enter, Fault::HangBefore);
    chaos.always(Op::Leave, Fault::FailBefore);
    many_tasks(&client).await;
    until("the outage is known", async || client.unavailable_for().is_some()).await;
    let lock = Mutex::new(&client, "x");
    let mut waits = Box::pin(lock.lock());
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut waits).await;
    assert!(waited.is_err(), "it ended, and the store is waited for");
    let other = Mutex::new(&client, "y");
    let brief = other.lock_within(Duration::from_millis(10));
    let error = tokio::time::timeout(Duration::from_secs(30), brief).await;
    let error = error.expect("its time is over").expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    chaos.heal();
    waits.await.expect("the store is back").unlock().await.expect("it was held");
}

#[tokio::test(flavor = "current_thread")]
async fn a_store_that_has_never_answered_is_not_waited_for() {
    let chaos = Chaos::new(Arc::new(Scripted::new(|_, _| Answer::Never)));
    chaos.always(Op::Leave, Fault::FailBefore);
    let client = chaos.client();
    many_tasks(&client).await;
    let lock = Mutex::new(&client, "x");
    let error = tokio::time::timeout(Duration::from_secs(30), lock.lock()).await;
    let error = error.expect("it waits for a store that may not exist").expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// The limit holds while there is no room, and nothing is asked for: the store works, and releases
/// more slowly than callers give up.
#[tokio::test(flavor = "current_thread")]
async fn a_limit_ends_the_wait_for_room() {
    let chaos = Chaos::new(holdline::open("memory:").await.expect("opens").store().clone());
    let client = chaos.client();
    let held = Mutex::new(&client, "held").lock().await.expect("memory works");
    chaos.always(Op::Enter, Fault::HangBefore);
    chaos.always(Op::Leave, Fault::HangBefore);
    many_tasks(&client).await;
    chaos.heal();
    chaos.always(Op::Leave, Fault::HangBefore);
    let lock = Mutex::new(&client, "x");
    let entries = async || {
        // An acquisition that is answered ends the outage that releases without an answer begin.
        held.extend(Duration::from_secs(3600)).await.expect("memory works");
        let before = chaos.count(Op::Enter);
        match lock.lock_within(Duration::from_millis(10)).await {
            Ok(None) => Some(chaos.count(Op::Enter) - before),
            Ok(Some(_)) => panic!("there is no room for it"),
            Err(error) if error.kind() == ErrorKind::Unavailable => None, // a new outage
            Err(error) => panic!("{error}"),
        }
    };
    until("an acquisition without an outage", async || entries().await == Some(0)).await;
    chaos.heal();
    lock.lock().await.expect("there is room").unlock().await.expect("it was held");
}
