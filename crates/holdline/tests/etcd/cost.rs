//! What things cost, by the server's own count.

use holdline::{Client, Guard, Mutex, RwLock, Semaphore, WriteGuard, open};
use holdline_testkit::etcd::{Calls, Servers, start};
use holdline_testkit::{Link, soon, until};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::test]
async fn a_lock_is_one_call_an_unlock_one_a_failed_try_one_that_writes_nothing() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    for client in [&one, &two] {
        let warm = Mutex::new(client, "warm").lock().await.expect("it is there");
        warm.unlock().await.expect("held");
    }
    let before = servers.all_calls();
    let guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    let locked = servers.all_calls();
    assert_eq!(locked.since(before), Calls { txn: 1, range: 0, delete: 0, put: 0, grant: 0 });
    let (keys, revision) = (servers.keys(), revision(&servers));
    let asked = servers.all_calls();
    assert!(Mutex::new(&two, "x").try_lock().await.expect("it is there").is_none());
    let tried = servers.all_calls();
    assert_eq!(tried.since(asked), Calls { txn: 1, range: 0, delete: 0, put: 0, grant: 0 });
    assert_eq!((servers.keys(), self::revision(&servers)), (keys, revision));
    let before = servers.all_calls();
    guard.unlock().await.expect("held");
    let unlocked = servers.all_calls();
    // No transaction: etcd 3.4 would copy what it has not committed yet.
    assert_eq!(unlocked.since(before), Calls { txn: 0, range: 0, delete: 1, put: 0, grant: 0 });
}

fn revision(servers: &Servers) -> String {
    let text = servers.say(&["get", "nothing", "-w", "json"]);
    text.split("\"revision\":")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .expect("it")
        .to_owned()
}

/// Txn, watch, and at most one call after the wake: none if all who were ahead are known.
#[tokio::test]
async fn a_contended_lock_is_three_calls_at_most() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    for client in [&one, &two] {
        let warm = Mutex::new(client, "warm").lock().await.expect("it is there");
        warm.unlock().await.expect("held");
    }
    // A waiter asks again each second, whatever the news, which may fall into the count; and on a
    // busy machine a call may be repeated. Neither happens each time.
    let mut seen = Vec::new();
    for turn in 0..10 {
        let (cost, after) = contended(&servers, [&one, &two], &format!("x{turn}")).await;
        // Without the first holder's unlock; and a watch.
        if cost.sum() - 1 < 3 && after.sum() - 1 <= 1 {
            return;
        }
        seen.push((cost, after));
    }
    panic!("the calls in all, and after the wake, with the unlock: {seen:?}");
}

/// The calls for a lock that the second client waits for, and those of them after the first one's
/// unlock has begun.
async fn contended(servers: &Servers, [one, two]: [&Client; 2], name: &str) -> (Calls, Calls) {
    let guard = Mutex::new(one, name).lock().await.expect("it is there");
    let (before, watches) = (servers.all_calls(), servers.messages("Watch"));
    let lock = Mutex::new(two, name);
    let second = tokio::spawn(async move { lock.lock().await });
    until("the watch", async || servers.messages("Watch") > watches).await;
    let mut waiting = servers.all_calls();
    until("a waiter that is quiet", async || {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let last = std::mem::replace(&mut waiting, servers.all_calls());
        last == waiting
    })
    .await;
    guard.unlock().await.expect("held");
    let guard = soon("the lock", second).await.expect("no panic").expect("it is there");
    let (cost, after) = (servers.all_calls().since(before), servers.all_calls().since(waiting));
    guard.unlock().await.expect("held");
    (cost, after)
}

/// Each waiter asks about once a second whether all is as it was. What they ask is one question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_waiters_ask_together() {
    let Some(servers) = start(1) else { return };
    let (holder, client) = (servers.client().await, servers.client().await);
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let name = format!("x{number}");
        held.push(Mutex::new(&holder, &name).lock().await.expect("it is there"));
        let lock = Mutex::new(&client, &name);
        waiters.push(tokio::spawn(async move { lock.lock().await?.unlock().await }));
    }
    until("all in their lines", async || servers.keys().len() == 200).await;
    tokio::time::sleep(Duration::from_secs(3)).await; // their watches have begun
    let before = servers.all_calls();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let cost = servers.all_calls().since(before);
    // One in 50 ms at most; 100 a second if each asked for itself.
    assert!((3..150).contains(&cost.txn), "{cost:?} in 5 s");
    for guard in held {
        guard.unlock().await.expect("held");
    }
    for waiter in waiters {
        soon("its turn", waiter).await.expect("no panic").expect("it is there");
    }
}

/// A ticket that knows everybody ahead of it is let in by the news of deletions, without a look.
#[tokio::test]
async fn a_short_line_asks_nothing_when_it_moves() {
    asks_nothing_when_it_moves(&[Kind::Mutex; 5]).await;
}

