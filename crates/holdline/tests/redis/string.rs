//! `?scheme=string` beside the clients that it shares locks with, as their commands.

use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline::{Backoff, Client, Election, ErrorKind, Mutex, Name, Semaphore, blocking, open};
use holdline_testkit::redis::{Server, private};
use holdline_testkit::{Warnings, persist, released, soon, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";

/// What redsync, node-redlock and redis-py do to take a lock.
fn take(server: &Server, key: &str, value: &str) -> bool {
    server.query::<Option<String>>(&["SET", key, value, "NX", "PX", "10000"]).is_some()
}

fn url(server: &Server) -> String {
    format!("{}?scheme=string", server.url())
}

#[tokio::test]
async fn they_hold_while_we_wait() {
    let Some(server) = private("string_they", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
    assert!(take(&server, "jobs", "their value"));
    assert!(Mutex::new(&client, "jobs").try_lock().await.expect("works").is_none());
    let info = client.inspect("jobs").await.expect("works");
    assert_eq!(info.holders[0].note.label.as_deref(), Some("their value"));
    let lock = Mutex::new(&client, "jobs").poll(Backoff::fixed(Duration::from_millis(20)));
    let waiting = tokio::spawn(async move { lock.lock().await });
    assert_eq!(server.query::<i64>(&["EVAL", EXTEND, "1", "jobs", "their value", "20000"]), 1);
    assert_eq!(server.query::<i64>(&["EVAL", DELETE, "1", "jobs", "their value"]), 1);
    let guard = waiting.await.expect("no panic").expect("works");
    guard.unlock().await.expect("held");
    assert_eq!(server.query::<i64>(&["EXISTS", "jobs"]), 0);
}

/// A release would make that lock's key a list, and so free the lock.
#[tokio::test]
async fn a_lock_whose_key_is_that_of_a_signal_stays() {
    let Some(server) = private("string_signal", &[]) else { return };
    let signals = open(&(url(&server) + "&signal_list=free:")).await.expect("opens");
    let other = open(&url(&server)).await.expect("opens");
    let held = Mutex::new(&other, "free:jobs").lock().await.expect("works");
    let guard = Mutex::new(&signals, "jobs").lock().await.expect("works");
    guard.unlock().await.expect("held");
    held.unlock().await.expect("it was held all the time");
    let error = Mutex::new(&signals, "free:jobs").try_lock().await.expect_err("it is a signal's");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// The list's key is another lock, or the user may not publish: the lock is free all the same.
#[tokio::test]
async fn a_release_that_cannot_wake_those_who_wait_is_warned_of() {
    let Some(server) = private("string_silent", &[]) else { return };
    let _: () = server.query(&["SET", "free:jobs", "a lock"]);
    let _: () = server.query(&["ACL", "SETUSER", "default", "-publish"]);
    for (options, is_warned_of) in [
        ("scheme=string", false),
        ("scheme=string&signal_list=free:", true),
        ("scheme=string&signal_channel=free", true),
        ("scheme=redisson", true),
    ] {
        let client = open(&format!("{}?{options}", server.url())).await.expect("opens");
        let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
        let warnings = Warnings::default();
        let heard = tracing::subscriber::set_default(warnings.subscriber());
        guard.unlock().await.expect("held");
        drop(heard);
        let warned = warnings.all().iter().any(|warning| warning.contains("did not notify"));
        assert_eq!(warned, is_warned_of, "{options}: {:?}", warnings.all());
        assert_eq!(server.query::<i64>(&["EXISTS", "jobs"]), 0, "{options}");
    }
}

/// One element for each release, and it does not stay.
#[tokio::test]
async fn a_signal_that_nobody_waits_for_goes() {
    let Some(server) = private("string_gone", &[]) else { return };
    let client = open(&(url(&server) + "&signal_list=free:")).await.expect("opens");
    for _ in 0..2 {
        let guard = Mutex::new(&client, "jobs").lock().await.expect("works");
        guard.unlock().await.expect("held");
        assert!(server.query::<i64>(&["LLEN", "free:jobs"]) <= 1);
        assert_ne!(server.query::<i64>(&["PTTL", "free:jobs"]), -1, "it stays");
    }
}

#[tokio::test]
async fn we_hold_while_they_wait() {
    let Some(server) = private("string_we", &[]) else { return };
    let client = open(&(url(&server) + "&prefix=app:")).await.expect("opens");
    let lock = Mutex::new(&client, "jobs").lease(Duration::from_secs(6));
    let guard = lock.lock().await.expect("works");
    let mut left: i64 = server.query(&["PTTL", "app:jobs"]);
    until("a renewal", async || {
        let before = std::mem::replace(&mut left, server.query(&["PTTL", "app:jobs"]));
        left > before
    })
    .await;
    assert!(!take(&server, "app:jobs", "theirs"));
    assert_eq!(server.query::<i64>(&["EVAL", DELETE, "1", "app:jobs", "theirs"]), 0);
    assert!(guard.is_valid());
    guard.unlock().await.expect("held");
    assert!(take(&server, "app:jobs", "theirs"));
}

/// A holder that changes its note meanwhile, as a leader that proclaims a value, is still the one
/// that was named. G19.
#[test]
fn a_holder_whose_note_changes_is_removed_by_force() {
    let Some(server) = private("string_note", &[]) else { return };
    let client = blocking::open(&url(&server)).expect("opens");
    for turn in 0..20 {
        let guard = client.mutex("jobs").lock().expect("works");
        let (id, changes) = (guard.ticket(), AtomicU32::new(0));
        // Only while it is there.
        let change = || {
            let value = format!("{id}{}", changes.fetch_add(1, Ordering::Relaxed));
            server.query::<Option<String>>(&["SET", "jobs", &value, "XX", "KEEPTTL"]).is_some()
        };
        let removed = std::thread::scope(|scope| {
            let changing = scope.spawn(|| while change() {});
            while changes.load(Ordering::Relaxed) < 2 && !changing.is_finished() {}
            let removed = client.force_unlock("jobs", id, "a test");
            let _: i64 = server.query(&["DEL", "jobs"]); // if it is not removed
            removed
        });
        assert_eq!(removed.expect("works"), Some(0), "turn {turn}");
    }
}

/// Of another library's holder the owner is the whole value, however long that is.
#[tokio::test]
async fn a_holder_of_another_library_is_removed_by_force() {
    let Some(server) = private("string_foreign", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
    for value in ["short", "a value that is longer than the digits of a ticket"] {
        assert!(take(&server, "jobs", value));
        let theirs = client.inspect("jobs").await.expect("works").holders.remove(0);
        let removed = client.force_unlock("jobs", theirs.id, "a test").await.expect("works");
        assert_eq!(removed, Some(0), "{value}");
        assert_eq!(server.query::<i64>(&["EXISTS", "jobs"]), 0);
    }
}

/// A leader that proclaims another value still has no more than its lease. G11.
#[tokio::test]
async fn a_holder_whose_note_changes_keeps_its_lease() {
    let Some(server) = private("string_lease", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
    let election = Election::new(&client, "jobs").lease(Duration::from_secs(60));
    let leader = election.campaign("one").await.expect("works");
    leader.proclaim("two").await.expect("it leads");
    let seen = election.leader().await.expect("works").expect("it leads");
    assert_eq!(seen.value, "two");
    let left: i64 = server.query(&["PTTL", "jobs"]);
    assert!((1..=60_000).contains(&left), "{left}");
    leader.resign().await.expect("it led");
}

#[tokio::test]
async fn a_lock_taken_by_others_is_lost() {
    let Some(server) = private("string_lost", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
    let lock = Mutex::new(&client, "jobs").lease(Duration::from_millis(600));
    let guard = lock.lock().await.expect("works");
    let _: i64 = server.query(&["DEL", "jobs"]);
    assert!(take(&server, "jobs", "theirs"));
    soon("it is told", guard.lost()).await;
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    assert_eq!(server.query::<String>(&["GET", "jobs"]), "theirs");
    let theirs = client.inspect("jobs").await.expect("works").holders.remove(0);
    assert!(client.force_unlock("jobs", TicketId(1), "test").await.expect("works").is_none());
    assert!(client.force_unlock("jobs", theirs.id, "test").await.expect("works").is_some());
    assert_eq!(server.query::<i64>(&["EXISTS", "jobs"]), 0);
}

#[tokio::test]
async fn an_unknown_outcome_is_settled_by_asking_again() {
    let Some(server) = private("string_settled", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
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
    let enter = async |id| store.enter(&line, &ticket(id), &note, Enter::Try).await.expect("works");
    assert!(matches!(enter(1).await, Standing::Admitted(_)));
    assert!(matches!(enter(1).await, Standing::Admitted(_)), "it is ours");
    assert!(matches!(enter(2).await, Standing::Waiting { .. }), "it is somebody else's");
    assert!(store.leave(&line, TicketId(1)).await.expect("works"));
    assert!(matches!(enter(2).await, Standing::Admitted(_)), "it is nobody's");
}

/// Waits until so many listen to what happens to a key.
async fn listeners(server: &Server, key: &str, count: i64) {
    let channel = format!("__keyspace@0__:{key}");
    let until = Instant::now() + Duration::from_secs(60);
    while server.query::<(String, i64)>(&["PUBSUB", "NUMSUB", &channel]).1 != count {
        assert!(Instant::now() < until, "never {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_that_tells_of_its_keys_wakes_us() {
    for flags in ["Kgx", "KEA"] {
        let args = ["--notify-keyspace-events", flags];
        let Some(server) = private("string_events", &args) else { return };
        let client = open(&url(&server)).await.expect("opens");
        assert!(client.capabilities().notifications);
        let mut quickest = Duration::MAX;
        // A busy machine may be late, but not each time.
        for _ in 0..5 {
            quickest = quickest.min(woken(&server, &client).await);
            if quickest < Duration::from_millis(500) {
                break;
            }
        }
        assert!(quickest < Duration::from_millis(500), "at best after {quickest:?}");
    }
}

/// How long it takes from a release of theirs until one who waits has the lock.
async fn woken(server: &Server, client: &Client) -> Duration {
    assert!(take(server, "jobs", "theirs"));
    let lock = Mutex::new(client, "jobs");
    let waiting = tokio::spawn(async move { lock.lock().await });
    listeners(server, "jobs", 1).await;
    // A renewal of theirs is no reason to try.
    let (tries, start) = (scripts(server), Instant::now());
    assert_eq!(server.query::<i64>(&["EVAL", EXTEND, "1", "jobs", "theirs", "20000"]), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let by_itself = start.elapsed().as_secs() + 1;
    assert!(scripts(server) <= tries + by_itself, "at most to look by itself");
    let start = Instant::now();
    assert_eq!(server.query::<i64>(&["EVAL", DELETE, "1", "jobs", "theirs"]), 1);
    let guard = waiting.await.expect("no panic").expect("works");
    let took = start.elapsed();
    guard.unlock().await.expect("held");
    listeners(server, "jobs", 0).await;
    took
}

/// How many scripts the server has been asked to run by their names.
fn scripts(server: &Server) -> u64 {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_server_that_does_not_tell_is_polled() {
    for flags in ["", "Egx", "Kg"] {
        let args = ["--notify-keyspace-events", flags];
        let Some(server) = private("string_silent", &args) else { return };
        let client = open(&url(&server)).await.expect("opens");
        assert!(!client.capabilities().notifications, "{flags}");
        assert!(take(&server, "jobs", "theirs"));
        let lock = Mutex::new(&client, "jobs");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _: i64 = server.query(&["DEL", "jobs"]);
        waiting.await.expect("no panic").expect("works").unlock().await.expect("held");
        let set: (String, String) = server.query(&["CONFIG", "GET", "notify-keyspace-events"]);
        assert_eq!(set.1.len(), flags.len(), "it is never set by us: {}", set.1);
    }
}

#[tokio::test]
async fn what_it_cannot_do_it_says() {
    let Some(server) = private("string_cannot", &[]) else { return };
    let client = open(&url(&server)).await.expect("opens");
    let error = Semaphore::new(&client, "s", 2).acquire(1).await.expect_err("no weights");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let _: i64 = server.query(&["LPUSH", "list", "x"]);
    let error = Mutex::new(&client, "list").try_lock().await.expect_err("it is a list");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

/// What has tokens cannot be counted together with what has none.
#[tokio::test]
async fn a_quorum_has_tokens_on_all_nodes_or_on_none() {
    let Some(server) = private("string_quorum", &[]) else { return };
    let node = |prefix: &str| format!("{}&prefix={prefix}:", url(&server));
    let mixed = format!("quorum:memory:mixed-a,memory:mixed-b,{}", node("c"));
    // A node that does not answer in time is let be: two of three are enough to begin with.
    let refused = async {
        loop {
            if let Err(error) = open(&mixed).await {
                return error;
            }
        }
    };
    let error = soon("a refusal", refused).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let client = open(&format!("quorum:{},{},{}", node("a"), node("b"), node("c"))).await;
    let client = client.expect("none has tokens");
    assert!(!client.capabilities().fencing_tokens && !client.capabilities().token_ranges);
    assert!(take(&server, "a:jobs", "theirs"));
    let guard = Mutex::new(&client, "jobs").lock().await.expect("two of three are free");
    assert_eq!(guard.token(), 0);
    assert!(!take(&server, "b:jobs", "theirs"));
    guard.unlock().await.expect("held");
    client.settle().await;
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]), ["a:jobs"]);

    // Broken by force, while others take it at once.
    for _ in 0..10 {
        let guard = Mutex::new(&client, "jobs").lock().await.expect("two of three are free");
        let rivals = (0..16).map(|_| {
            let other = Client::new(client.store().clone());
            let lock = Mutex::new(&other, "jobs").poll(Backoff::fixed(Duration::from_millis(1)));
            tokio::spawn(async move { released(persist(lock).await).await })
        });
        let rivals: Vec<_> = rivals.collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let token = client.force_unlock("jobs", guard.ticket(), "test").await.expect("it goes");
        assert_eq!(token, Some(0));
        guard.unlock().await.expect_err("broken");
        for rival in rivals {
            soon("its turn", rival).await.expect("no panic");
        }
    }
}
