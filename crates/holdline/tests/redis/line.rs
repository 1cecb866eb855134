//! The line store on a real Redis server: its keys, its connections, and requests that come late.
//! What every store does is in the conformance suite.

use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Client, Mutex, Name, open};
use holdline_testkit::redis::{Server, private, start};
use holdline_testkit::until;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A store with keys of its own.
async fn client(server: &Server) -> Client {
    client_of(server, &format!("t{:016x}:", fastrand::u64(..))).await
}

async fn client_of(server: &Server, prefix: &str) -> Client {
    open(&format!("{}?prefix={}:{prefix}", server.url(), std::process::id()))
        .await
        .expect("the server takes us")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn ticket(id: u128) -> Ticket {
    let lease = Duration::from_secs(10);
    Ticket { wait_lease: Duration::from_secs(3), ..holdline_testkit::ticket(id, lease) }
}

#[tokio::test]
async fn names_are_kept_apart_and_listed() {
    let Some(server) = start("names") else { return };
    let client = client(&server).await;
    let names = ["a", "a}b", "{a}", "%7D", "a*", "b:q", "with space", "ü"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(Mutex::new(&client, name).try_lock().await.expect("works").expect("free"));
    }
    let listed = |names: Vec<Name>| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(listed(client.list("").await.expect("works")), sorted);
    assert_eq!(listed(client.list("a").await.expect("works")), ["a", "a*", "a}b"]);
    assert_eq!(listed(client.list("a*").await.expect("works")), ["a*"]);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    assert!(client.list("").await.expect("works").is_empty());
}

/// The name of the key for the clock has a prefix of the user's, so it may be taken.
#[tokio::test]
async fn a_key_of_others_is_not_overwritten_with_the_clock() {
    let Some(server) = private("clock_of_others", &[]) else { return };
    let client = server.open("?prefix=wall").await;
    for command in [
        ["SET", "wallclock", "12:30"],
        ["SET", "wallclock", "9223372036854775807"],
        ["RPUSH", "wallclock", "12:30"],
    ] {
        let _: redis::Value = server.query(&command);
        // One that is new, and so looks at that key.
        let lock = Mutex::new(&client, command.join(" "));
        let guard = lock.lock().await.expect("works");
        assert!(guard.token() > 0);
        guard.unlock().await.expect("held");
        let kind: String = server.query(&["TYPE", "wallclock"]);
        let kept: String = match &*kind {
            "list" => server.query(&["LINDEX", "wallclock", "0"]),
            _ => server.query(&["GET", "wallclock"]),
        };
        assert_eq!(kept, command[2]);
        let _: i64 = server.query(&["DEL", "wallclock"]);
    }
}

#[tokio::test]
async fn keys_expire_by_themselves() {
    let Some(server) = private("keys_expire", &[]) else { return };
    let client = open(&format!("{}?idle=1s", server.url())).await.expect("opens");
    let store = client.store();
    let (line, note) = (name("x"), Arc::from("note"));
    // A few places are in the line's own key; many have three more.
    for (places, keys) in [(3, 1), (12, 4)] {
        for id in 1..=places {
            // A holder and its waiters, which all die.
            let short = Ticket { lease: Duration::from_millis(500), ..ticket(id) };
            store.enter(&line, &short, &note, Enter::Queue).await.expect("works");
        }
        let there = || server.query::<Vec<String>>(&["KEYS", "holdline:{*"]);
        assert_eq!(there().len(), keys);
        let until = Instant::now() + Duration::from_secs(10);
        while !there().is_empty() {
            assert!(Instant::now() < until, "{:?}", there());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn what_was_abandoned_in_flight_cannot_enter_later() {
    let Some(server) = private("abandoned", &[]) else { return };
    let client = client_of(&server, "late:").await;
    let store = client.store();
    let (line, note) = (name("x"), Arc::from("note"));
    let one = ticket(1);
    store.enter(&line, &one, &note, Enter::Queue).await.expect("works"); // the connection is there
    store.leave(&line, one.id).await.expect("works");
    server.pause();
    let two = ticket(2);
    let enter = store.enter(&line, &two, &note, Enter::Queue);
    assert!(tokio::time::timeout(Duration::from_millis(50), enter).await.is_err());
    // The renewer gives it up over another connection, which the server happens to serve first or
    // last. Either way nothing may be left behind.
    let background = store.background_handle();
    let leave = tokio::spawn({
        let line = line.clone();
        async move { background.leave(&line, TicketId(2)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.resume();
    leave.await.expect("no panic").expect("works");
    // A question over the first connection is answered after what was sent before it.
    let three = store.enter(&line, &ticket(3), &note, Enter::Try).await.expect("works");
    assert!(matches!(three, Standing::Admitted(_)), "{three:?}");
    assert_eq!(store.snapshot(&line).await.expect("works").places.len(), 1);
    // The same ticket again, over any connection, as a late message would.
    let late = store.enter(&line, &two, &note, Enter::Queue).await.expect("works");
    assert_eq!(late, Standing::Lost);
}

#[test]
fn a_runtime_may_end_and_another_go_on() {
    let Some(server) = start("runtimes") else { return };
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it is given");
    let first = runtime();
    let (one, two) = first.block_on(async {
        let (one, two) = (client_of(&server, "rt:").await, client_of(&server, "rt:").await);
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let second = Mutex::new(&two, "x").lock_within(Duration::from_millis(50)).await;
        assert!(second.expect("works").is_none());
        guard.unlock().await.expect("held");
        (one, two)
    });
    drop(first); // with all connections, for commands and for notices
    runtime().block_on(async {
        let guard = Mutex::new(&one, "x").lock().await.expect("works");
        let lock = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await.expect("works") });
        while one.inspect("x").await.expect("works").waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        guard.unlock().await.expect("held");
        waiting.await.expect("no panic").unlock().await.expect("held");
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    });
}

/// A margin of a quarter leaves half a second of a waiter's lease: a request confirms the notice.
#[tokio::test]
async fn no_holder_begins_with_a_lease_that_is_nearly_over() {
    let Some(server) = private("whole_lease", &[]) else { return };
    let clients = [open(server.url()).await, open(server.url()).await].map(|it| it.expect("opens"));
    let [first, second] = clients.each_ref().map(|client| {
        Mutex::new(client, "x").lease(Duration::from_secs(10)).margin(Duration::from_millis(2_500))
    });
    let guard = first.lock().await.expect("works");
    let waiter = tokio::spawn(async move { second.lock().await });
    until("it waits", async || {
        clients[0].inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
    })
    .await;
    guard.unlock().await.expect("held");
    let guard = waiter.await.expect("no panic").expect("works");
    assert!(guard.remaining() > Duration::from_secs(1), "{:?}", guard.remaining());
}
