//! The line store on a Redis server that misbehaves: what a user sees then.

use crate::fake;
use futures_util::future::join_all;
use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Client, ErrorKind, Mutex, Name, open};
use holdline_testkit::redis::private;
use holdline_testkit::{soon, until};
use std::future::Future;
use std::sync::{Arc, Mutex as Cell};
use std::time::{Duration, Instant};

fn quick(client: &Client) -> Mutex {
    Mutex::new(client, "x").lease(Duration::from_secs(2))
}

async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what}: too late"))
}

async fn waiters(client: &Client) -> usize {
    client.inspect("x").await.map_or(0, |info| info.waiters.len())
}

#[tokio::test]
async fn a_flushed_script_cache_costs_nothing_but_time() {
    let Some(server) = private("script_flush", &[]) else { return };
    let client = server.open("").await;
    for _ in 0..3 {
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        let _: () = server.query(&["SCRIPT", "FLUSH"]);
        guard.unlock().await.expect("held");
        let _: () = server.query(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn flushall_loses_the_lock_and_tokens_still_rise() {
    let Some(server) = private("flushall", &[]) else { return };
    let (client, other) = (server.open("").await, server.open("").await);
    let guard = quick(&client).lock().await.expect("works");
    let _: () = server.query(&["FLUSHALL"]);
    within(Duration::from_secs(20), "told", guard.lost()).await;
    let next = quick(&other).lock_within(Duration::from_secs(20)).await;
    let next = next.expect("works").expect("free");
    assert!(next.token() > guard.token());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    next.unlock().await.expect("held, and not freed by the one before");
}

#[tokio::test]
async fn flushall_under_waiters_admits_one_of_them() {
    let Some(server) = private("flushall_waiters", &[]) else { return };
    let (one, two, three) = (server.open("").await, server.open("").await, server.open("").await);
    let guard = quick(&one).lock().await.expect("works");
    let [second, third] = [&two, &three].map(|client| {
        let lock = quick(client);
        tokio::spawn(async move { lock.lock().await.expect("works") })
    });
    until("both wait", async || waiters(&one).await == 2).await;
    let _: () = server.query(&["FLUSHALL"]);
    let token = guard.token();
    drop(guard);
    let mut tokens = Vec::new();
    for next in [second, third] {
        tokens.push(tokio::spawn(async move {
            let guard = within(Duration::from_secs(20), "admitted", next).await.expect("no panic");
            let token = guard.token();
            guard.unlock().await.expect("held");
            token
        }));
    }
    for next in tokens {
        assert!(next.await.expect("no panic") > token);
    }
}

#[tokio::test]
async fn a_restart_without_data_loses_the_lock_but_hangs_nobody() {
    let Some(mut server) = private("restart_empty", &[]) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let guard = quick(&one).lock().await.expect("works");
    let lock = quick(&two);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || waiters(&one).await == 1).await;
    server.kill();
    server.restart();
    within(Duration::from_secs(20), "told", guard.lost()).await;
    let next = within(Duration::from_secs(20), "admitted", waiting).await.expect("no panic");
    let next = next.expect("it rides through");
    assert!(next.token() > guard.token());
    next.unlock().await.expect("held");
}

#[tokio::test]
async fn a_restart_with_data_keeps_the_lock() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = private("restart_data", &args) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let guard = Mutex::new(&one, "x").lease(Duration::from_secs(8)).lock().await.expect("works");
    let lock = Mutex::new(&two, "x").lease(Duration::from_secs(8));
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || waiters(&one).await == 1).await;
    server.kill();
    server.restart();
    until("it waits again", async || waiters(&two).await == 1).await;
    assert!(guard.is_valid());
    let token = guard.token();
    guard.unlock().await.expect("held through the restart");
    let next = within(Duration::from_secs(20), "admitted", waiting).await.expect("no panic");
    assert!(next.expect("it rides through").token() > token);
}

