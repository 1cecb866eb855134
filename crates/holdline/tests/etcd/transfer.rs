//! One task of a process leaves and the next one enters, in one transaction.

use futures_util::future::{join_all, poll_immediate};
use holdline::{Client, Guard, Mutex};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{Link, soon, until};
use std::pin::pin;
use std::time::Duration;

async fn warm(clients: &[&Client]) {
    for client in clients {
        let guard = Mutex::new(client, "warm").lock().await.expect("it is there");
        guard.unlock().await.expect("held");
    }
}

async fn waiters(client: &Client, count: usize) {
    until("waiters", async || {
        client.inspect("x").await.is_ok_and(|info| info.waiters.len() == count)
    })
    .await;
}

/// Nothing is left, and the lock is to be had, with a higher token.
async fn free(servers: &Servers, client: &Client, above: u64) -> u64 {
    let guard = soon("the lock", Mutex::new(client, "x").lock()).await.expect("it is there");
    let token = guard.token();
    assert!(token > above, "{token} after {above}");
    guard.unlock().await.expect("held");
    client.settle().await;
    until("no keys", async || servers.keys().is_empty()).await;
    token
}

#[tokio::test]
async fn a_lock_from_task_to_task_is_one_call() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    warm(&[&client]).await;
    let first = Mutex::new(&client, "x").lock().await.expect("it is there");
    let before = servers.all_calls();
    let tasks = (0..32).map(|_| async {
        let guard = Mutex::new(&client, "x").lock().await.expect("it is there");
        let token = guard.token();
        guard.unlock().await.expect("held");
        token
    });
    let token = first.token();
    let (unlocked, tokens) = tokio::join!(first.unlock(), join_all(tasks));
    unlocked.expect("held");
    assert!(tokens.is_sorted() && tokens[0] > token, "{tokens:?} after {token}");
    let calls = servers.all_calls().since(before);
    // The first leaves with the second, and so on; the last leaves alone.
    assert_eq!((calls.txn, calls.sum()), (32, 33), "{calls:?}");
    assert_eq!(servers.keys(), Vec::<String>::new());
}

/// A newcomer stands behind all that wait already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_that_waits_is_first() {
    let Some(servers) = start(1) else { return };
    let (one, two) = (servers.client().await, servers.client().await);
    warm(&[&one, &two]).await;
    let mut last = 0;
    for _ in 0..20 {
        let first = Mutex::new(&one, "x").lock().await.expect("it is there");
        let theirs = Mutex::new(&two, "x");
        let second = tokio::spawn(async move { theirs.lock().await });
        waiters(&one, 1).await;
        let ours = Mutex::new(&one, "x");
        let third = tokio::spawn(async move { ours.lock().await });
        tokio::task::yield_now().await;
        let token = first.token();
        assert!(token > last);
        first.unlock().await.expect("held");
        let second = soon("the second", second).await.expect("no panic").expect("it is there");
        assert!(!third.is_finished() && second.token() > token, "two hold it");
        waiters(&one, 1).await;
        let token = second.token();
        second.unlock().await.expect("held");
        let third = soon("the third", third).await.expect("no panic").expect("it is there");
        assert!(third.token() > token);
        last = third.token();
        third.unlock().await.expect("held");
    }
    free(&servers, &one, last).await;
}

