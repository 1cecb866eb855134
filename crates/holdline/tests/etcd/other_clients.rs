//! The known holes of other clients of etcd, each with the number of its report, and shut here.
//!
//! Two more have files of their own: `cutoff.rs` (leases that only a leader of the past prolongs,
//! etcd#15247) and `loss.rs`.

use futures_util::future::join_all;
use holdline::{Client, ErrorKind, Mutex, Semaphore};
use holdline_testkit::etcd::start;
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{Link, Way, persist, released, soon, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The server keeps it for 2 s.
const SHORT: Duration = Duration::from_millis(1500);

async fn waiters(client: &Client, name: &str, count: usize) {
    until("waiters", async || {
        client.inspect(name).await.is_ok_and(|info| info.waiters.len() == count)
    })
    .await;
}

/// etcd#11456, found by Jepsen: who waited was told "yours" when the one ahead was gone, though its
/// own lease had run out meanwhile, and others were in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_on_a_dead_lease() {
    let Some(servers) = start(3) else { return };
    let (one, three, flaky) = (
        servers.client().await,
        servers.client().await,
        FlakyLinks::to("etcd", &servers.hosts(), ""),
    );
    let first = Mutex::new(&one, "x").lock().await.expect("it is there");
    let two = Mutex::new(&flaky.client().await, "x").lease(SHORT);
    let second = tokio::spawn(async move { two.lock().await });
    waiters(&one, "x", 1).await;
    let asks = Mutex::new(&three, "x");
    let third = tokio::spawn(async move { asks.lock().await });
    waiters(&one, "x", 2).await;
    flaky.cut(Cut::Silence);
    // The second is the next, and cannot be told; then its lease runs out.
    first.unlock().await.expect("held");
    let third = soon("the third", third).await.expect("no panic").expect("it is there");
    flaky.mend();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(third.is_valid() && !second.is_finished(), "two hold it");
    let token = third.token();
    third.unlock().await.expect("held");
    let second = soon("the second", second).await.expect("no panic").expect("it is there");
    assert!(second.token() > token && second.is_valid());
    second.unlock().await.expect("held");
}

/// etcd#19597, #11777: a waiter waited on for hours after its own key was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_outlive_its_lease() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let holders = servers.leases();
    let waiter = tokio::spawn(async move { Mutex::new(&two, "x").lock().await });
    until("a waiter", async || one.inspect("x").await.expect("works").waiters.len() == 1).await;
    let leases = servers.leases();
    let dying = leases.iter().find(|lease| !holders.contains(lease)).expect("the waiter's");
    servers.say(&["lease", "revoke", dying]);
    until("a new place", async || {
        let waiters = one.inspect("x").await.expect("works").waiters.len();
        waiters == 1 && !servers.leases().contains(dying)
    })
    .await;
    guard.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    next.unlock().await.expect("held");
}

/// etcd#22082: an unlock that is sent again deletes by the name of the key, which a newer lock of
/// the same session may have by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_sent_again_leaves_a_newer_lock_alone() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&servers.hosts()[0]).expect("a port is free");
    let client = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    let lock = Mutex::new(&client, "x");
    let mut sent_again = 0;
    for _ in 0..20 {
        let first = lock.lock().await.expect("it is there");
        let (name, ticket) = (first.name().clone(), first.ticket());
        let (key, before) = (servers.keys(), servers.all_calls());
        link.lose_next_reply();
        soon("the release", first.unlock()).await.expect("it was held, and is not any more");
        let second = soon("the next", lock.lock()).await.expect("it is there");
        // Another connection may have lost its reply instead.
        if servers.all_calls().since(before).delete > 1 {
            sent_again += 1;
            assert_ne!(servers.keys(), key, "the first unlock may still be carried out");
        }
        assert!(!client.store().leave(&name, ticket).await.expect("it is there"));
        assert!(client.force_unlock("x", ticket, "a test").await.expect("it is there").is_none());
        assert!(second.is_valid() && servers.keys().len() == 1);
        soon("the release", second.unlock()).await.expect("nobody took it");
    }
    assert!(sent_again > 0, "no unlock was sent again");
    link.mend();
}

/// etcd#9715, #21128: waiting ended when the history was compacted, and the key stayed behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_while_the_watch_is_open() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let permits = Semaphore::new(&one, "s", 2).acquire(2).await.expect("it is there");
    let (mutex, semaphore) = (Mutex::new(&two, "x"), Semaphore::new(&two, "s", 2));
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let other = tokio::spawn(async move { semaphore.acquire(1).await });
    until("waiters", async || {
        let waiters = async |name| one.inspect(name).await.expect("works").waiters.len();
        waiters("x").await + waiters("s").await == 2
    })
    .await;
    for round in 0..5 {
        servers.say(&["put", "elsewhere", &round.to_string()]);
    }
    let text = servers.say(&["get", "elsewhere", "-w", "json"]);
    let revision = text.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next());
    servers.say(&["compact", revision.expect("it tells")]);
    guard.unlock().await.expect("held");
    permits.unlock().await.expect("held");
    let next = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    let permit = soon("its turn", other).await.expect("no panic").expect("it is there");
    next.unlock().await.expect("held");
    permit.unlock().await.expect("held");
}

