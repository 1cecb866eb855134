//! A store used by several runtimes, as in a program that blocks on one future at a time.

use crate::server::databases;
use holdline::{Client, LockInfo, Mutex, Result, open};
use holdline_testkit::until;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system gives a runtime")
}

/// A connection made in one runtime serves calls of another, even if the first is not running or is
/// gone.
#[test]
fn calls_do_not_depend_on_the_runtime_of_those_before() {
    let (first, second) = (runtime(), runtime());
    for database in first.block_on(databases("runtimes")) {
        let timeout = Duration::from_secs(20);
        let client = first.block_on(async {
            let client = open(&database.url("&timeout=20s")).await.expect("opens");
            Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
            client
        });
        let began = Instant::now();
        second.block_on(async {
            let lock = Mutex::new(&client, "x").lease(timeout * 3);
            lock.lock().await.expect("works").unlock().await.expect("held");
        });
        assert!(began.elapsed() < timeout / 4, "it waits for a runtime that does not run");
    }
}

/// A call that was sent but has no answer yet.
async fn begun(client: &Client) -> Pin<Box<impl Future<Output = Result<LockInfo>>>> {
    loop {
        let mut call = Box::pin(client.inspect("x"));
        let poll = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
        if poll.await {
            return call;
        }
    }
}

/// Calls whose futures are kept without being polled, as in a `select!` whose other branch goes on,
/// do not block the connection: neither a call that was sent, nor one whose turn is next.
#[test]
fn calls_that_are_not_polled_keep_nobody_waiting() {
    let runtime = runtime();
    for database in runtime.block_on(databases("unpolled")) {
        runtime.block_on(async {
            let client = open(&database.url("&timeout=20s")).await.expect("opens");
            let calls = [begun(&client).await, begun(&client).await];
            let other = tokio::time::timeout(Duration::from_secs(10), client.inspect("y")).await;
            other.expect("it does not wait for them").expect("it is answered");
            for call in calls {
                call.await.expect("it is answered");
            }
        });
    }
}

/// A runtime that runs only now and then, as one that a program blocks on, may stand still in the
/// middle of a call. Calls of other runtimes wait for no longer than that call's time.
#[test]
fn a_runtime_that_stands_still_does_not_keep_the_others_waiting() {
    let (still, other) = (runtime(), runtime());
    for database in still.block_on(databases("standing")) {
        let url = database.url("&timeout=2s");
        let client = still.block_on(open(&url)).expect("opens");
        let calls = still.block_on(async {
            let calls = [begun(&client).await, begun(&client).await];
            tokio::task::yield_now().await; // one is sent
            calls
        });
        other.block_on(until("an answer", async || client.inspect("y").await.is_ok()));
        drop(calls);
        still.block_on(client.inspect("x")).expect("works");
        other.block_on(client.inspect("y")).expect("works");
    }
}

/// A program that stalls in the middle of a call does not lose its locks.
#[test]
fn renewals_go_on_while_a_call_stands_still() {
    let runtime = runtime();
    for database in runtime.block_on(databases("still")) {
        runtime.block_on(async {
            let client = open(&database.url("&timeout=20s")).await.expect("opens");
            let lease = Duration::from_secs(4);
            let guard = Mutex::new(&client, "held").lease(lease).lock().await.expect("works");
            let call = begun(&client).await;
            std::thread::sleep(lease + lease / 4);
            assert!(guard.is_valid(), "it was not renewed");
            drop(call); // its time may be up
            guard.unlock().await.expect("held");
        });
    }
}