/// Polls both by turns, and drops one of them after so many polls. What came of it, if both had
/// come to their end by then.
async fn cut(first: Guard, lock: &Mutex, polls: usize, leaver: bool) -> Option<Guard> {
    let mut unlock = Box::pin(first.unlock());
    let mut next = Box::pin(lock.lock());
    assert!(poll_immediate(&mut next).await.is_none(), "it is held");
    let (mut left, mut got) = (false, None);
    for _ in 0..polls {
        if !left {
            left = poll_immediate(&mut unlock).await.is_some();
        }
        if got.is_none() {
            got = poll_immediate(&mut next).await.map(|got| got.expect("it is there"));
        }
        if left && got.is_some() {
            return got;
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    if leaver {
        drop(unlock);
        let got = match got {
            Some(got) => got,
            None => soon("the lock", next).await.expect("it is there"),
        };
        got.unlock().await.expect("held");
    } else {
        drop((got, next));
        if !left {
            soon("the release", unlock).await.expect("held");
        }
    }
    None
}

#[tokio::test]
async fn either_of_them_can_be_dropped_at_any_point() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    warm(&[&client]).await;
    let mut last = 0;
    for leaver in [true, false] {
        for polls in 0.. {
            let lock = Mutex::new(&client, "x");
            let first = soon("the lock", lock.lock()).await.expect("it is there");
            assert!(first.token() > last);
            last = first.token();
            let done = cut(first, &lock, polls, leaver).await;
            let over = done.is_some();
            if let Some(guard) = done {
                assert!(guard.is_valid() && guard.token() > last);
                guard.unlock().await.expect("held");
            }
            last = free(&servers, &client, last).await;
            if over {
                assert!(polls > 2, "it was never cut off on its way");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_asked_for_again_by_both() {
    let Some(servers) = start(1) else { return };
    let link = Link::to(&servers.hosts()[0]).expect("a port is free");
    let client = holdline::open(&format!("etcd://{}", link.address())).await.expect("a good URL");
    warm(&[&client]).await;
    let mut last = 0;
    for _ in 0..5 {
        let first = Mutex::new(&client, "x").lock().await.expect("it is there");
        assert!(first.token() > last);
        let token = first.token();
        let lock = Mutex::new(&client, "x");
        let next = lock.lock();
        let mut next = pin!(next);
        assert!(poll_immediate(&mut next).await.is_none(), "it is held");
        link.lose_next_reply();
        let (left, next) = tokio::join!(soon("the release", first.unlock()), soon("it", next));
        left.expect("it was held, and is not any more");
        let next = next.expect("it is there");
        assert!(next.is_valid() && next.token() > token && servers.keys().len() == 1);
        last = next.token();
        soon("the release", next.unlock()).await.expect("nobody took it");
    }
    link.mend();
    free(&servers, &client, last).await;
}

/// Neither hears anything for a while; then both go on, and there is one holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_on_the_way_makes_no_second_holder() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let (client, other) = (flaky.client().await, servers.client().await);
    warm(&[&client, &other]).await;
    for kind in [Cut::Replies, Cut::Silence] {
        let first = Mutex::new(&client, "x").lock().await.expect("it is there");
        let token = first.token();
        let lock = Mutex::new(&client, "x");
        let next = tokio::spawn(async move { lock.lock().await });
        tokio::task::yield_now().await;
        flaky.cut(kind);
        let unlock = tokio::spawn(first.unlock());
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!next.is_finished(), "nobody can have told it");
        flaky.mend();
        // Whether it was confirmed in time or not, it is done in the end.
        let _ = soon("the release", unlock).await.expect("no panic");
        let next = soon("the next", next).await.expect("no panic").expect("it is there");
        assert!(next.is_valid() && next.token() > token);
        assert!(Mutex::new(&other, "x").try_lock().await.expect("it is there").is_none());
        next.unlock().await.expect("held");
        client.settle().await;
        free(&servers, &other, token).await;
    }
}

/// What etcd refuses for the newcomer's sake does not keep the other from leaving.
#[tokio::test]
async fn a_lease_that_is_gone_is_the_newcomers_own_trouble() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    warm(&[&client]).await;
    let before = servers.leases();
    let short = Mutex::new(&client, "x").lease(Duration::from_secs(5));
    short.lock().await.expect("it is there").unlock().await.expect("held");
    let leases = servers.leases();
    let dying = leases.iter().find(|lease| !before.contains(lease)).expect("the shorter one");
    let first = Mutex::new(&client, "x").lock().await.expect("it is there");
    let token = first.token();
    let next = short.lock();
    let mut next = pin!(next);
    assert!(poll_immediate(&mut next).await.is_none(), "it is held");
    servers.say(&["lease", "revoke", dying]);
    let (left, next) = tokio::join!(first.unlock(), soon("the next", next));
    left.expect("held");
    let next = next.expect("it is there");
    assert!(next.is_valid() && next.token() > token);
    next.unlock().await.expect("held");
    free(&servers, &client, token).await;
}