/// The same for readers and writers. A reader need not know the readers ahead of it.
#[tokio::test]
async fn readers_and_writers_are_let_in_by_the_news() {
    use Kind::{Read, Write};
    asks_nothing_when_it_moves(&[Write, Read, Read, Read, Write, Read]).await;
}

/// What a task of a line asks for.
#[derive(Clone, Copy)]
enum Kind {
    Mutex,
    Read,
    Write,
}

enum Held {
    Lock(Guard),
    Write(WriteGuard),
}

impl Kind {
    async fn lock(self, client: &Client, name: &str) -> holdline::Result<Held> {
        match self {
            Kind::Mutex => Mutex::new(client, name).lock().await.map(Held::Lock),
            Kind::Read => RwLock::new(client, name).read().await.map(Held::Lock),
            Kind::Write => RwLock::new(client, name).write().await.map(Held::Write),
        }
    }
}

impl Held {
    /// The token of what was held.
    async fn unlock(self) -> holdline::Result<u64> {
        match self {
            Held::Lock(guard) => {
                let token = guard.token();
                guard.unlock().await.map(|()| token)
            }
            Held::Write(guard) => {
                let token = guard.token();
                guard.unlock().await.map(|()| token)
            }
        }
    }
}

async fn asks_nothing_when_it_moves(line: &[Kind]) {
    let Some(servers) = start(1) else { return };
    let departures = line.len() as u64;
    // A waiter asks again each second, whatever the news, which may fall into the count. On a busy
    // machine a place may lapse and be taken anew, at the end. Neither happens each time.
    let mut seen = Vec::new();
    for turn in 0..30 {
        let (tokens, calls) = moves(&servers, &format!("x{turn}"), line).await;
        if tokens.is_sorted() && (calls.delete, calls.sum()) == (departures, departures) {
            return;
        }
        seen.push((tokens, calls));
    }
    panic!("they asked, or were let in out of turn, each time: {seen:?}");
}

/// The tokens of a line, in the order in which its tasks came, and what it costs until all have
/// had their turn.
async fn moves(servers: &Servers, name: &str, line: &[Kind]) -> (Vec<u64>, Calls) {
    let guard = line[0].lock(&servers.client().await, name).await.expect("it is there");
    let mut waiters = Vec::new();
    for (number, &kind) in line.iter().enumerate().skip(1) {
        let (client, name) = (servers.client().await, name.to_owned());
        waiters.push(tokio::spawn(async move { kind.lock(&client, &name).await?.unlock().await }));
        until("its place", async || servers.keys().len() == number + 1).await;
    }
    let mut before = servers.all_calls();
    until("waiters that are quiet", async || {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let last = std::mem::replace(&mut before, servers.all_calls());
        last == before
    })
    .await;
    let mut tokens = vec![guard.unlock().await.expect("held")];
    for waiter in waiters {
        tokens.push(soon("its turn", waiter).await.expect("no panic").expect("it held"));
    }
    (tokens, servers.all_calls().since(before))
}

/// On a store where others write all the time, a watch begins later than what was seen, and has to
/// be followed by a look. Those who take turns have watches that have begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_take_turns_need_not_look_again() {
    const ROUNDS: u64 = 20;
    let Some(servers) = start(1) else { return };
    let (one, two, third) =
        (servers.client().await, servers.client().await, servers.client().await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut guard = Mutex::new(&one, "x").lock().await.expect("it is there");
    for client in [&two, &third] {
        let warm = Mutex::new(client, "warm").lock().await.expect("it is there");
        warm.unlock().await.expect("held");
    }
    let before = servers.all_calls();
    let over = Arc::clone(&stop);
    let busy = tokio::spawn(async move {
        let (lock, mut locks) = (Mutex::new(&third, "y"), 0);
        while !over.load(Ordering::Relaxed) {
            lock.lock().await.expect("it is there").unlock().await.expect("held");
            locks += 1;
        }
        locks
    });
    let mut looks = 0;
    for round in 0..ROUNDS {
        let lock = Mutex::new(if round % 2 == 0 { &two } else { &one }, "x");
        let next = tokio::spawn(async move { lock.lock().await });
        let waits = async || {
            looks += 1;
            one.inspect("x").await.is_ok_and(|info| info.waiters.len() == 1)
        };
        until("a waiter", waits).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        guard.unlock().await.expect("held");
        guard = soon("the lock", next).await.expect("no panic").expect("it is there");
    }
    stop.store(true, Ordering::Relaxed);
    let others: u64 = busy.await.expect("no panic");
    let calls = servers.all_calls().since(before).sum() - 2 * others - looks;
    // Two for each round; and a look in the first ones, or after a pause.
    assert!(calls <= 2 * ROUNDS + ROUNDS / 2, "{calls} calls in {ROUNDS} rounds");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_thousand_locks_are_one_lease_and_no_traffic() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let mut guards = Vec::new();
    for number in 0..1000 {
        let lock = Mutex::new(&client, format!("lock {number}"));
        guards.push(lock.lock().await.expect("it is there"));
    }
    assert_eq!(servers.leases().len(), 1);
    // Watches over the own keys are begun once, on the one stream.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let (before, streams) = (servers.all_calls(), servers.calls("Watch"));
    let alive = servers.calls("LeaseKeepAlive");
    tokio::time::sleep(std::time::Duration::from_secs(12)).await; // more than a lease
    assert_eq!(servers.all_calls().since(before).sum(), 0);
    assert_eq!((servers.calls("Watch"), servers.calls("LeaseKeepAlive")), (streams, alive));
    assert!(guards.iter().all(holdline::Guard::is_valid));
}

