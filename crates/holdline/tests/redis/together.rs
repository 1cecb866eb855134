//! Calls that come at the same time go to the server as one, and stay each its own.

use crate::fake;
use crate::first::until_listening;
use futures_util::future::join_all;
use holdline::store::{Enter, Standing, Store, Ticket, TicketId};
use holdline::{Client, ErrorKind, Mutex, Name, open};
use holdline_testkit::Link;
use holdline_testkit::redis::{Server, private};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

fn calls(server: &Server) -> u64 {
    let text: String = server.query(&["INFO", "commandstats"]);
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn ticket(n: u128) -> Ticket {
    holdline_testkit::ticket(n, Duration::from_secs(30))
}

fn line(n: u128) -> Name {
    Name::new(format!("line {n}")).expect("a good name")
}

/// What became of entering lines 0 to 99 at once, each by the ticket of its number.
async fn enter_all(store: &Arc<dyn Store>) -> Vec<holdline::Result<Standing>> {
    let note = Arc::from("note");
    let enter = |n| {
        let note = Arc::clone(&note);
        async move { store.enter(&line(n), &ticket(n), &note, Enter::Queue).await }
    };
    join_all((0..100).map(enter)).await
}

async fn holder(client: &Client, n: u128) -> Option<TicketId> {
    let info = client.inspect(line(n).as_str()).await.expect("works");
    assert!(info.holders.len() <= 1 && info.waiters.is_empty(), "{info:?}");
    info.holders.first().map(|holder| holder.id)
}

#[tokio::test]
async fn each_gets_its_own_answer() {
    let Some(server) = private("together", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let _: () = server.query(&["RPUSH", "holdline:{line 42}", "somebody else's"]);
    let before = calls(&server);
    let answers = enter_all(client.store()).await;
    // Two alone, the others in a full call and a smaller one; the script is not known at first.
    assert!(calls(&server) - before <= 8, "{}", calls(&server) - before);
    for (n, answer) in (0..).zip(answers) {
        match answer {
            Err(error) => assert_eq!((n, error.kind()), (42, ErrorKind::Corrupt), "{error}"),
            Ok(Standing::Admitted(_)) => assert_eq!(holder(&client, n).await, Some(TicketId(n))),
            Ok(other) => panic!("{n}: {other:?}"),
        }
    }
    let store = client.store();
    let leave = |n| async move { (n, store.leave(&line(n), TicketId(n)).await) };
    for (n, answer) in join_all((0..100).map(leave)).await {
        assert_eq!(answer.ok(), (n != 42).then_some(true), "{n}");
    }
}

/// A server that is loading its data whenever it is asked about one line, and whose reply about
/// several is the number of one place.
fn confused() -> u16 {
    fake::server(|words| {
        let reply = match words {
            ["INFO", ..] => "$0\r\n\r\n",
            ["EVALSHA", _, "1", ..] => "-LOADING for ever\r\n",
            ["EVALSHA", ..] => ":1700000000000000\r\n",
            _ => "-ERR unknown command\r\n",
        };
        reply.to_owned()
    })
}

/// A reply that is not one for each is nobody's: it may be that to another call.
#[tokio::test]
async fn one_answer_to_many_is_nobodys() {
    let client = open(&format!("redis://127.0.0.1:{}", confused())).await.expect("opens");
    for (n, answer) in (0..).zip(enter_all(client.store()).await) {
        let error = answer.expect_err(&format!("{n} has no place"));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{n}: {error}");
    }
}

/// The lines of a batch are read by one command, or one by one if the user is not allowed to it.
#[tokio::test]
async fn a_batch_reads_its_lines_by_one_command() {
    let Some(server) = private("together_read", &[]) else { return };
    let read = |command: &str| {
        let text: String = server.query(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let _: () =
        server.query(&["ACL", "SETUSER", "app", "on", ">canary", "~*", "&*", "+@all", "-mget"]);
    let limited = format!("redis://app:canary@127.0.0.1:{}", server.port());
    for (url, allowed) in [(server.url().to_owned(), true), (limited, false)] {
        let client = open(&url).await.expect("opens");
        let store = client.store();
        enter_all(store).await; // everything is connected, and known
        let _: () = server.query(&["CONFIG", "RESETSTAT"]);
        for (n, answer) in (0..).zip(enter_all(store).await) {
            assert!(matches!(answer, Ok(Standing::Admitted(_))), "{n}: {answer:?}");
        }
        // Two alone, the others in five full or smaller calls.
        let (many, one) = (read("mget"), read("get"));
        if allowed {
            assert!((5..=8).contains(&many) && one <= 10, "{many} {one}");
        } else {
            assert_eq!((many, one), (0, 100));
        }
        for n in 0..100 {
            assert!(store.leave(&line(n), TicketId(n)).await.expect("works"), "{n}");
        }
    }
}

/// The reply to all of them is lost, after the server has done it all: each is settled by asking
/// again, and nobody holds what he does not know of.
#[tokio::test]
async fn a_lost_reply_is_settled_for_each() {
    let Some(server) = private("together_lost", &[]) else { return };
    let link = Link::to(("127.0.0.1", server.port())).expect("a free port");
    let client = open(&format!("redis://{}", link.address())).await.expect("opens");
    let direct = open(server.url()).await.expect("opens");
    enter_all(client.store()).await; // everything is connected, and known
    for _ in 0..5 {
        link.lose_next_reply();
        for (n, answer) in (0..).zip(enter_all(client.store()).await) {
            assert!(matches!(answer, Ok(Standing::Admitted(_))), "{n}: {answer:?}");
            assert_eq!(holder(&direct, n).await, Some(TicketId(n)));
        }
        assert_eq!(link.replies_to_lose(), 0);
    }
}

/// Futures that are dropped while their call waits for others, or is under way, hold nothing up.
#[tokio::test]
async fn an_abandoned_call_takes_no_other_along() {
    let Some(server) = private("together_dropped", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let store = Arc::clone(client.store());
    for round in 0..50_u64 {
        let note = Arc::from("note");
        let enter = |n| {
            let (store, note) = (Arc::clone(&store), Arc::clone(&note));
            async move { store.enter(&line(n), &ticket(n), &note, Enter::Queue).await }
        };
        let mut tasks: Vec<_> = (0..40).map(|n| tokio::spawn(enter(n))).collect();
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        for task in tasks.iter().step_by(3) {
            task.abort();
        }
        for (n, task) in tasks.drain(..).enumerate().filter(|(n, _)| n % 3 != 0) {
            let answer = task.await.expect("was not aborted");
            assert!(matches!(answer, Ok(Standing::Admitted(_))), "{n}: {answer:?}");
        }
        join_all((0..40).map(|n| {
            let store = Arc::clone(&store);
            async move { store.leave(&line(n), TicketId(n)).await.expect("works") }
        }))
        .await;
        for n in 0..40 {
            assert_eq!(holder(&client, n).await, None, "round {round}");
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system gives a runtime")
}

/// A runtime that ends with calls in its hands lets those of another go on.
#[test]
fn a_runtime_may_end_with_the_queue_in_its_hands() {
    let Some(server) = private("together_runtime", &[]) else { return };
    let client = runtime().block_on(open(server.url())).expect("opens");
    let second = runtime();
    for _ in 0..5 {
        let first = runtime();
        let store = Arc::clone(client.store());
        first.block_on(async {
            let all = tokio::spawn(async move { enter_all(&store).await.len() });
            tokio::task::yield_now().await;
            drop(all);
        });
        drop(first);
        let start = Instant::now();
        second.block_on(async {
            for answer in enter_all(client.store()).await {
                assert!(matches!(answer, Ok(Standing::Admitted(_))), "{answer:?}");
            }
        });
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }
}

/// So does one that is not driven any more.
#[test]
fn a_runtime_may_stand_still_with_the_queue_in_its_hands() {
    let Some(server) = private("together_still", &[]) else { return };
    let (first, second) = (runtime(), runtime());
    let client = second.block_on(open(server.url())).expect("opens");
    second.block_on(enter_all(client.store())); // it has the connection
    let store = Arc::clone(client.store());
    first.block_on(async {
        drop(tokio::spawn(async move { enter_all(&store).await.len() }));
        tokio::task::yield_now().await;
    });
    let all = async {
        let all = enter_all(client.store());
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("none hangs")
    };
    for answer in second.block_on(all) {
        assert!(matches!(answer, Ok(Standing::Admitted(_))), "{answer:?}");
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = holdline::Result<Standing>> + 'a>>;

/// Begins to enter these lines, on a runtime that is not driven any further.
fn begin<'a>(runtime: &Runtime, client: &'a Client, lines: std::ops::Range<u128>) -> Vec<Call<'a>> {
    let enter = |n| -> Call<'a> {
        Box::pin(async move {
            client.store().enter(&line(n), &ticket(n), &Arc::from(""), Enter::Queue).await
        })
    };
    let mut calls: Vec<_> = lines.map(enter).collect();
    runtime.block_on(poll_fn(|context| {
        for call in &mut calls {
            assert!(call.as_mut().poll(context).is_pending(), "nobody has answered yet");
        }
        Poll::Ready(())
    }));
    calls
}

/// What such a runtime was about to send has its time limit.
#[test]
fn a_call_in_the_hands_of_a_runtime_that_stands_still_ends() {
    let Some(server) = private("together_taken", &[]) else { return };
    let (first, second) = (runtime(), runtime());
    let url = format!("{}?timeout=2s", server.url());
    let client = first.block_on(open(&url)).expect("opens");
    first.block_on(enter_all(client.store())); // it has the connection
    let mut calls = begin(&first, &client, 0..3); // two are alone, one is queued
    let full = begin(&second, &client, 3..22); // and is taken along
    let last = calls.pop().expect("three");
    let answer =
        first.block_on(async { tokio::time::timeout(Duration::from_secs(30), last).await });
    let error = answer.expect("it does not hang").expect_err("nobody has sent it");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(full);
}

/// Taken by the server's notice: three requests in all, no fourth to ask; and renewed soon, for the
/// notice is worth what is left of a waiter's wait lease.
#[tokio::test]
async fn a_notice_is_as_good_as_an_answer() {
    let Some(server) = private("notice", &[]) else { return };
    let clients = [open(server.url()).await.expect("opens"), open(server.url()).await.expect("ok")];
    for client in &clients {
        Mutex::new(client, "y").lock().await.expect("works").unlock().await.expect("held");
    }
    until_listening(&server, 2).await; // so that the second need not ask again when it does
    let first = Mutex::new(&clients[0], "x").lock().await.expect("works");
    let second = Mutex::new(&clients[1], "x");
    let second = tokio::spawn(async move { second.lock().await.expect("works") });
    while clients[0].inspect("x").await.expect("works").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let token = first.token();
    let before = calls(&server);
    let looks = Instant::now();
    first.unlock().await.expect("held");
    let guard = second.await.expect("no panic");
    if looks.elapsed() < Duration::from_millis(200) {
        assert!(calls(&server) - before <= 1, "{} requests", calls(&server) - before);
    }
    assert!(guard.token() > token && guard.is_valid());
    assert!(guard.remaining() < Duration::from_secs(3), "{:?}", guard.remaining());
    let end = Instant::now() + Duration::from_secs(5);
    while guard.remaining() < Duration::from_secs(5) {
        assert!(guard.is_valid() && Instant::now() < end, "{:?}", guard.remaining());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    guard.unlock().await.expect("held all the time");
}
