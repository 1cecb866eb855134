//! Faults of the server and of the connection to it.

use crate::raw::{Raw, ticket};
use crate::server::{one, private, url_at};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use holdline::store::{Enter, Standing};
use holdline::{ErrorKind, Mutex, open};
use holdline_testkit::{Link, Way, soon, until};
use rustix::process::{Pid, Signal, kill_process};
use std::array::from_fn;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// Ends all connections of the store.
const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                         WHERE application_name = 'holdline'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_connection_is_made_again() {
    let Some(server) = private("terminated", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let (mine, next) = (ticket(1, 1), ticket(1, 1));
    let seq = raw.hold(&mine).await;
    raw.queue(&next).await;
    server.listened_to().await;
    let sql = server.sql().await;
    // One for calls and one for notices; the one that installed the schema may not have ended yet.
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline'";
    until("it has two", async || one::<i64>(&sql, ours, &[]).await == 2).await;
    assert_eq!(one::<i64>(&sql, TERMINATE, &[]).await, 2);
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    // It also listens again: the waiter was woken to ask again, and then by the notice.
    server.listened_to().await;
    assert!(raw.leave(&mine).await);
    soon("the notice", raw.store.watch(&raw.line, next.id)).await.expect("works");
}

/// Calls that are kept without being polled while they connect, as in a `select!` whose other
/// branch goes on, delay no other call and no renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_not_polled_keep_none_from_connecting() {
    let Some(server) = private("unpolled", &["fsync=off"]) else { return };
    for scheme in ["", "&scheme=advisory"] {
        let client = open(&(server.url() + scheme)).await.expect("opens");
        let sql = server.sql().await;
        one::<i64>(&sql, TERMINATE, &[]).await;
        let mutexes: Vec<_> = (0..20).map(|x| Mutex::new(&client, format!("x{x}"))).collect();
        let mut kept = Vec::new();
        // One of them begins to connect when the end of the connection is known.
        for mutex in &mutexes {
            let mut call = Box::pin(mutex.try_lock());
            let poll = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
            if poll.await {
                kept.push(call);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!kept.is_empty(), "each was answered at once");
        let other = Mutex::new(&client, "y");
        let guard = timeout(Duration::from_secs(20), other.lock()).await.expect("no wait for them");
        guard.expect("works").unlock().await.expect("held");
    }
}

/// A program that blocks with calls under way, whose replies it does not read, keeps its locks.
#[tokio::test]
async fn renewals_go_on_while_calls_are_not_polled() {
    let Some(server) = private("unread", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let lease = Duration::from_secs(4);
    // As many as are sent before others are queued, and more than may be unanswered.
    for calls in [2, 200] {
        let guard = Mutex::new(&client, "held").lease(lease).lock().await.expect("free");
        let mut kept = Vec::new();
        let mut names = (0..).map(|x| format!("x{calls}-{x}"));
        while kept.len() < calls {
            let mutex = Mutex::new(&client, names.next().expect("there are more"));
            let mut call = Box::pin(async move { mutex.try_lock().await });
            let poll = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
            if poll.await {
                kept.push(call); // otherwise it was answered at once
            }
        }
        std::thread::sleep(lease + lease / 4);
        assert!(guard.is_valid(), "it was not renewed while {calls} calls were under way");
        drop(kept);
        guard.unlock().await.expect("held");
    }
}

/// Calls whose futures are kept, but not polled, hold up no other call.
#[tokio::test]
async fn calls_go_on_while_others_are_not_polled() {
    let Some(server) = private("unpolled_calls", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let mut kept = Vec::new();
    for n in 0..8 {
        let lock = Mutex::new(&client, format!("kept {n}"));
        let mut call = Box::pin(async move { lock.lock().await });
        if call.as_mut().now_or_never().is_none() {
            kept.push(call); // otherwise it was answered at once, by the store's own thread
        }
    }
    assert!(!kept.is_empty(), "each was answered at once");
    let guard = Mutex::new(&client, "y").try_lock().await.expect("an answer").expect("it is free");
    guard.unlock().await.expect("held");
    for lock in kept {
        lock.await.expect("it was asked for").unlock().await.expect("held");
    }
}

/// Hosts that accept connections and stay silent keep nobody from the last host of the URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_hosts_are_passed_over() {
    let Some(server) = private("silent_hosts", &["fsync=off"]) else { return };
    drop(open(&server.url()).await.expect("installs"));
    let links: [Link; 3] = from_fn(|_| Link::to(server.address()).expect("a port is free"));
    for link in &links {
        link.stall(Way::Replies);
    }
    let hosts = links.each_ref().map(|link| link.address().to_string()).join(",");
    let url = server.url().replace('@', &format!("@{hosts},")) + "&timeout=6s";
    let client = open(&url).await.expect("the last host answers");
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
}

/// A reply of half a megabyte, which the connection cannot hold back for its reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_on_while_a_long_list_is_not_read() {
    let Some(server) = private("unread_list", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let many = (0..1024).map(|x| {
        let mutex = Mutex::new(&client, format!("{x:0>500}")).lease(Duration::from_secs(60));
        async move { mutex.lock().await }
    });
    let many: Vec<_> =
        stream::iter(many).buffer_unordered(64).try_collect().await.expect("they are free");
    let lease = Duration::from_secs(4);
    let guard = Mutex::new(&client, "held").lease(lease).lock().await.expect("free");
    let mut list = Box::pin(client.list(""));
    while list.as_mut().now_or_never().is_some() {
        list = Box::pin(client.list("")); // it was answered at once
    }
    std::thread::sleep(lease + lease / 4);
    assert!(guard.is_valid(), "it was not renewed while the list was not read");
    assert_eq!(list.await.expect("works").len(), many.len() + 1);
    guard.unlock().await.expect("held");
}

/// The reply to an entry is lost, the ticket leaves over another connection, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_leaves_nothing_behind() {
    let Some(server) = private("lost_reply", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    // No second connection, which could lose a reply instead.
    let url = url_at(&link.address().to_string()) + "&listen=off";
    let raw = Raw::open(&url).await;
    let (mine, other) = (ticket(1, 1), ticket(1, 1));
    link.lose_next_reply();
    let seq = raw.hold(&mine).await; // it asks again, and gets the same answer
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    link.lose_next_reply();
    let error = raw.store.leave(&raw.line, mine.id).await.expect_err("it is not known");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    raw.hold(&other).await;
}

/// A failed try whose first request had no answer is in doubt: that request may be late, so the
/// departure bars the ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_try_in_doubt_is_barred() {
    let Some(server) = private("doubtful_try", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let (raw, other) =
        (Raw::open(&url_at(&link.address().to_string())).await, Raw::open(&server.url()).await);
    other.hold(&ticket(1, 1)).await;
    let sql = server.sql().await;
    let barred = "SELECT count(*) FROM holdline.barred";
    let mine = ticket(1, 1);
    let standing = raw.enter(&mine, Enter::Try).await.expect("an answer");
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    assert!(!raw.leave(&mine).await);
    assert_eq!(one::<i64>(&sql, barred, &[]).await, 0);
    link.lose_next_reply();
    let error = raw.enter(&mine, Enter::Try).await.expect_err("it is in doubt");
    assert!(error.retryable(), "{error}");
    assert!(!raw.leave(&mine).await);
    assert_eq!(one::<i64>(&sql, barred, &[]).await, 1);
}

/// A request carried out after its ticket has left takes no place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_takes_no_place() {
    let Some(server) = private("late", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let slow = Raw::open(&url_at(&link.address().to_string())).await;
    let first = ticket(1, 1);
    slow.hold(&first).await;
    assert!(slow.leave(&first).await);
    let mine = ticket(1, 1);
    link.stall(Way::Requests);
    let error = slow.enter(&mine, Enter::Queue).await.expect_err("no answer");
    assert!(error.retryable(), "{error}");
    // The stalled bytes and the departure, over a connection of its own, arrive when the link is
    // repaired, in any order.
    let leaving = {
        let slow = slow.clone();
        tokio::spawn(async move { while slow.store.leave(&slow.line, mine.id).await.is_err() {} })
    };
    link.mend();
    soon("the departure", leaving).await.expect("no panic");
    let sql = server.sql().await;
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdline' \
                AND state <> 'idle'";
    until("all is carried out", async || one::<i64>(&sql, busy, &[]).await == 0).await;
    assert_eq!(slow.seen().await.places, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_keeps_the_lock() {
    let Some(mut server) = private("restart", &["fsync=off"]) else { return };
    let client = open(&server.url()).await.expect("opens");
    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    server.kill();
    let error = client.inspect("x").await.expect_err("it is down");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.start();
    until("it is back", async || client.inspect("x").await.is_ok()).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("still held");
}

/// Calls to a frozen server fail within their time limit, and it serves when it runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_unavailable() {
    let Some(server) = private("frozen", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let mine = ticket(1, 1);
    let seq = raw.hold(&mine).await;
    server.freeze();
    let error = soon("the answer", raw.keep(&mine, seq)).await.expect_err("it is frozen");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.thaw();
    until("it is back", async || raw.keep(&mine, seq).await.is_ok()).await;
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
}

/// A silent server process with calls that wait for it: the next call uses another connection as
/// soon as the silent one is given up, and waits for none of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_silent_connection_keep_nobody_waiting() {
    let Some(server) = private("silent", &["fsync=off"]) else { return };
    let raw = Raw::open(&(server.url() + "&listen=off&timeout=60s")).await;
    let mine = ticket(1, 1);
    let seq = raw.hold(&mine).await;
    let sql = server.sql().await;
    let mine_are = "FROM pg_stat_activity WHERE application_name = 'holdline'";
    // One that was replaced, since it was slow, may not have ended yet.
    let count = format!("SELECT count(*) {mine_are}");
    until("one connection", async || one::<i64>(&sql, &count, &[]).await == 1).await;
    let pid = one::<i32>(&sql, &format!("SELECT pid {mine_are}"), &[]).await;
    let pid = Pid::from_raw(pid).expect("a process");
    kill_process(pid, Signal::STOP).expect("it is ours");
    let abandoned: Vec<_> = (0..200)
        .map(|_| {
            let raw = raw.clone();
            tokio::spawn(async move {
                let ticket = ticket(1, 1);
                let call = raw.enter(&ticket, Enter::Queue);
                let _ = timeout(Duration::from_millis(50), call).await;
            })
        })
        .collect();
    for task in abandoned {
        task.await.expect("no panic");
    }
    // Long before their time limit.
    let kept = timeout(Duration::from_secs(30), async {
        loop {
            // A call sent before the silence was noticed has no answer.
            let call = timeout(Duration::from_secs(2), raw.keep(&mine, seq));
            if let Ok(kept) = call.await {
                return kept;
            }
        }
    });
    let kept = kept.await.expect("soon").expect("works");
    assert_eq!(kept, Standing::Admitted(seq));
    kill_process(pid, Signal::CONT).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_is_said() {
    let Some(server) = private("refuses", &["fsync=off"]) else { return };
    let (raw, sql) = (Raw::open(&server.url()).await, server.sql().await);
    let mine = ticket(1, 1);
    let seq = raw.hold(&mine).await;
    let set = async |setting: &str| {
        sql.batch_execute(&format!("ALTER ROLE postgres SET {setting}")).await.expect("works");
        one::<i64>(&sql, TERMINATE, &[]).await;
    };
    set("default_transaction_read_only = on").await;
    let error = raw.keep(&mine, seq).await.expect_err("it is read-only");
    assert!(error.retryable() && error.to_string().contains("read-only"), "{error}");
    sql.batch_execute("ALTER ROLE postgres RESET ALL").await.expect("works");
    // Conflicting transactions are repeated.
    set("default_transaction_isolation = serializable").await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move {
                let raw = Raw::named(&url, "met").await;
                for _ in 0..20 {
                    let ticket = ticket(1, 100);
                    raw.hold(&ticket).await;
                    assert!(raw.leave(&ticket).await);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    sql.batch_execute("ALTER ROLE postgres RESET ALL").await.expect("works");
    one::<i64>(&sql, TERMINATE, &[]).await;
    let mut blocked = server.sql().await;
    set("statement_timeout = '100ms'").await;
    let blocker = blocked.transaction().await.expect("begins");
    blocker.execute("SELECT 1 FROM holdline.line FOR UPDATE", &[]).await.expect("locks");
    let error = raw.keep(&mine, seq).await.expect_err("it takes too long");
    assert!(error.retryable() && error.to_string().contains("statement_timeout"), "{error}");
    blocker.rollback().await.expect("ends");
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
}

/// A cut shorter than the lease does not disturb a holder that renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_is_ridden_out() {
    let Some(server) = private("cut", &["fsync=off"]) else { return };
    let link = Link::to(server.address()).expect("a link");
    let client = open(&url_at(&link.address().to_string())).await.expect("opens");
    let lease = Duration::from_secs(20);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    let waiting = {
        let lock = Mutex::new(&open(&server.url()).await.expect("opens"), "x").lease(lease);
        tokio::spawn(async move { lock.lock().await.expect("works").token() })
    };
    link.cut();
    tokio::time::sleep(lease / 10).await;
    link.mend();
    until("it is back", async || client.inspect("x").await.is_ok()).await;
    assert!(guard.is_valid());
    let token = guard.token();
    guard.unlock().await.expect("still held");
    assert!(soon("the next", waiting).await.expect("no panic") > token);
}
