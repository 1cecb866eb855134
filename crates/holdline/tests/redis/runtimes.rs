//! Connecting anew, by a call whose future is kept and not polled, or whose runtime stands still.

use holdline::{Client, LockInfo, Result, open};
use holdline_testkit::redis::private;
use holdline_testkit::{Link, Way};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system gives a runtime")
}

fn run_a_little(runtime: &Runtime) {
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
}

/// A client of this server through a link, without a connection.
async fn unconnected(port: u16, options: &str) -> (Link, Client) {
    let link = Link::to(("127.0.0.1", port)).expect("there is a port");
    let url = format!("redis://{}{options}", link.address());
    let client = open(&url).await.expect("opens");
    link.cut();
    client.inspect("x").await.expect_err("the link is cut");
    (link, client)
}

/// A call that was polled once, and has no answer yet.
async fn begun(client: &Client) -> Pin<Box<impl Future<Output = Result<LockInfo>>>> {
    let mut call = Box::pin(client.inspect("x"));
    let poll = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
    assert!(poll.await, "it has no connection yet");
    call
}

/// Calls whose futures are kept and not polled, as in a `select!` whose other branch goes on, keep
/// the others from connecting neither while they connect nor while they wait for that.
#[tokio::test]
async fn calls_that_are_not_polled_keep_nobody_from_connecting() {
    let Some(server) = private("unpolled", &[]) else { return };
    for options in ["", "?scheme=string", "?scheme=redisson"] {
        let (link, client) = unconnected(server.port(), options).await;
        link.mend();
        let calls = [begun(&client).await, begun(&client).await];
        client.inspect("y").await.expect("it does not wait for them");
        for call in calls {
            call.await.expect("there is a connection");
        }
    }
}

/// An attempt to connect whose runtime stands still is replaced, and its connection, should it come
/// after all, does not take the place of the newer one.
#[test]
fn an_attempt_whose_runtime_stands_still_is_replaced() {
    let Some(server) = private("replaced", &[]) else { return };
    let (first, second) = (runtime(), runtime());
    let (link, client) = second.block_on(unconnected(server.port(), ""));
    link.mend();
    link.stall(Way::Replies);
    let call = first.block_on(begun(&client));
    run_a_little(&first); // it connects, and hears nothing
    link.mend();
    second.block_on(async {
        if client.inspect("y").await.is_err() {
            client.inspect("y").await.expect("that attempt is over"); // it had waited for it
        }
    });
    run_a_little(&first); // it has connected
    second.block_on(client.inspect("y")).expect("it has the connection of its own runtime");
    drop(call);
}