#[tokio::test]
async fn a_server_that_stands_still_is_noticed_and_nothing_hangs() {
    let Some(server) = private("sigstop", &[]) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let guard = quick(&one).lock().await.expect("works");
    server.pause();
    // Its own deadline tells the holder; nobody else can.
    within(Duration::from_secs(20), "told", guard.lost()).await;
    let start = Instant::now();
    let wait = Duration::from_millis(500);
    let answer = quick(&two).lock_within(wait).await;
    assert!(matches!(&answer, Err(error) if error.kind() == ErrorKind::Unavailable), "{answer:?}");
    assert!(start.elapsed() < wait * 3, "{:?}", start.elapsed());
    server.resume();
    let next = within(Duration::from_secs(20), "admitted", quick(&two).lock()).await;
    let next = next.expect("it works again");
    assert!(next.token() > guard.token());
    next.unlock().await.expect("held");
    // What the frozen server had received came to nothing: no place is left behind.
    two.settle().await;
    one.settle().await;
    assert!(one.inspect("x").await.expect("works").holders.is_empty());
}

#[tokio::test]
async fn a_short_standstill_harms_nobody() {
    let Some(server) = private("standstill", &[]) else { return };
    let client = server.open("").await;
    let guard = Mutex::new(&client, "x").lease(Duration::from_secs(4)).lock().await.expect("works");
    server.pause();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    server.resume();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn killed_connections_are_made_again() {
    let Some(server) = private("client_kill", &[]) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let guard = Mutex::new(&one, "x").lock().await.expect("works");
    let lock = Mutex::new(&two, "x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || waiters(&one).await == 1).await;
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]);
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    guard.unlock().await.expect("one broken connection is no reason to fail");
    let next = within(Duration::from_secs(20), "admitted", waiting).await.expect("no panic");
    let next = next.expect("it rides through");
    // And notices come again: both listen on new connections.
    until("they listen", async || {
        let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS"]);
        channels.iter().filter(|channel| !channel.ends_with(":order")).count() == 2
    })
    .await;
    next.unlock().await.expect("held");
    notices_come(&two, &one).await;
}