/// The same while the waiter could not be told: what it missed is not in the history any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_while_the_watch_is_cut() {
    let Some(servers) = start(1) else { return };
    let (one, flaky) = (servers.client().await, FlakyLinks::to("etcd", &servers.hosts(), ""));
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let two = Mutex::new(&flaky.client().await, "x");
    let waiter = tokio::spawn(async move { two.lock().await });
    waiters(&one, "x", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await; // until it listens
    flaky.cut(Cut::Closed);
    guard.unlock().await.expect("held");
    let text = servers.say(&["put", "elsewhere", "1", "-w", "json"]);
    let revision = text.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next());
    servers.say(&["compact", revision.expect("it tells")]);
    flaky.mend();
    let next = soon("its turn", waiter).await.expect("no panic").expect("it is there");
    next.unlock().await.expect("held");
    assert_eq!(servers.keys(), ["elsewhere"]);
}

/// Every watch of a place that has not changed for long begins behind what is left of the history
/// when its stream breaks: each is asked for once more, on one stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_below_many_watches() {
    const LOCKS: u64 = 100;
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let client = flaky.client().await;
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        let lock = Mutex::new(&client, format!("x{number}")).lease(Duration::from_secs(60));
        guards.push(soon("a lock", lock.lock()).await.expect("it is there"));
    }
    until("watches", async || servers.messages("Watch") >= LOCKS).await;
    let text = servers.say(&["put", "elsewhere", "1", "-w", "json"]);
    let revision = text.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next());
    servers.say(&["compact", revision.expect("it tells")]);
    let (streams, messages) = (servers.calls("Watch"), servers.messages("Watch"));
    flaky.cut(Cut::Closed);
    flaky.mend();
    until("watches", async || servers.messages("Watch") >= messages + LOCKS).await;
    for (number, guard) in guards.iter().enumerate() {
        servers.say(&["del", &format!("x{number}/"), "--prefix"]);
        soon("the loss", guard.lost()).await;
    }
    let (streams, messages) =
        (servers.calls("Watch") - streams, servers.messages("Watch") - messages);
    assert!(streams <= 5 && messages <= 5 * LOCKS, "{streams} streams, {messages} messages");
}

/// etcd#6631 and others: a try that was called off or failed left its key behind, and everybody
/// waited for nobody until the session ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_orphan_after_a_try_that_was_called_off() {
    let Some(servers) = start(1) else { return };
    let (one, flaky) = (servers.client().await, FlakyLinks::to("etcd", &servers.hosts(), ""));
    let two = flaky.client().await;
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let keys = servers.keys();
    let lock = Mutex::new(&two, "x");
    for round in 0..20 {
        let wait = Duration::from_millis(round);
        assert!(lock.try_lock().await.expect("it is there").is_none());
        assert!(tokio::time::timeout(wait, lock.lock()).await.is_err());
        let within = lock.lock_within(Duration::from_millis(100 + round)).await;
        // On a busy machine it may end before it has been answered.
        assert!(!within.is_ok_and(|got| got.is_some()));
    }
    two.settle().await;
    assert_eq!(servers.keys(), keys);
    guard.unlock().await.expect("held");
    // Written, and called off before the answer came, which then is lost.
    for name in ["a", "b", "c"] {
        let lock = Mutex::new(&two, name);
        flaky.links[0].stall(Way::Replies);
        assert!(tokio::time::timeout(Duration::from_millis(100), lock.lock()).await.is_err());
        flaky.links[0].reset();
        flaky.mend();
    }
    until("nothing is left", async || servers.keys().is_empty()).await;
}

/// etcd#6631: whatever lay under the name, for ever, was taken for a holder.
#[tokio::test]
async fn stray_keys_and_deeper_names_block_nobody() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    servers.say(&["put", "x/config", "yes"]);
    let deeper = Mutex::new(&one, "x/y").lock().await.expect("it is there");
    for lock in [Mutex::new(&one, "x"), Mutex::new(&two, "x")] {
        let guard = soon("a lock", lock.lock()).await.expect("it is there");
        assert!(Mutex::new(&two, "x/y").try_lock().await.expect("works").is_none());
        guard.unlock().await.expect("held");
        let guard = lock.try_lock().await.expect("works").expect("free");
        let other = Mutex::new(&two, "x");
        let waiting = tokio::spawn(async move { other.lock_within(Duration::from_secs(20)).await });
        until("a waiter", async || {
            let info = one.inspect("x").await.expect("works");
            // And the stray key.
            waiting.is_finished() || info.waiters.len() + info.holders.len() > 2
        })
        .await;
        guard.unlock().await.expect("held");
        let next = soon("the next", waiting).await.expect("no panic").expect("works");
        drop(next);
        two.settle().await;
    }
    deeper.unlock().await.expect("held");
}

