//! Ways to wait for a lock, to retry and to lose it that are described in documents on distributed
//! locks, each on a real server. `docs/experiments.md` numbers the documents (D1, D3, D5) and
//! measures what they claim.

use holdline::{Backoff, ErrorKind, Mutex, OnLoss, open};
use holdline_testkit::redis::{Server, private};
use holdline_testkit::{Link, Way, until};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Cell};
use std::time::{Duration, Instant};

/// Somebody else's value, as it would be written by a lock that is a string.
const THEIRS: &str = "somebody else";

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn take(server: &Server, key: &str) -> bool {
    let words = ["SET", key, THEIRS, "NX", "PX", "60000"];
    server.query::<Option<String>>(&words).is_some()
}

/// Sees when scripts come to a server, by the server's clock.
struct Watcher(Arc<Cell<Vec<Duration>>>);

impl Watcher {
    fn of(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
        stream.write_all(b"MONITOR\r\n").expect("it takes it");
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().expect("an answer").expect("an answer"), "+OK");
        let seen = Arc::new(Cell::new(Vec::new()));
        let into = Arc::clone(&seen);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((time, _)) = line.split_once(' ').filter(|_| line.contains("EVALSHA")) {
                    let (seconds, micros) = time[1..].split_once('.').expect("a time");
                    let [seconds, micros] = [seconds, micros].map(|n| n.parse::<u64>().expect("n"));
                    let at = Duration::from_secs(seconds) + Duration::from_micros(micros);
                    into.lock().expect("no panic").push(at);
                }
            }
        });
        Watcher(seen)
    }

    /// The times between two scripts, so far.
    fn gaps(&self) -> Vec<Duration> {
        let seen = self.0.lock().expect("no panic");
        seen.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect()
    }
}

/// D1: a try every 50 ms, until it works or the time to wait is over.
#[tokio::test]
async fn polling_every_50_ms_within_a_total_time() {
    let Some(server) = private("scheme_polling", &[]) else { return };
    let client = server.open("?scheme=string").await;
    let lock = Mutex::new(&client, "jobs").poll(Backoff::fixed(ms(50)));
    assert!(take(&server, "jobs"));
    let (watcher, start) = (Watcher::of(&server), Instant::now());
    assert!(lock.lock_within(ms(500)).await.expect("works").is_none());
    let took = start.elapsed();
    assert!(took >= ms(500) && took < ms(1500), "{took:?}");
    let gaps = watcher.gaps();
    assert!((2..=10).contains(&gaps.len()), "{gaps:?}");
    // The last one is cut short by the end of the time.
    assert!(gaps[..gaps.len() - 1].iter().all(|gap| *gap >= ms(45)), "{gaps:?}");
    // And if it is released in time, it is had in time.
    let waiting = tokio::spawn(async move { lock.lock_within(ms(5000)).await });
    tokio::time::sleep(ms(120)).await;
    let _: i64 = server.query(&["DEL", "jobs"]);
    let guard = waiting.await.expect("no panic").expect("works").expect("in time");
    guard.unlock().await.expect("held");
}

/// D3: a spin whose pause is 1 ms shorter after each failure, down to 10 ms, so that
/// the one that waits longest looks most often.
#[tokio::test]
async fn a_spin_that_shrinks_by_a_millisecond_down_to_ten() {
    let Some(server) = private("scheme_shrinking", &[]) else { return };
    let client = server.open("?scheme=string").await;
    assert!(take(&server, "jobs"));
    let watcher = Watcher::of(&server);
    let lock = Mutex::new(&client, "jobs").poll(Backoff::shrinking(ms(50)));
    // It comes down, however long that takes a busy machine.
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("the shortest pauses", async || watcher.gaps().len() > 60).await;
    waiting.abort();
    let gaps = &watcher.gaps()[..60];
    for (n, gap) in gaps.iter().enumerate() {
        let pause = ms(50_u64.saturating_sub(n as u64).max(10));
        assert!(*gap + ms(5) >= pause, "pause {n} was {gap:?}, not {pause:?}");
    }
    let shortest = gaps[40..].iter().min().expect("there are more");
    assert!(*shortest < ms(25), "{gaps:?}");
}