/// The second client is told of a release by the first: by itself a waiter looks after a second. A
/// busy machine may delay a notice, but not each time.
async fn notices_come(one: &Client, two: &Client) {
    let mut late = Vec::new();
    while late.len() < 5 {
        let guard = Mutex::new(one, "x").lock().await.expect("works");
        let lock = Mutex::new(two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it waits", async || waiters(one).await == 1).await;
        let start = Instant::now();
        guard.unlock().await.expect("held");
        let next = soon("admitted", waiting).await.expect("no panic").expect("works");
        let took = start.elapsed();
        next.unlock().await.expect("held");
        if took < Duration::from_millis(500) {
            return;
        }
        late.push(took);
    }
    panic!("no notice came: {late:?}");
}

#[tokio::test]
async fn a_lost_notice_costs_a_bounded_wait() {
    let Some(server) = private("lost_notice", &[]) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let guard = Mutex::new(&one, "x").lock().await.expect("works");
    let lock = Mutex::new(&two, "x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || waiters(&one).await == 1).await;
    let store = one.store();
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    store.leave(guard.name(), guard.ticket()).await.expect("works"); // nobody hears of it
    let next = within(Duration::from_secs(8), "admitted", waiting).await.expect("no panic");
    assert!(next.expect("works").is_valid());
}

#[tokio::test]
async fn passwords_and_permissions() {
    let Some(server) = private("acl", &["--requirepass", "canary"]) else { return };
    let host = format!("127.0.0.1:{}", server.port());
    for url in [format!("redis://{host}"), format!("redis://:canarywrong@{host}")] {
        let error = open(&url).await.expect_err("a password is wanted");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "canary\n").expect("writes");
    let client = open(&format!("redis://{host}?password_file={}", file.display())).await;
    let client = client.expect("the right password");
    assert_eq!(client.address(), format!("redis://{host}"));
    assert!(!format!("{client:?}").contains("canary"));
    Mutex::new(&client, "x").lock().await.expect("works").unlock().await.expect("held");
    // The minimal ACL of the guide is enough, and other keys are out of its reach.
    let admin = redis::Client::open(format!("redis://:canary@{host}")).expect("a good URL");
    let acl = "reset on >apples resetchannels ~app:* &app:wake:* -@all +evalsha +eval +get +getex \
        +mget +set +setrange +hget +hset +hdel +hlen +hgetall +exists +del +zadd +zrem +zcard \
        +zrange +zrangebyscore +zremrangebyscore +zscore +pexpire +time +publish +subscribe +ping";
    let mut setuser = redis::cmd("ACL");
    setuser.arg("SETUSER").arg("app").arg(acl.split_whitespace().collect::<Vec<_>>());
    let mut conn = admin.get_connection().expect("connects");
    let _: () = setuser.query(&mut conn).expect("a good ACL");
    let url = format!("redis://app:apples@{host}?prefix=app:");
    let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
    notices_come(&one, &two).await;
    let log: redis::Value = redis::cmd("ACL").arg("LOG").query(&mut conn).expect("works");
    let denied = format!("{log:?}");
    assert!(!denied.contains("eval") && !denied.contains("publish"), "{denied}");
    let other = open(&format!("redis://app:apples@{host}")).await.expect("opens");
    let error = Mutex::new(&other, "x").try_lock().await.expect_err("not its prefix");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
}

/// The server's answer to the login says so, or to a probe where there is no login. With a
/// password, that is not a wrong password.
#[tokio::test]
async fn a_server_without_a_connection_left_says_so() {
    let Some(server) = private("maxclients", &["--requirepass", "canary"]) else { return };
    let Some(open_to_all) = private("no_password", &[]) else { return };
    let host = format!("127.0.0.1:{}", server.port());
    let without = format!("127.0.0.1:{}", open_to_all.port());
    for url in [format!("redis://:canary@{host}"), format!("redis://{without}")] {
        let admin = redis::Client::open(&*url).expect("a good URL");
        let mut admin = admin.get_connection().expect("connects");
        let mut limit = |most: u32| {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg("maxclients").arg(most).exec(&mut admin).expect("works");
        };
        limit(1);
        // The answer may be lost: the server closes the connection right behind it.
        until("it says so", async || {
            let error = open(&url).await.expect_err("the administrator has the only one");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            error.to_string().contains("max number of clients")
        })
        .await;
        limit(100);
    }
    // A wrong password is still one, also where the server has none.
    for url in [format!("redis://:canarywrong@{host}"), format!("redis://:canary@{without}")] {
        let error = open(&url).await.expect_err("wrong");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains("refuses the user or password"), "{error}");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
}

#[tokio::test]
async fn foreign_keys_are_left_alone() {
    let Some(server) = private("foreign", &[]) else { return };
    let client = server.open("").await;
    let _: () = server.query(&["LPUSH", "holdline:{x}", "mine"]);
    let error = Mutex::new(&client, "x").try_lock().await.expect_err("it is a list");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.to_string().contains("something else"), "{error}");
    assert_eq!(client.inspect("x").await.expect_err("too").kind(), ErrorKind::Corrupt);
    for foreign in [
        "",
        "\u{1}",
        "\u{2}",
        "text",
        "-text",
        "5",
        &"-long text ".repeat(20),
        &"long text ".repeat(20),
        "\u{9}2345678901234567890123456789012345678901234567890123456789",
    ] {
        let _: () = server.query(&["SET", "holdline:{y}", foreign]);
        let error = Mutex::new(&client, "y").try_lock().await.expect_err("it is not ours");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        let error = client.inspect("y").await.expect_err("it is not free");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        let _held = Mutex::new(&client, "z").lock().await.expect("works");
        let names = client.list("").await.expect("they are left out");
        assert_eq!(names.iter().map(Name::as_str).collect::<Vec<_>>(), ["z"]);
    }
}

#[tokio::test]
async fn nobody_there() {
    let port = holdline_testkit::free_port();
    let start = Instant::now();
    let error = open(&format!("redis://127.0.0.1:{port}?timeout=500ms")).await.expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(2));
    let error = open("redis://u:canary@127.0.0.1:x").await.expect_err("no port");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn when_memory_runs_out_locks_can_be_kept_and_released() {
    let Some(server) = private("oom", &[]) else { return };
    let client = server.open("").await;
    let one = Mutex::new(&client, "x").lease(Duration::from_secs(2));
    let guard = one.lock().await.expect("works");
    let many = Mutex::new(&client, "many").lease(Duration::from_secs(2));
    let first = many.lock().await.expect("works");
    let other = server.open("").await;
    let lock = Mutex::new(&other, "many");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it waits", async || {
        client.inspect("many").await.is_ok_and(|info| info.waiters.len() == 1)
    })
    .await;
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    tokio::time::sleep(Duration::from_secs(4)).await; // two leases
    assert!(guard.is_valid() && first.is_valid(), "renewed");
    let error = Mutex::new(&client, "new").try_lock().await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // A waiter waits until there is room.
    let refusals = || {
        let errors: String = server.query(&["INFO", "errorstats"]);
        let (_, count) = errors.split_once("errorstat_OOM:count=").expect("it has refused one");
        let digits = count.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|count| count.parse::<u64>().ok()).expect("a number")
    };
    let before = refusals();
    let new = Mutex::new(&client, "new");
    let patient = tokio::spawn(async move { new.lock().await });
    until("it has been refused", async || refusals() > before).await;
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "0"]);
    let held = soon("admitted", patient).await.expect("no panic").expect("there is room");
    held.unlock().await.expect("held");
    guard.unlock().await.expect("released");
    first.unlock().await.expect("released");
    let next = soon("admitted", waiting).await.expect("no panic");
    next.expect("admitted").unlock().await.expect("held");
}

