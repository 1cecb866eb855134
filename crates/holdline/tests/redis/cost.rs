//! What the line store costs its server, as the server counts it.

use crate::first::until_listening;
use futures_util::StreamExt;
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::{Mutex, Name, open};
use holdline_testkit::redis::{Server, private};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a command was called, and for how many microseconds in all.
fn stat(server: &Server, command: &str) -> (u64, u64) {
    let text: String = server.query(&["INFO", "commandstats"]);
    let start = format!("cmdstat_{command}:");
    let Some(line) = text.lines().find_map(|line| line.strip_prefix(&start)) else {
        return (0, 0);
    };
    let number = |key: &str| {
        let word = line.split(',').find_map(|word| word.strip_prefix(key)).expect("it is there");
        word.parse().expect("a number")
    };
    (number("calls="), number("usec="))
}

/// Of each name that was used in the last minute a number is left: a lock for each order, say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_were_used_lately_make_no_list_slow() {
    let Some(server) = private("many_idle", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let mut held = Vec::new();
    for name in ["n1", "n50000", "x"] {
        // Without renewals, which would be counted.
        let lock = Mutex::new(&client, name).fixed_lease(Duration::from_secs(600));
        held.push(lock.lock().await.expect("works"));
    }
    let fill = "for i = 1, 100000 do \
                redis.call('SET', 'holdline:{n' .. i .. '}', -1, 'PX', 600000, 'NX') end";
    let _: () = server.query(&["EVAL", fill, "0"]);
    // What another program has under such a key fails no request.
    let _: () = server.query(&["SET", "holdline:{n7}", "of another program"]);
    let _: () = server.query(&["DEL", "holdline:{n8}", "holdline:{n9}"]);
    let _: () = server.query(&["RPUSH", "holdline:{n8}", "of", "another", "program"]);
    let _: () = server.query(&["SET", "holdline:{n9}", "\x01short"]);
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    let client = client.response_timeout(Duration::from_secs(60)); // on a busy machine
    let listed = client.list("").await.expect("works");
    assert_eq!(listed.iter().map(Name::as_str).collect::<Vec<_>>(), ["n1", "n50000", "x"]);
    let calls = stat(&server, "evalsha").0;
    assert!(calls <= 100_000 / 256 + 2, "{calls} requests");
    // But what fails the whole script makes each of those 256 names one request.
    let _: () = server.query(&["SET", "holdline:{n9}", "\x02"]);
    let _: () = server.query(&["SET", "holdline:{n9}:e", "no sorted set"]);
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    assert_eq!(client.list("").await.expect("works").len(), 3);
    let calls = stat(&server, "evalsha").0;
    assert!(calls <= 100_000 / 256 + 2 + 256, "{calls} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_costs_two_requests() {
    let Some(server) = private("two_requests", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    until_listening(&server, 1).await;
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    let began = Instant::now();
    for _ in 0..100 {
        Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    }
    assert_eq!(stat(&server, "evalsha").0, 200);
    // And so it does when 64 tasks of a process want it at the same time.
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let lock = Mutex::new(&client, "x");
            tokio::spawn(async move {
                for _ in 0..10 {
                    lock.lock().await.expect("works").unlock().await.expect("held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    // Fewer, where a release met the next acquisitions and shared their request.
    let calls = stat(&server, "evalsha").0;
    assert!(calls <= 200 + 2 * 640, "{calls} requests for 740 locks");
    // The script that takes several operations is sent when it is first used.
    assert!(stat(&server, "eval").0 <= 1);
    for other in ["subscribe", "publish", "script|load", "select"] {
        assert_eq!(stat(&server, other).0, 0, "{other}");
    }
    // The subscription, which has heard nothing, is looked after every 5 s, however long this took.
    let pings = stat(&server, "ping").0;
    assert!(pings <= began.elapsed().as_secs() / 5 + 1, "{pings} after {:?}", began.elapsed());
}

/// The commands that a lock and its release call in the server, on a name in use and on a new one.
#[tokio::test]
async fn a_lock_costs_eight_commands() {
    let Some(server) = private("eight_commands", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let calls = || {
        ["evalsha", "time", "get", "getex", "set", "setrange", "del", "zscore", "publish", "eval"]
            .map(|command| stat(&server, command).0)
    };
    let pairs = async |names: &[String]| {
        let _: () = server.query(&["CONFIG", "RESETSTAT"]);
        for name in names {
            Mutex::new(&client, name).lock().await.expect("works").unlock().await.expect("held");
        }
        calls()
    };
    pairs(&["x".to_owned()]).await; // loads the scripts
    // Once a second, a name's enter looks how far the clock had got, and may note how far it is. A
    // name that was not entered within the last second is written anew.
    let began = Instant::now();
    let [evalsha, time, get, getex, set, setrange, others @ ..] =
        pairs(&vec!["x".to_owned(); 100]).await;
    let seconds = began.elapsed().as_secs() + 2;
    assert_eq!((evalsha, time, getex, others), (200, 200, 100, [0; 4]));
    assert!((100..=100 + seconds).contains(&get), "{get} in {seconds} s");
    assert!((200..=200 + seconds).contains(&(set + setrange)), "{set} {setrange}");
    assert!(set <= 3 * seconds, "{set} in {seconds} s");
    let names: Vec<_> = (0..100).map(|name| format!("name {name}")).collect();
    let began = Instant::now();
    let [evalsha, time, get, getex, set, others @ ..] = pairs(&names).await;
    let seconds = began.elapsed().as_secs() + 2;
    assert_eq!((evalsha, time, get, getex, others), (200, 200, 200, 100, [0; 5]));
    assert!((200..=200 + seconds).contains(&set), "{set} in {seconds} s");
}

/// Of a name that was used, the server keeps less than 100 bytes besides its key, as it counts them
/// (`MEMORY USAGE`), for at most a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_name_leaves_little() {
    const NAMES: u32 = 60_000;
    let Some(server) = private("idle_names", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let number = |section: &str, key: &str| {
        let text: String = server.query(&["INFO", section]);
        let number = text.lines().find_map(|line| line.strip_prefix(key));
        number.expect("it is there").trim().parse::<i64>().expect("a number")
    };
    let lock = async |name: u32| {
        let lock = Mutex::new(&client, format!("name {name:06}"));
        lock.lock().await.expect("works").unlock().await.expect("held");
    };
    let all = async |names: std::ops::Range<u32>| {
        futures_util::stream::iter(names.map(lock)).buffer_unordered(64).collect::<()>().await;
    };
    all(0..1000).await; // until buffers are as large as they get
    let _: () = server.query(&["FLUSHALL"]);
    let before = number("memory", "used_memory:");
    all(0..NAMES).await;
    let kept = number("memory", "used_memory:") - before;
    let each = kept / server.query::<i64>(&["DBSIZE"]); // the first may have expired already
    let key = format!("holdline:{{name {:06}}}", NAMES - 1);
    let alone = server.query::<i64>(&["MEMORY", "USAGE", &key]);
    println!("an idle name: {each} bytes with its key, {alone} as Redis counts one");
    let length = i64::try_from(key.len()).expect("short");
    assert!(alone < length + 100, "{alone} bytes with a key of {length}");
    // With the entries in both of the server's hash tables, for keys and for when they expire.
    assert!(each < length + 140, "{each} bytes with a key of {length}");
    let key = key.as_str();
    assert_eq!(server.query::<i64>(&["STRLEN", key]), 17);
    let life = server.query::<i64>(&["PTTL", key]);
    assert!((0..60_000).contains(&life), "{life} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handed_over_lock_costs_the_store_nearly_nothing() {
    let Some(server) = private("handed_over", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let lock = Mutex::new(&client, "x").handoff(100, Duration::from_secs(60));
    lock.lock().await.expect("works").unlock().await.expect("held");
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let lock = Mutex::new(&client, "x").handoff(100, Duration::from_secs(60));
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = lock.lock().await.expect("works");
                    tokio::task::yield_now().await;
                    guard.unlock().await.expect("held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let calls = stat(&server, "evalsha").0;
    assert!(calls <= 64 * 50 / 10, "{calls} requests for 3200 locks");
}

/// A waiter is told by one message, before the answer to the leaver is written: that is what the
/// second message is for, to the leaver's own connection for commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_told_first() {
    let Some(server) = private("told_first", &[]) else { return };
    let holder = open(server.url()).await.expect("opens");
    let guard = Mutex::new(&holder, "x").lock().await.expect("works");
    let mut cues: Vec<String> = Vec::new();
    let limit = Instant::now() + Duration::from_secs(10);
    while cues.is_empty() {
        assert!(Instant::now() < limit, "it does not listen");
        cues = server.query(&["PUBSUB", "CHANNELS", "*:order"]);
    }
    let waiter = open(server.url()).await.expect("opens");
    // It listens, so that it need not ask again when it does.
    Mutex::new(&waiter, "y").lock().await.expect("works").unlock().await.expect("held");
    until_listening(&server, 2).await;
    let lock = Mutex::new(&waiter, "x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    while holder.inspect("x").await.expect("works").waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let mut own = server.conn();
    let mut heard = own.as_pubsub();
    heard.subscribe(&cues).expect("works");
    heard.set_read_timeout(Some(Duration::from_secs(10))).expect("works");
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    guard.unlock().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("works");
    assert_eq!(heard.get_message().expect("it was there").get_payload_bytes(), b"");
    assert_eq!((stat(&server, "evalsha").0, stat(&server, "publish").0), (1, 2));
    guard.unlock().await.expect("held");
    assert_eq!((stat(&server, "evalsha").0, stat(&server, "publish").0), (2, 2));
}

fn ticket(weight: u32, capacity: u32) -> Ticket {
    let ticket = holdline_testkit::ticket(fastrand::u128(..), Duration::from_secs(600));
    Ticket { weight, capacity, ..ticket }
}

/// Adds so many tickets of weight 1 to the line.
async fn fill(store: &Arc<dyn Store>, line: &Name, capacity: u32, count: usize) {
    let note = Arc::from("note");
    let enter = async |ticket: Ticket| {
        store.enter(line, &ticket, &note, Enter::Queue).await.expect("works");
    };
    let tickets: Vec<_> = (0..count).map(|_| ticket(1, capacity)).collect();
    futures_util::stream::iter(tickets).map(enter).buffer_unordered(100).collect::<()>().await;
}

/// Microseconds that the server spends on one more ticket, from entering to leaving. (It counts
/// time, not processor time, so that what disturbs is all that the machine does.)
async fn price(server: &Server, store: &Arc<dyn Store>, line: &Name, capacity: u32) -> u64 {
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    let (ticket, note) = (ticket(1, capacity), Arc::from("note"));
    let entered = store.enter(line, &ticket, &note, Enter::Queue).await.expect("works");
    let (Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) = entered else {
        panic!("{entered:?}")
    };
    store.enter(line, &ticket, &note, Enter::Keep(seq)).await.expect("works");
    assert!(store.leave(line, ticket.id).await.expect("works"));
    let (calls, micros) = stat(server, "evalsha");
    assert_eq!(calls, 3);
    micros
}

/// What one more costs beside ten to ten thousand of them: the least of many, in turns, because
/// whatever disturbs only adds, and may do so for a while.
async fn grows(name: &str, capacity: u32) {
    let Some(server) = private(name, &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let store = client.store();
    let lines = [10, 100, 1000, 10_000].map(|count| (count, Name::new(format!("x{count}"))));
    let lines = lines.map(|(count, line)| (count, line.expect("good")));
    for (count, line) in &lines {
        fill(store, line, capacity, *count).await;
    }
    let mut prices = [u64::MAX; 4];
    for _ in 0..300 {
        for ((_, line), least) in lines.iter().zip(&mut prices) {
            *least = (*least).min(price(&server, store, line, capacity).await);
        }
    }
    println!("{name}: enter, keep and leave at 10, 100, 1000, 10000: {prices:?} us");
    assert!(prices[3] < prices[0] * 2, "{prices:?}");
}

#[tokio::test]
async fn waiters_cost_one_another_nothing() {
    grows("waiters", 1).await;
}

#[tokio::test]
async fn readers_cost_one_another_nothing() {
    grows("readers", 1 << 30).await;
}

/// The commands by which a ticket gets behind others, and by which the first makes room for it.
#[tokio::test]
async fn waiting_costs_ten_commands() {
    let Some(server) = private("ten_commands", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let note = Arc::from("note");
    let tickets: Vec<_> = (0..10).map(|_| ticket(1, 1)).collect();
    let enter = async |ticket: &Ticket| {
        store.enter(&line, ticket, &note, Enter::Queue).await.expect("works");
    };
    for ticket in &tickets[..3] {
        enter(ticket).await;
    }
    assert!(store.leave(&line, tickets[0].id).await.expect("works")); // loads the script
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    for (next, first) in tickets[3..].iter().zip(&tickets[1..]) {
        enter(next).await;
        assert!(store.leave(&line, first.id).await.expect("works"));
    }
    let calls = ["evalsha", "time", "get", "getex", "setrange", "set", "publish", "hset", "zadd"]
        .map(|command| stat(&server, command).0);
    // Of the messages, one is to the waiter, and one to the caller's own connection.
    assert_eq!(calls, [14, 14, 7, 7, 14, 7, 14, 0, 0]);
}

#[tokio::test]
async fn a_release_notifies_only_whom_it_admits() {
    let Some(server) = private("notifies", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let first = ticket(1, 1);
    store.enter(&line, &first, &Arc::from("note"), Enter::Queue).await.expect("works");
    fill(store, &line, 1, 50).await;
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    assert!(store.leave(&line, first.id).await.expect("works"));
    // And its own connection, see `waiters_are_told_first`.
    assert_eq!(stat(&server, "publish").0, 2);
}