/// D5: a waiter subscribes, and is told by the holder that releases. What happens between its
/// failure and its subscription must not be missed.
#[tokio::test]
async fn a_release_is_published_to_subscribers() {
    let Some(server) = private("scheme_published", &[]) else { return };
    for query in ["?scheme=line", "?scheme=redisson&prefix=r:"] {
        let (one, two) = (server.open(query).await, server.open(query).await);
        let mut late = 0;
        for n in 0..40 {
            // Another name each time, so that each time there is something to subscribe to.
            let name = format!("jobs {n}");
            let guard = Mutex::new(&one, &name).lock().await.expect("works");
            let lock = Mutex::new(&two, &name);
            let waiting = tokio::spawn(async move { lock.lock().await });
            tokio::time::sleep(Duration::from_micros(n * 100)).await;
            let start = Instant::now();
            guard.unlock().await.expect("held");
            let next = waiting.await.expect("no panic").expect("works");
            // By itself it would look a second after it began.
            late += u32::from(start.elapsed() > ms(700));
            next.unlock().await.expect("held");
        }
        assert!(late <= 1, "{query}: {late} of 40 were not told"); // a busy machine may stall once
    }
}

/// D5: a waiter listens to what happens to the key, which is told by the server: its
/// deletion, and its expiry, which nobody could publish.
#[tokio::test]
async fn the_server_tells_of_a_key_that_goes() {
    let args = ["--notify-keyspace-events", "KEA", "--hz", "100"];
    let Some(server) = private("scheme_events", &args) else { return };
    let client = server.open("?scheme=string").await;
    for n in 0..20 {
        let name = format!("jobs {n}");
        let (expires, life) = (n % 4 == 0, if n % 4 == 0 { "450" } else { "60000" });
        let words = ["SET", &name, THEIRS, "NX", "PX", life];
        assert!(server.query::<Option<String>>(&words).is_some());
        let lock = Mutex::new(&client, &name);
        let start = Instant::now();
        let waiting = tokio::spawn(async move { lock.lock().await });
        if expires {
            let guard = waiting.await.expect("no panic").expect("works");
            assert!(start.elapsed() < ms(900), "{:?}", start.elapsed());
            guard.unlock().await.expect("held");
            continue;
        }
        tokio::time::sleep(Duration::from_micros(n * 200)).await;
        let start = Instant::now();
        assert_eq!(server.query::<i64>(&["DEL", &name]), 1);
        let guard = waiting.await.expect("no panic").expect("works");
        assert!(start.elapsed() < ms(700), "{n}: {:?}", start.elapsed());
        guard.unlock().await.expect("held");
    }
}

/// D5: an answer does not come. Asked again with the same value, the server says which
/// of three it is: it is ours already, it is nobody's, it is somebody else's.
#[tokio::test]
async fn a_retry_finds_out_what_became_of_the_first_attempt() {
    let Some(server) = private("scheme_retry", &[]) else { return };
    for scheme in ["line", "string", "redisson"] {
        let link = Link::to(("127.0.0.1", server.port())).expect("a port");
        let url = format!("redis://{}?scheme={scheme}&prefix={scheme}:", link.address());
        let client = open(&url).await.expect("opens");
        let lock = Mutex::new(&client, "x").lease(Duration::from_secs(4));
        // So that all connections are there.
        lock.lock().await.expect("works").unlock().await.expect("held");
        // It is ours: the server did it, and only the answer was lost.
        link.lose_next_reply();
        let guard = lock.try_lock().await.expect("works").expect("ours");
        assert_eq!(link.replies_to_lose(), 0, "{scheme}: it was lost");
        let info = client.inspect("x").await.expect("works");
        assert_eq!(info.holders.len(), 1, "{scheme}: once");
        assert_eq!(info.holders[0].id, guard.ticket());
        assert!(info.holders[0].expires_in > Duration::from_secs(2), "its lease begins anew");
        guard.unlock().await.expect("held");
        // It is nobody's: the request never came there.
        link.stall(Way::Requests);
        let again = lock.clone();
        let trying = tokio::spawn(async move { again.lock().await });
        tokio::time::sleep(ms(50)).await;
        link.reset();
        link.mend();
        let guard = trying.await.expect("no panic").expect("works");
        guard.unlock().await.expect("held");
        // It is somebody else's, who came in the meantime.
        let rival = open(&format!("{}?scheme={scheme}&prefix={scheme}:", server.url())).await;
        let rival = rival.expect("opens");
        link.stall(Way::Requests);
        let trying = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(ms(50)).await;
        let theirs = Mutex::new(&rival, "x").try_lock().await.expect("works").expect("free");
        link.reset();
        link.mend();
        tokio::time::sleep(ms(400)).await;
        assert!(!trying.is_finished(), "{scheme}: it waits");
        assert!(theirs.is_valid());
        theirs.unlock().await.expect("never touched");
        trying.await.expect("no panic").expect("works").unlock().await.expect("held");
    }
}