/// So can many at once, whose calls go together.
#[tokio::test]
async fn when_memory_runs_out_many_can_be_kept_and_released_at_once() {
    let Some(server) = private("oom_many", &[]) else { return };
    let client = server.open("").await;
    let lock = async |n| {
        let lock = Mutex::new(&client, format!("name {n}")).lease(Duration::from_secs(120));
        lock.lock().await.expect("works")
    };
    let guards = join_all((0..40).map(lock)).await;
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]);
    let extend = async |guard: &holdline::Guard| guard.extend(Duration::from_secs(240)).await;
    for kept in join_all(guards.iter().map(extend)).await {
        kept.expect("it needs no room");
    }
    for released in join_all(guards.into_iter().map(holdline::Guard::unlock)).await {
        released.expect("nor does this");
    }
    Mutex::new(&client, "new").try_lock().await.expect_err("no room");
}

#[tokio::test]
async fn half_removed_lines_admit_nobody_twice() {
    let Some(server) = private("half_removed", &[]) else { return };
    let client = server.open("").await;
    let store = client.store();
    let (line, note) = (Name::new("x").expect("good"), Arc::from("note"));
    let ticket = |id| Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: Duration::from_secs(10),
        wait_lease: Duration::from_secs(3),
        token_count: 1,
        min_token: 0,
    };
    let mut seqs = Vec::new();
    // More than are kept in one string.
    for id in 1..13 {
        match store.enter(&line, &ticket(id), &note, Enter::Queue).await.expect("works") {
            Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. } => seqs.push(seq),
            other => panic!("{other:?}"),
        }
    }
    for suffix in [":q", ":e"] {
        let _: i64 = server.query(&["DEL", &format!("holdline:{{x}}{suffix}")]);
        let keep = Enter::Keep(seqs[1]);
        let second = store.enter(&line, &ticket(2), &note, keep).await.expect("works");
        assert!(matches!(second, Standing::Waiting { .. }), "{second:?}");
    }
    assert!(store.leave(&line, TicketId(1)).await.expect("works"));
    let second = store.enter(&line, &ticket(2), &note, Enter::Keep(seqs[1])).await.expect("works");
    assert_eq!(second, Standing::Admitted(seqs[1]));
    let third = store.enter(&line, &ticket(3), &note, Enter::Keep(seqs[2])).await.expect("works");
    assert!(matches!(third, Standing::Waiting { .. }), "{third:?}");
    // Without its places, the line has lost them all; nobody is told that he holds.
    let _: i64 = server.query(&["DEL", "holdline:{x}:p"]);
    let second = store.enter(&line, &ticket(2), &note, Enter::Keep(seqs[1])).await.expect("works");
    assert_eq!(second, Standing::Lost);
    let next = store.enter(&line, &ticket(13), &note, Enter::Try).await.expect("works");
    assert!(matches!(next, Standing::Admitted(seq) if seq > seqs[11]), "{next:?}");
}