/// etcd remembers every key that it ever had until its history is compacted, and walks over them
/// when it looks at a line. So a lock that is taken often must not use new ones each time.
#[tokio::test]
async fn a_lock_that_is_taken_often_uses_few_keys() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let (lock, permits) = (Mutex::new(&client, "x"), Semaphore::new(&client, "s", 2));
    let mut keys = BTreeSet::new();
    for _ in 0..10 {
        let guard = lock.lock().await.expect("it is there");
        let (one, two) = (permits.acquire(1).await, permits.acquire(1).await);
        keys.extend(servers.keys());
        for guard in [Ok(guard), one, two] {
            guard.expect("it is there").unlock().await.expect("held");
        }
    }
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert_eq!(servers.keys(), Vec::<String>::new());
}

/// A deletion that was sent twice may arrive late, so its key is never used again; but a lease with
/// many such keys is replaced, or they would become ever more while any lock is held on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_lost_again_and_again_cost_few_keys() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&*servers.hosts()[0]).expect("a link");
    let client = open(&format!("etcd://{}", link.address())).await.expect("a URL");
    let lock = Mutex::new(&client, "x");
    let mut keys = BTreeSet::new();
    for _ in 0..60 {
        let guard = soon("the lock", lock.lock()).await.expect("it is there");
        keys.extend(
            servers.keys().iter().filter_map(|key| key.split('-').nth(1).map(str::to_owned)),
        );
        link.lose_next_reply();
        let _ = guard.unlock().await; // in the background, perhaps
        soon("its end", client.settle()).await;
        link.mend();
    }
    assert!((4..=40).contains(&keys.len()), "{keys:?}");
}

/// As long as there is room, a permit is one call, too.
#[tokio::test]
async fn a_permit_is_one_call() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    let first = Semaphore::new(&one, "s", 3).acquire(1).await.expect("it is there");
    let warm = Mutex::new(&two, "warm").lock().await.expect("it is there");
    warm.unlock().await.expect("held");
    let before = servers.all_calls();
    let second = Semaphore::new(&two, "s", 3).acquire(1).await.expect("it is there");
    assert_eq!(servers.all_calls().since(before).sum(), 1);
    drop((first, second));
}

/// A waiter behind several that hold watches each of them. When one leaves and the next is looked
/// for, the watches over those that stay are kept.
#[tokio::test]
async fn a_waiter_for_a_permit_keeps_the_watches_that_it_needs() {
    let Some(servers) = start(1) else { return };
    let port = servers.servers[0].port();
    // Each watch is a message when it begins, and one when it ends.
    let messages = || -> u64 {
        let metrics = holdline_testkit::http_get(port, "/metrics").expect("it tells");
        let watch = metrics.lines().find(|line| {
            line.starts_with("grpc_server_msg_received_total") && line.contains("\"Watch\"")
        });
        watch.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    };
    // Longer than a watch lasts that is kept for a moment after its end.
    let quiet = async || {
        let mut count = messages();
        until("waiters that are quiet", async || {
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            std::mem::replace(&mut count, messages()) == count
        })
        .await;
        count
    };
    let permit = async || Semaphore::new(&servers.client().await, "pool", 2).acquire(1).await;
    let first = permit().await.expect("it is free");
    let second = permit().await.expect("it is free");
    let waiters = async {
        let third = async { permit().await.expect("it is there") };
        let fourth = async {
            // Behind the third.
            until("the third waits", async || servers.keys().len() == 3).await;
            permit().await.expect("it is there")
        };
        let leaves = async {
            until("both wait", async || servers.keys().len() == 4).await;
            let before = quiet().await;
            second.unlock().await.expect("held");
            let after = quiet().await;
            first.unlock().await.expect("held");
            after - before
        };
        tokio::join!(third, fourth, leaves)
    };
    let (third, fourth, messages) = soon("both have it", waiters).await;
    // The second ends one watch. The third ends three, and watches itself. The fourth ends one, and
    // begins one: it was behind the second and the third, and is behind the first and the third.
    assert!(messages <= 7, "{messages} messages about watches");
    third.unlock().await.expect("held");
    fourth.unlock().await.expect("held");
}