/// D3: a holder renews three times within a lease, and any one is enough.
#[tokio::test]
async fn three_renewals_a_lease_of_which_one_is_enough() {
    let Some(server) = private("scheme_renewals", &[]) else { return };
    let link = Link::to(("127.0.0.1", server.port())).expect("a port");
    let url = format!("redis://{}?scheme=string", link.address());
    let client = open(&url).await.expect("opens");
    let lease = ms(3000);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    let watcher = Watcher::of(&server);
    until("some renewals", async || watcher.gaps().len() >= 8).await;
    let mut gaps = watcher.gaps();
    gaps.sort();
    // On a busy machine some are late.
    let usual = gaps[gaps.len() / 2];
    assert!((lease * 2 / 9..=lease / 3).contains(&usual), "{gaps:?}");
    // Nothing comes through for half of a lease: two of the three.
    link.stall(Way::Both);
    tokio::time::sleep(lease / 2).await;
    assert!(guard.is_valid());
    link.mend();
    tokio::time::sleep(lease).await;
    assert!(guard.is_valid(), "the third was enough");
    guard.unlock().await.expect("held to the end");
}

/// Counts while it runs, every few milliseconds, and says so.
async fn work(steps: Arc<AtomicU64>, most: u64) -> u64 {
    while steps.fetch_add(1, Ordering::SeqCst) < most {
        tokio::time::sleep(ms(5)).await;
    }
    most
}

/// D5: when renewal fails until the lease is over, the conservative policy breaks the
/// work off and says so, before anybody else can come in.
#[tokio::test]
async fn the_conservative_policy_breaks_off() {
    let Some(server) = private("scheme_conservative", &[]) else { return };
    let client = server.open("?scheme=string").await;
    let lease = ms(2000);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("works");
    let steps = Arc::new(AtomicU64::new(0));
    server.pause();
    let start = Instant::now();
    let error = guard.protect(work(steps.clone(), u64::MAX)).await.expect_err("broken off");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert!(start.elapsed() < lease, "nobody can be in yet: {:?}", start.elapsed());
    let done = steps.load(Ordering::SeqCst);
    assert!(done > 0);
    server.resume();
    let rival = open(&format!("{}?scheme=string", server.url())).await.expect("opens");
    let next = Mutex::new(&rival, "x").lock().await.expect("works");
    assert_eq!(steps.load(Ordering::SeqCst), done, "not a step was taken since");
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    assert!(next.is_valid(), "what was lost releases nothing of others");
}

/// D5: the aggressive policy goes on, for work that does no harm if done by two. The
/// holder still learns of the loss, and where there are tokens its own is lower than the next.
#[tokio::test]
async fn the_aggressive_policy_goes_on() {
    let Some(server) = private("scheme_aggressive", &[]) else { return };
    let (one, two) = (server.open("").await, server.open("").await);
    let lock = Mutex::new(&one, "x").lease(ms(1000)).on_loss(OnLoss::Continue);
    let guard = lock.lock().await.expect("works");
    let (steps, most) = (Arc::new(AtomicU64::new(0)), 500);
    let _: i64 = server.query(&["DEL", "holdline:{x}"]);
    let next = Mutex::new(&two, "x").try_lock().await.expect("works").expect("it is free");
    let done = guard.protect(work(steps, most)).await.expect("it goes on");
    assert_eq!(done, most);
    assert!(!guard.is_valid());
    assert!(guard.token() < next.token());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    next.unlock().await.expect("held");
}