/// A place that somebody removes, a field alone or all of it, is neither waited for nor let in.
#[tokio::test]
async fn places_that_were_removed_by_hand_do_not_count() {
    let Some(server) = private("removed_by_hand", &[]) else { return };
    let client = server.open("").await;
    let (store, line, note) = (client.store(), Name::new("x").expect("good"), Arc::from("note"));
    let ticket = |id| holdline_testkit::ticket(id, Duration::from_secs(60));
    let mut seqs = Vec::new();
    for id in 1..13 {
        match store.enter(&line, &ticket(id), &note, Enter::Queue).await.expect("works") {
            Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. } => seqs.push(seq),
            other => panic!("{other:?}"),
        }
    }
    let keep = async |id: u128| {
        let seq = seqs[id as usize - 1];
        store.enter(&line, &ticket(id), &note, Enter::Keep(seq)).await.expect("works")
    };
    let remove = |command, suffix, id: u128| {
        let key = format!("holdline:{{x}}:{suffix}");
        assert_eq!(server.query::<i64>(&[command, &key, &format!("{id:032x}")]), 1);
    };
    // The first waiter.
    remove("HDEL", "p", 2);
    assert!(store.leave(&line, TicketId(1)).await.expect("works"));
    assert!(matches!(keep(4).await, Standing::Waiting { .. }), "the third is first");
    assert_eq!(keep(3).await, Standing::Admitted(seqs[2]));
    // The holder.
    for (command, suffix) in [("HDEL", "p"), ("ZREM", "q"), ("ZREM", "e")] {
        remove(command, suffix, 3);
    }
    assert!(matches!(keep(5).await, Standing::Waiting { .. }), "the fourth is first");
    assert_eq!(keep(4).await, Standing::Admitted(seqs[3]));
    // What is sorted.
    remove("ZREM", "q", 5);
    remove("ZREM", "e", 6);
    assert!(store.leave(&line, TicketId(4)).await.expect("works"));
    assert!(matches!(keep(6).await, Standing::Waiting { .. }), "the fifth is first");
    assert_eq!(keep(5).await, Standing::Admitted(seqs[4]));
    for id in [1, 2, 3, 4] {
        assert_eq!(keep(id).await, Standing::Lost);
    }
}

/// A number so high that its successor is the same, with no weight: the server is not kept busy.
#[tokio::test]
async fn a_record_that_somebody_changed_keeps_no_server_busy() {
    let Some(server) = private("changed", &[]) else { return };
    let client = server.open("").await;
    let pack = "local head = struct.pack('<Bddddddddd', 3, 1, 0, 1, 0, 2, 2^53, 0, 9e15, 9e15)
        local tail = string.rep('0', 31) .. '7' .. 'channel note'
        local place = struct.pack('<dddI4', 0, 2^53, 9e15, #tail) .. tail
        return redis.call('SET', KEYS[1], head .. place .. place)";
    let _: () = server.query(&["EVAL", pack, "1", "holdline:{x}"]);
    let _ = Mutex::new(&client, "x").try_lock().await;
    let other = Mutex::new(&client, "other").try_lock().await.expect("the server answers");
    assert!(other.is_some());
}

/// Each connection for notices wakes all waiters, so those that break at once come with pauses.
#[tokio::test]
async fn notices_that_break_at_once_are_subscribed_to_with_growing_pauses() {
    let subscribed: Arc<Cell<Vec<Instant>>> = Arc::default();
    let times = Arc::clone(&subscribed);
    let port = fake::server(move |words| match words {
        ["INFO", ..] => "$0\r\n\r\n".to_owned(),
        ["EVALSHA", ..] => ":1700000000000000\r\n".to_owned(),
        ["SUBSCRIBE", channel] => {
            times.lock().expect("no panic").push(Instant::now());
            let size = channel.len();
            format!("*3\r\n$9\r\nsubscribe\r\n${size}\r\n{channel}\r\n:1\r\n?nonsense\r\n")
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    let client = open(&format!("redis://127.0.0.1:{port}")).await.expect("opens");
    let _guard = Mutex::new(&client, "x").lock().await.expect("works");
    let times = || subscribed.lock().expect("no panic").clone();
    until("seven attempts", async || times().len() >= 7).await;
    // 20, 40, 80, 160, 320 and 640 ms, each shorter by half at most.
    let took = times()[6] - times()[0];
    assert!(took >= Duration::from_millis(630), "{took:?}");
}

/// A reply of another form may be that to another call, and so may all later ones on the
/// connection.
#[tokio::test]
async fn a_list_whose_reply_makes_no_sense_goes_on_over_another_connection() {
    let shifted: Arc<Cell<Option<usize>>> = Arc::default();
    let port = fake::server_of_connections(move |connection, words| match words {
        ["INFO", ..] => "$0\r\n\r\n".to_owned(),
        ["EVALSHA", ..] => ":1700000000000000\r\n".to_owned(),
        ["SCAN", ..] => {
            let mut shifted = shifted.lock().expect("no panic");
            let first = *shifted.get_or_insert(connection) == connection;
            if first { ":1\r\n" } else { "*2\r\n$1\r\n0\r\n*0\r\n" }.to_owned()
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    let client = open(&format!("redis://127.0.0.1:{port}")).await.expect("opens");
    assert_eq!(client.list("").await.expect("works"), []);
}