/// etcd#18082, #10111: the release waits for ever for a store that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_ends_though_the_store_is_down() {
    let Some(mut servers) = start(1) else { return };
    let client = servers.client().await;
    let lease = Duration::from_secs(3);
    let guard = Mutex::new(&client, "x").lease(lease).lock().await.expect("it is there");
    let other = Mutex::new(&client, "y").lease(lease).lock().await.expect("it is there");
    servers.kill(0);
    let began = Instant::now();
    drop(other);
    assert!(soon("the answer", guard.unlock()).await.is_err(), "nobody can have said yes");
    soon("what was dropped", client.settle()).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// etcd#10756, #16396: the tasks of one session, who share its key, all "hold" the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_of_one_session_hold_one_by_one() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let task = |_| {
        let (lock, inside, last) =
            (Mutex::new(&client, "x"), Arc::clone(&inside), Arc::clone(&last));
        tokio::spawn(async move {
            let guard = lock.lock().await.expect("it is there");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody is inside");
            let token = usize::try_from(guard.token()).expect("a small number");
            assert!(last.swap(token, Ordering::SeqCst) < token, "a token went back");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.unlock().await.expect("held");
        })
    };
    for done in join_all((0..1000).map(task)).await {
        done.expect("no panic");
    }
}

/// A client that spreads its calls goes on asking the member that does not answer: 27% of all
/// calls failed. Here one of three falls silent, and after it was found out nothing fails or waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_member_is_not_asked_again_and_again() {
    let Some(servers) = start(3) else { return };
    for dead in 0..3 {
        let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
        let lock = Mutex::new(&flaky.client().await, "x");
        lock.lock().await.expect("it is there").unlock().await.expect("held");
        flaky.links[dead].stall(Way::Both);
        lock.lock().await.expect("the others are there").unlock().await.expect("held");
        let mut late = 0;
        for _ in 0..100 {
            let began = Instant::now();
            released(lock.lock().await.expect("the others are there")).await;
            // Asked in vain, it costs a second.
            late += u32::from(began.elapsed() > Duration::from_millis(900));
        }
        // As a busy machine does now and then.
        assert!(late < 10, "{late} of 100 took a second");
    }
}

/// A keep-alive that nobody answers is no keep-alive: it is given up for another member's, in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keep_alive_that_falls_silent_is_replaced() {
    let Some(servers) = start(3) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let lock = Mutex::new(&flaky.client().await, "x").lease(SHORT);
    let mut guard = soon("the lock", persist(lock.clone())).await;
    let mut losses = 0;
    for silent in [0, 1, 2, 0] {
        loop {
            flaky.mend();
            flaky.links[silent].stall(Way::Replies);
            if tokio::time::timeout(2 * SHORT, guard.lost()).await.is_err() {
                break;
            }
            // A busy machine may lose it by itself, but not each time.
            losses += 1;
            assert!(losses < 4, "member {silent} took the lock along");
            flaky.mend();
            guard = soon("the lock", persist(lock.clone())).await;
        }
    }
    drop(guard);
}

/// Every call has an end, though nothing ever answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_waits_for_ever() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    // Without that bound, a waiter waits until the store is back.
    let client = flaky.client().await.outage(Duration::from_secs(3));
    let held = [
        Mutex::new(&client, "x").lock().await.expect("it is there"),
        Mutex::new(&client, "y").lock().await.expect("it is there"),
    ];
    flaky.cut(Cut::Silence);
    let [first, second] = held;
    let ticket = second.ticket();
    let (free, permits) = (Mutex::new(&client, "z"), Semaphore::new(&client, "s", 3));
    let (lock, tried, unlocked, extended, seen, listed, forced) = tokio::join!(
        soon("lock", async { free.lock().await.err() }),
        soon("try", async { permits.try_acquire(1).await.err() }),
        soon("unlock", async { first.unlock().await.err() }),
        soon("extend", async { second.extend(Duration::from_secs(60)).await.err() }),
        soon("inspect", async { client.inspect("x").await.err() }),
        soon("list", async { client.list("").await.err() }),
        soon("force", async { client.force_unlock("y", ticket, "a test").await.err() }),
    );
    let errors = [lock, tried, unlocked, extended, seen, listed, forced];
    for (at, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {at} cannot have been answered"));
        let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown, ErrorKind::Lost];
        assert!(kinds.contains(&error.kind()), "call {at}: {error:?}");
    }
    soon("the loss", second.lost()).await;
    flaky.mend();
}
