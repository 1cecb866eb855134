//! `?scheme=redisson` beside what Redisson's `RLock` does, as its commands.

use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Backoff, ErrorKind, Mutex, Name, RwLock, Semaphore, open};
use holdline_testkit::redis::{Server, private};
use holdline_testkit::until;
use std::sync::Arc;
use std::time::{Duration, Instant};

const THEIRS: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:37";
const CHANNEL: &str = "redisson_lock__channel:{jobs}";

/// What `RLock.lock` does to a lock that is free, or its own.
fn take(server: &Server, key: &str) -> bool {
    let script = "if redis.call('EXISTS', KEYS[1]) == 1 and \
        redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
        redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return 1";
    server.query::<i64>(&["EVAL", script, "1", key, THEIRS]) == 1
}

/// What `RLock.unlock` does at last. Says how many were told.
fn give(server: &Server, key: &str, channel: &str) -> i64 {
    assert_eq!(server.query::<i64>(&["HINCRBY", key, THEIRS, "-1"]), 0);
    assert_eq!(server.query::<i64>(&["DEL", key]), 1);
    server.query(&["PUBLISH", channel, "0"])
}

/// Waits until so many listen to a channel.
async fn listeners(server: &Server, channel: &str, count: i64) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, now): (String, i64) = server.query(&["PUBSUB", "NUMSUB", channel]);
        if now == count {
            return;
        }
        assert!(Instant::now() < until, "{now} listen to {channel}, not {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn they_hold_while_we_wait_and_are_woken() {
    let Some(server) = private("redisson_they", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let mut late = 0;
    for n in 0..10 {
        assert!(take(&server, "jobs"));
        assert!(Mutex::new(&client, "jobs").try_lock().await.expect("works").is_none());
        let info = client.inspect("jobs").await.expect("works");
        assert_eq!(info.holders[0].note.label.as_deref(), Some(THEIRS));
        let lock = Mutex::new(&client, "jobs");
        let waiting = tokio::spawn(async move { lock.lock().await });
        if n == 0 {
            listeners(&server, CHANNEL, 1).await;
        }
        // Not when it looks by itself, a second after it began to wait, nor two.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let start = Instant::now();
        assert_eq!(give(&server, "jobs", CHANNEL), 1, "it went on listening");
        let guard = waiting.await.expect("no panic").expect("works");
        late += usize::from(start.elapsed() > Duration::from_millis(500));
        guard.unlock().await.expect("held");
        assert_eq!(server.query::<i64>(&["DBSIZE"]), 0, "nothing is left");
    }
    // A busy machine may be late, but not each time.
    assert!(late < 5, "{late} of 10 were not woken");
    listeners(&server, CHANNEL, 0).await; // nobody needs it any more
}

#[tokio::test]
async fn we_hold_as_they_would() {
    let Some(server) = private("redisson_we", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let mut hearing = server.conn();
    let mut heard = hearing.as_pubsub();
    heard.subscribe(CHANNEL).expect("subscribed");
    heard.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    let lock = Mutex::new(&client, "jobs").lease(Duration::from_secs(6)).label("mine");
    let guard = lock.lock().await.expect("works");
    let fields: Vec<String> = server.query(&["HGETALL", "jobs"]);
    let id = format!("{:032x}", guard.ticket().0);
    let uuid = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
    assert_eq!(fields[..2], [format!("{uuid}:0"), "1".to_owned()]);
    assert_eq!(fields[2..], ["mode", "holdline"]);
    let mut left: i64 = server.query(&["PTTL", "jobs"]);
    assert!((1..=6000).contains(&left));
    assert!(!take(&server, "jobs"));
    until("a renewal", async || {
        let before = std::mem::replace(&mut left, server.query(&["PTTL", "jobs"]));
        left > before
    })
    .await;
    assert!(left <= 6000 && guard.is_valid());
    let left: i64 = server.query(&["PTTL", "{jobs}:holdline"]);
    assert!((1..=6000).contains(&left), "the note ends with the lock: {left}");
    let info = client.inspect("jobs").await.expect("works");
    assert_eq!(info.holders[0].note.label.as_deref(), Some("mine"));
    guard.unlock().await.expect("held");
    assert_eq!(heard.get_message().expect("told").get_payload_bytes(), b"0");
    assert!(take(&server, "jobs"));
    // Somebody else's note is not taken for theirs.
    let _: () = server.query(&["SET", "{jobs}:holdline", "other {\"label\":\"not theirs\"}"]);
    let theirs = client.inspect("jobs").await.expect("works").holders.remove(0);
    assert_eq!(theirs.note.label.as_deref(), Some(THEIRS));
    // A lock that is broken by force tells those who wait, too.
    assert!(client.force_unlock("jobs", TicketId(1), "test").await.expect("works").is_none());
    assert!(client.force_unlock("jobs", theirs.id, "test").await.expect("works").is_some());
    assert_eq!(heard.get_message().expect("told").get_payload_bytes(), b"0");
    assert_eq!(server.query::<i64>(&["EXISTS", "jobs"]), 0);
}

/// The least time that a release takes while others listen.
const PAUSE: Duration = Duration::from_millis(1);

/// The holder hears of its release first: it would take the lock again before anybody who waits.
#[tokio::test]
async fn a_release_gives_those_who_wait_time_to_ask() {
    let Some(server) = private("redisson_time", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let mut hearing = server.conn();
    let mut heard = hearing.as_pubsub();
    heard.subscribe(CHANNEL).expect("subscribed");
    listeners(&server, CHANNEL, 1).await;
    for _ in 0..20 {
        let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
        let start = Instant::now();
        guard.unlock().await.expect("held");
        assert!(start.elapsed() >= PAUSE, "it may lock again after {:?}", start.elapsed());
    }
}

/// A process that has waited goes on listening for some time, and does not wait for itself.
#[tokio::test]
async fn a_release_that_only_this_process_hears_is_not_slower() {
    let Some(server) = private("redisson_alone", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    assert!(take(&server, "jobs"));
    let lock = Mutex::new(&client, "jobs");
    let waiting = tokio::spawn(async move { lock.lock().await });
    listeners(&server, CHANNEL, 1).await;
    assert_eq!(give(&server, "jobs", CHANNEL), 1);
    waiting.await.expect("no panic").expect("works").unlock().await.expect("held");
    until("a release without a pause", async || {
        let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
        let start = Instant::now();
        guard.unlock().await.expect("held");
        start.elapsed() < PAUSE
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_expires_is_not_waited_for_in_vain() {
    let Some(server) = private("redisson_expires", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let _: i64 = server.query(&["HSET", "jobs", THEIRS, "1"]);
    let _: i64 = server.query(&["PEXPIRE", "jobs", "300"]);
    let start = Instant::now();
    let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    guard.unlock().await.expect("held");
    // A holder without an end, and who never tells: looked at every second.
    let _: i64 = server.query(&["HSET", "jobs", THEIRS, "1"]);
    let lock = Mutex::new(&client, "jobs");
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _: i64 = server.query(&["DEL", "jobs"]);
    let guard = tokio::time::timeout(Duration::from_secs(3), waiting).await.expect("looked");
    guard.expect("no panic").expect("works").unlock().await.expect("held");
}

#[tokio::test]
async fn asked_for_twice_it_is_held_once() {
    let Some(server) = private("redisson_twice", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let (store, line, note) = (client.store(), Name::new("x").expect("good"), Arc::from("note"));
    let ticket = |id| Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease: Duration::from_secs(10),
        wait_lease: Duration::from_secs(3),
        token_count: 1,
        min_token: 0,
    };
    let enter = async |id, how| store.enter(&line, &ticket(id), &note, how).await.expect("works");
    for how in [Enter::Try, Enter::Try, Enter::Queue] {
        assert!(matches!(enter(1, how).await, Standing::Admitted(_)), "as after a lost reply");
        assert_eq!(server.query::<Vec<String>>(&["HVALS", "x"]), ["1", "holdline"]);
    }
    assert!(matches!(enter(2, Enter::Try).await, Standing::Waiting { .. }));
    assert!(!store.leave(&line, TicketId(2)).await.expect("works"), "owner only");
    assert!(store.leave(&line, TicketId(1)).await.expect("works"));
    assert!(!store.leave(&line, TicketId(1)).await.expect("works"), "once");
    assert!(matches!(enter(2, Enter::Try).await, Standing::Admitted(_)));
}

#[tokio::test]
async fn a_broken_connection_is_made_again_and_heard_over() {
    let Some(server) = private("redisson_broken", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    assert!(take(&server, "jobs"));
    let lock = Mutex::new(&client, "jobs");
    let waiting = tokio::spawn(async move { lock.lock().await });
    listeners(&server, CHANNEL, 1).await;
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    listeners(&server, CHANNEL, 1).await;
    let start = Instant::now();
    give(&server, "jobs", CHANNEL);
    let guard = waiting.await.expect("no panic").expect("works");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn an_abandoned_acquisition_leaves_nothing() {
    let Some(server) = private("redisson_gives_up", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    assert!(take(&server, "jobs"));
    let lock = Mutex::new(&client, "jobs");
    // Longer than it may take to subscribe on a busy machine.
    assert!(lock.lock_within(Duration::from_secs(3)).await.expect("works").is_none());
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    waiting.abort();
    client.settle().await;
    assert_eq!(server.query::<Vec<String>>(&["HKEYS", "jobs"]), [THEIRS]);
    listeners(&server, CHANNEL, 0).await;
}

#[tokio::test]
async fn polling_can_be_chosen_and_listens_to_nothing() {
    let Some(server) = private("redisson_polls", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    assert!(take(&server, "jobs"));
    let lock = Mutex::new(&client, "jobs").poll(Backoff::fixed(Duration::from_millis(20)));
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(give(&server, "jobs", CHANNEL), 0, "nobody listens");
    waiting.await.expect("no panic").expect("works").unlock().await.expect("held");
}

#[tokio::test]
async fn what_it_cannot_do_it_says() {
    let Some(server) = private("redisson_cannot", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let error = Semaphore::new(&client, "s", 2).acquire(1).await.expect_err("no weights");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = RwLock::new(&client, "t").read().await.expect_err("no weights");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let _: () = server.query(&["SET", "text", "x"]);
    let error = Mutex::new(&client, "text").try_lock().await.expect_err("it is a string");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    // A list shows locks, ours and theirs, and no other hash.
    let _: i64 = server.query(&["HSET", "hash", "field", "1"]);
    assert!(take(&server, "theirs"));
    let _ours = Mutex::new(&client, "ours").lock().await.expect("works");
    let names = client.list("").await.expect("works");
    assert_eq!(names.iter().map(Name::as_str).collect::<Vec<_>>(), ["ours", "theirs"]);
    // Such a hash is neither free nor held.
    let error = client.inspect("hash").await.expect_err("no lock");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:?}");
    let error = Mutex::new(&client, "hash").lock().await.expect_err("no lock");
    assert!(error.to_string().contains("no lock of Redisson's"), "{error}");
}

/// What `RReadWriteLock`'s write lock does: it looks at nothing but `mode`.
fn write(server: &Server, key: &str) -> bool {
    let script = "local mode = redis.call('HGET', KEYS[1], 'mode') \
        if mode == false then redis.call('HSET', KEYS[1], 'mode', 'write') \
        redis.call('HSET', KEYS[1], ARGV[1] .. ':write', 1) \
        redis.call('PEXPIRE', KEYS[1], 30000) return 1 end \
        if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 1 then \
        return 1 end return 0";
    server.query::<i64>(&["EVAL", script, "1", key, THEIRS]) == 1
}

/// What its read lock does.
fn read(server: &Server, key: &str) -> bool {
    let script = "local mode = redis.call('HGET', KEYS[1], 'mode') \
        if mode == false then redis.call('HSET', KEYS[1], 'mode', 'read') \
        redis.call('HSET', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) \
        return 1 end \
        if mode == 'read' then redis.call('HINCRBY', KEYS[1], ARGV[1], 1) return 1 end return 0";
    server.query::<i64>(&["EVAL", script, "1", key, THEIRS]) == 1
}

#[tokio::test]
async fn its_read_write_lock_and_we_keep_each_other_out() {
    let Some(server) = private("redisson_rw", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
    assert!(!write(&server, "jobs") && !read(&server, "jobs"), "they see that it is taken");
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
    for (kind, take) in [("write", write as fn(&Server, &str) -> bool), ("read", read)] {
        assert!(take(&server, kind));
        let errors = [
            Mutex::new(&client, kind).try_lock().await.expect_err("theirs"),
            Mutex::new(&client, kind).lock().await.expect_err("theirs"),
            client.inspect(kind).await.expect_err("theirs"),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:?}");
            assert!(error.to_string().contains("Redisson's read-write lock"), "{error}");
        }
        assert!(server.query::<i64>(&["EXISTS", kind]) == 1);
    }
}

/// As the guide says, and no more.
#[tokio::test]
async fn the_least_that_an_acl_must_allow() {
    let args = ["--notify-keyspace-events", "Kgx"];
    let Some(server) = private("redisson_acl", &args) else { return };
    let rules = [
        (
            "string",
            "~app:* ~{app:* &__keyspace@0__:app:* +evalsha +eval +get +set +del +pttl +pexpire \
             +config|get +subscribe +unsubscribe +ping",
        ),
        (
            "redisson",
            "~app:* ~{app:* &redisson_lock__channel:* +evalsha +eval +hexists +hset +hgetall \
             +exists +get +set +del +pttl +pexpire +publish +subscribe +unsubscribe +ping",
        ),
    ];
    for (scheme, rules) in rules {
        let mut words = vec!["ACL", "SETUSER", scheme, "reset", "on", ">word", "resetchannels"];
        words.extend(rules.split_whitespace());
        let _: () = server.query(&words);
        let url = format!("redis://{scheme}:word@127.0.0.1:{}", server.port());
        let url = format!("{url}?scheme={scheme}&prefix=app:");
        let (one, two) = (open(&url).await.expect("opens"), open(&url).await.expect("opens"));
        assert!(one.capabilities().notifications);
        let guard = Mutex::new(&one, "x").label("me").lock().await.expect("works");
        let lock = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let info = two.inspect("x").await.expect("works");
        assert_eq!(info.holders[0].note.label.as_deref(), Some("me"));
        let start = Instant::now();
        guard.unlock().await.expect("held");
        let next = waiting.await.expect("no panic").expect("works");
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        next.unlock().await.expect("held");
        let channel = if scheme == "string" {
            "__keyspace@0__:app:x"
        } else {
            "redisson_lock__channel:{app:x}"
        };
        listeners(&server, channel, 0).await;
        let log: Vec<redis::Value> = server.query(&["ACL", "LOG"]);
        let info = "the check at opening asks for INFO, which is not needed";
        let denied: Vec<String> = log.iter().map(|entry| format!("{entry:?}")).collect();
        assert!(
            denied.iter().all(|entry| entry.contains("'info'") || entry.contains("client")),
            "{info}: {denied:?}"
        );
    }
}

/// The note of a lock is a key beside it, which is another lock's if that has such a name.
#[tokio::test]
async fn a_lock_whose_key_is_anothers_note_is_refused() {
    let Some(server) = private("redisson_note", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let (jobs, other) = (Mutex::new(&client, "jobs"), Mutex::new(&client, "{jobs}:holdline"));
    let held = other.try_lock().await;
    jobs.lock().await.expect("works").unlock().await.expect("held");
    let rival = server.open("?scheme=redisson").await;
    let second = Mutex::new(&rival, "{jobs}:holdline").try_lock().await;
    let both = matches!((&held, &second), (Ok(Some(_)), Ok(Some(_))));
    assert!(!both, "two hold one lock");
    for refused in [held, second] {
        assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Invalid);
    }
    let other = Mutex::new(&client, "jobs:holdline").try_lock().await;
    assert!(other.expect("a name like any other").is_some());
}

/// A hash that several have a field of is no lock that one of them can be removed from: the others
/// would go with it.
#[tokio::test]
async fn of_several_owners_none_is_removed() {
    let Some(server) = private("redisson_several", &[]) else { return };
    let client = server.open("?scheme=redisson").await;
    let another = THEIRS.replace(":37", ":38");
    assert_eq!(server.query::<i64>(&["HSET", "jobs", THEIRS, "1", &another, "1"]), 2);
    let info = client.inspect("jobs").await.expect("works");
    let (line, id) = (Name::new("jobs").expect("good"), info.holders[0].id);
    let error = client.store().evict(&line, id, "why").await.expect_err("there are others");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(server.query::<i64>(&["HLEN", "jobs"]), 2);
}
