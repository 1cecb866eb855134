//! What ends by time: the place of a dead waiter, an outage, some of several locks, a look at a
//! group.

use super::scripted::{ADMITTED, Answer, Scripted};
use futures_util::FutureExt;
use holdline::store::{Enter, Seq, Standing};
use holdline::{Client, Election, ErrorKind, Group, Multi, Mutex, Route};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

async fn memory() -> Client {
    holdline::open("memory:").await.expect("memory opens")
}

/// Another client, as of another process.
fn other(client: &Client) -> Client {
    Client::new(client.store().clone())
}

/// A waiter that dies delays the next for 3 s, or for its lease if that is shorter (G12): the store
/// keeps its place for no longer.
#[tokio::test(flavor = "current_thread")]
async fn a_dead_waiter() {
    let client = memory().await;
    let (default, short) = (Duration::from_secs(10), Duration::from_millis(300));
    for (lease, most) in [(default, Duration::from_secs(3)), (short, short)] {
        let held = Mutex::new(&client, "x").lock().await.expect("memory works");
        let dying = Mutex::new(&other(&client), "x").lease(lease);
        let mut dies = Box::pin(async move { dying.lock().await });
        let waiters = loop {
            assert!((&mut dies).now_or_never().is_none());
            let waiters = client.inspect("x").await.expect("memory works").waiters;
            if !waiters.is_empty() {
                break waiters;
            }
        };
        assert!(waiters[0].expires_in <= most, "{waiters:?}");
        std::mem::forget(dies); // nobody polls it, or drops it
        let next = Mutex::new(&other(&client), "x");
        let next = tokio::spawn(async move { next.lock_within(Duration::from_secs(30)).await });
        held.unlock().await.expect("held");
        let next = next.await.expect("no panic").expect("memory works");
        assert!(next.is_some(), "the dead waiter's place was kept");
    }
}

/// A task behind one that holds the lock is told so, though the store cannot be asked (G25).
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_held_in_an_outage() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client();
    let lock = Mutex::new(&client, "x");
    let held = lock.lock().await.expect("memory works");
    chaos.always(Op::Snapshot, Fault::FailBefore);
    client.inspect("x").await.expect_err("the store is away");
    assert!(client.unavailable_for().is_some());
    assert!(lock.try_lock().await.expect("it is known").is_none());
    let brief = Duration::from_millis(50);
    assert!(lock.lock_within(brief).await.expect("it is known").is_none());
    drop(held);
}

/// Eight tasks wait for one name, and none of them asks for itself until the outage is too long.
async fn all_fail_together(chaos: &Chaos, client: &Client) {
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lock = Mutex::new(client, "x");
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    for task in tasks {
        let error = task.await.expect("no panic").expect_err("the store is away");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    // One of them needs five.
    assert!(chaos.count(Op::Enter) < 16, "{} requests", chaos.count(Op::Enter));
}

/// All tasks that wait for one name fail together after an outage of the client's bound (G24), and
/// not one after the other, each after an outage of its own.
#[tokio::test(flavor = "current_thread")]
async fn tasks_in_a_long_outage() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client().outage(Duration::from_millis(300));
    client.inspect("x").await.expect("memory works");
    chaos.always(Op::Enter, Fault::FailBefore);
    all_fail_together(&chaos, &client).await;
    chaos.heal();
    Mutex::new(&client, "x").lock().await.expect("it is back").unlock().await.expect("held");
}

/// So do they if the store answers all but acquisitions, as on a full disk, and a task looks at it
/// meanwhile.
#[tokio::test(flavor = "current_thread")]
async fn tasks_at_a_store_that_can_only_be_read() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client().outage(Duration::from_millis(300));
    client.inspect("x").await.expect("memory works");
    chaos.always(Op::Enter, Fault::FailBefore);
    let looker = tokio::spawn({
        let client = client.clone();
        async move {
            loop {
                client.inspect("x").await.expect("it can be read");
                tokio::task::yield_now().await;
            }
        }
    });
    all_fail_together(&chaos, &client).await;
    // A store without room may let a place be given up, too.
    client.settle().await;
    assert!(chaos.count(Op::Leave) > 0);
    assert!(client.unavailable_for().is_some(), "others' success says nothing of acquisitions");
    looker.abort();
    chaos.heal();
    Mutex::new(&client, "x").lock().await.expect("it is back").unlock().await.expect("held");
    assert_eq!(client.unavailable_for(), None);
}

/// So do they if the store keeps what it has, and takes nothing more, while a lock is renewed.
#[tokio::test(flavor = "current_thread")]
async fn tasks_at_a_store_that_takes_no_more_places() {
    let is_full = Arc::new(AtomicBool::new(false));
    let full = Arc::clone(&is_full);
    let store = Scripted::new(move |_, how| match how {
        Enter::Keep(seq) => Answer::Is(Standing::Admitted(seq)),
        _ if full.load(Ordering::Relaxed) => Answer::Fails(ErrorKind::Unavailable),
        _ => ADMITTED,
    });
    let chaos = Chaos::new(store.client().store().clone());
    let client = chaos.client().outage(Duration::from_millis(300));
    let held = Mutex::new(&client, "held").renew_every(Duration::from_millis(20));
    let held = held.lock().await.expect("there is room");
    is_full.store(true, Ordering::Relaxed);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lock = Mutex::new(&client, "x");
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    let asked = || store.entries().iter().filter(|ticket| ticket.id != held.ticket()).count();
    for task in tasks {
        let error = task.await.expect("no panic").expect_err("the store takes none");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(client.unavailable_for().is_some() && held.is_valid());
    assert!(asked() < 16, "each of the eight had an outage of its own: {}", asked());
}

/// The bound of outages is no limit for the wait behind a task that holds the lock.
#[tokio::test(flavor = "current_thread")]
async fn a_task_behind_a_holder_while_the_store_works() {
    let client = memory().await.outage(Duration::from_millis(20));
    let lock = Mutex::new(&client, "x");
    let held = lock.lock().await.expect("memory works");
    let mut next = Box::pin(lock.lock());
    let waited = tokio::time::timeout(Duration::from_millis(200), &mut next).await;
    assert!(waited.is_err(), "it ended, and there was no outage");
    held.unlock().await.expect("it was held");
    next.await.expect("memory works").unlock().await.expect("it was held");
}

/// An outage that ended while nobody asked the store is not held against those who ask it now and
/// are not answered at once (G24).
#[tokio::test(flavor = "current_thread")]
async fn tasks_after_a_long_outage() {
    let outage = Duration::from_secs(3);
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let admitted = Answer::After(Duration::from_millis(200), Standing::Admitted(Seq(7)));
    let store = Scripted::new(move |_, _| {
        if away.load(Ordering::Relaxed) { Answer::Fails(ErrorKind::Unavailable) } else { admitted }
    });
    let client = store.client().outage(outage);
    let lock = Mutex::new(&client, "x");
    let use_it = async || lock.lock().await.expect("it is answered").unlock().await.expect("held");
    use_it().await;
    is_away.store(true, Ordering::Relaxed);
    lock.try_lock().await.expect_err("the store is away");
    is_away.store(false, Ordering::Relaxed);
    tokio::time::sleep(outage).await;
    tokio::join!(use_it(), use_it());
}

/// A guard was dropped, and the store cannot be asked whether its lock is free (G25).
#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_given_up_in_an_outage() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client();
    let lock = Mutex::new(&client, "x").lease(Duration::from_secs(3600));
    let held = lock.lock().await.expect("memory works");
    chaos.always(Op::Leave, Fault::FailBefore);
    drop(held);
    until("the outage is known", async || client.unavailable_for().is_some()).await;
    let error = lock.try_lock().await.expect_err("the store cannot be asked");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let brief = Duration::from_millis(50);
    let error = lock.lock_within(brief).await.expect_err("the store cannot be asked");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    chaos.heal();
    let next = lock.lock().await.expect("the store is back");
    assert!(lock.try_lock().await.expect("it is known").is_none());
    next.unlock().await.expect("it was held");
}

/// An observer goes on through an outage for as long as its client does (G24).
#[tokio::test(flavor = "current_thread")]
async fn an_observer_in_a_long_outage() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client().outage(Duration::from_millis(500));
    let mut observer = Election::new(&client, "x").observe();
    assert!(observer.next().await.expect("memory works").is_none());
    chaos.always(Op::Snapshot, Fault::FailBefore);
    let next = tokio::time::timeout(Duration::from_secs(30), observer.next()).await;
    let error = next.expect("it goes on for ever").expect_err("the store is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A store that has never answered may not exist.
#[tokio::test(flavor = "current_thread")]
async fn an_observer_of_a_store_that_has_never_answered() {
    let chaos = Chaos::new(memory().await.store().clone());
    chaos.always(Op::Snapshot, Fault::FailBefore);
    let mut observer = Election::new(&chaos.client(), "x").observe();
    let next = tokio::time::timeout(Duration::from_secs(30), observer.next()).await;
    let error = next.expect("it goes on for ever").expect_err("the store is not there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Those that queue behind it give up with it, instead of asking five times each.
#[tokio::test(flavor = "current_thread")]
async fn tasks_that_queue_for_a_store_that_has_never_answered() {
    let chaos = Chaos::new(memory().await.store().clone());
    // Not the departure of a failed attempt either.
    chaos.always(Op::Enter, Fault::FailBefore);
    chaos.always(Op::Leave, Fault::FailBefore);
    let client = chaos.client();
    let tasks = (0..10).map(|_| {
        let lock = Mutex::new(&client, "x");
        tokio::spawn(async move { lock.lock().await })
    });
    for task in tasks.collect::<Vec<_>>() {
        let ended = tokio::time::timeout(Duration::from_secs(30), task).await.expect("it gives up");
        let error = ended.expect("no panic").expect_err("the store is not there");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(chaos.count(Op::Enter), 5);
    // A later task asks anew.
    chaos.heal();
    Mutex::new(&client, "x")
        .lock()
        .await
        .expect("the store is there")
        .unlock()
        .await
        .expect("held");
}

/// Those behind it ask for themselves: a store that refuses one has answered.
#[tokio::test(flavor = "current_thread")]
async fn tasks_behind_one_that_is_refused() {
    let store = Scripted::new(|_, _| Answer::Fails(ErrorKind::Denied));
    let chaos = Chaos::new(Arc::new(store));
    chaos.always(Op::Enter, Fault::Stutter(1));
    let client = chaos.client();
    let lock = Mutex::new(&client, "x");
    let (one, two, three) = tokio::join!(lock.lock(), lock.lock(), lock.lock());
    for ended in [one, two, three] {
        let error = ended.expect_err("all are refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert_eq!(chaos.count(Op::Enter), 3);
}

/// Those behind it go on: it waits out no outage, and they do. G24.
#[tokio::test(flavor = "current_thread")]
async fn tasks_behind_one_that_waits_out_no_outage() {
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client();
    client.inspect("x").await.expect("memory works");
    chaos.always(Op::Enter, Fault::FailBefore);
    let hasty = Mutex::new(&client.clone().outage(Duration::ZERO), "x");
    let lock = Mutex::new(&client, "x");
    let hasty = async {
        let error = hasty.lock().await.expect_err("the store is away");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        chaos.heal();
    };
    let ((), next) = tokio::join!(hasty, lock.lock());
    next.expect("it is back").unlock().await.expect("it was held");
}

/// Those behind it go on: its own limit, and not the store, has ended its wait.
#[tokio::test(flavor = "current_thread")]
async fn tasks_behind_one_whose_time_is_over() {
    let chaos = Chaos::new(memory().await.store().clone());
    chaos.calls(Op::Enter, 0, 1, Fault::HangBefore);
    chaos.always(Op::Leave, Fault::FailBefore); // it has not answered that either
    let lock = Mutex::new(&chaos.client(), "x");
    let brief = lock.lock_within(Duration::from_millis(50));
    let (brief, next) = tokio::join!(brief, lock.lock());
    let error = brief.expect_err("the store has not answered it");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    chaos.heal();
    next.expect("the store answers the next").unlock().await.expect("it was held");
}

/// All or none: the first may be lost before the last is had.
#[tokio::test(flavor = "current_thread")]
async fn several_locks_of_which_the_first_is_lost_meanwhile() {
    let client = memory().await;
    let lease = Duration::from_millis(200);
    let held = Mutex::new(&client, "b").fixed_lease(lease * 3).lock().await.expect("works");
    let both = Multi::new(&other(&client), ["a", "b"]).fixed_lease(lease);
    let error = both.lock().await.expect_err("the first was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(held);
}

/// A key that was lost because the members were not looked at stays lost when they are (G26).
#[tokio::test(flavor = "current_thread")]
async fn a_look_at_a_group_that_became_stale() {
    let stale_after = Duration::from_millis(200);
    let group = Group::new(&memory().await, "g").stale_after(stale_after);
    let member = group.join("one:1").await.expect("memory works");
    let Route::Mine(owned) = member.route("a").await.expect("works") else { panic!("alone") };
    tokio::time::sleep(stale_after * 2).await;
    // Nobody asks whether the key is still owned; but somebody looks again.
    let Route::Mine(other) = member.route("b").await.expect("works") else { panic!("alone") };
    assert!(!owned.is_valid(), "it was lost, and is owned again");
    drop(other);
}

/// The loss of a member's place ends its keys at once, even if a look hangs meanwhile (G4, G26).
#[tokio::test(flavor = "current_thread")]
async fn a_member_of_a_group_that_is_lost_during_a_look() {
    let (lease, stale_after) = (Duration::from_secs(1), Duration::from_secs(20));
    let chaos = Chaos::new(memory().await.store().clone());
    let client = chaos.client().response_timeout(stale_after);
    let group = Group::new(&client, "g").stale_after(stale_after).lease(lease);
    let member = group.join("one:1").await.expect("memory works");
    let Route::Mine(owned) = member.route("a").await.expect("works") else { panic!("alone") };
    chaos.always(Op::Snapshot, Fault::HangBefore);
    let looks = chaos.count(Op::Snapshot);
    let lost = async {
        until("a look hangs", async || chaos.count(Op::Snapshot) > looks).await;
        chaos.always(Op::Enter, Fault::FailBefore);
        member.lost().await;
        tokio::time::Instant::now()
    };
    let not_owned = async {
        owned.lost().await;
        tokio::time::Instant::now()
    };
    let (lost, not_owned) = tokio::join!(lost, not_owned);
    // The look ends some 8 s later.
    assert!(not_owned.saturating_duration_since(lost) < Duration::from_secs(3));
}

/// A task that has waited for its turn at a key for longer than a look is valid looks again.
#[tokio::test(flavor = "current_thread")]
async fn a_turn_at_a_key_of_a_group_that_comes_late() {
    let stale_after = Duration::from_secs(1);
    let group = Group::new(&memory().await, "g").stale_after(stale_after);
    let member = group.join("one:1").await.expect("memory works");
    let Route::Mine(owned) = member.route("a").await.expect("works") else { panic!("alone") };
    let mut next = Box::pin(member.route("a"));
    assert!((&mut next).now_or_never().is_none(), "another task has the key");
    tokio::time::sleep(stale_after * 2).await;
    drop(owned);
    let Route::Mine(next) = next.await.expect("it looks") else { panic!("alone") };
    assert!(next.is_valid());
}

/// A look at a group whose future is kept and not polled, as in a `select!` whose other branch goes
/// on, holds up the other tasks of its process for half of the time of a look; and what it saw is
/// not relied on when it goes on later (G27).
#[tokio::test(flavor = "current_thread")]
async fn a_look_at_a_group_that_is_not_polled() {
    let stale_after = Duration::from_secs(1);
    let chaos = Chaos::new(memory().await.store().clone());
    let group = || Group::new(&chaos.client(), "g").stale_after(stale_after);
    let member = group().join("one:1").await.expect("memory works");
    let leaving = group().join("two:2").await.expect("memory works");
    assert_eq!(member.members().await.expect("works").len(), 2);

    // Its reply is there, and it has yet to read it.
    tokio::time::sleep(stale_after / 4).await;
    chaos.calls(Op::Snapshot, 0, 1, Fault::Stutter(1));
    let mut kept = Box::pin(member.members());
    assert!((&mut kept).now_or_never().is_none());
    assert!((&mut kept).now_or_never().is_none());
    leaving.leave().await.expect("works");

    tokio::time::sleep(stale_after / 4).await;
    let looked = tokio::time::timeout(stale_after * 5, member.members()).await;
    let seen = looked.expect("the other look holds it up").expect("works");
    assert_eq!(seen.len(), 1);
    let epoch = member.token();
    assert_eq!(kept.await.expect("works").len(), 1, "an earlier look is relied on");
    assert_eq!(member.token(), epoch);
}

/// A task that needs a look waits for the one that another task has begun.
#[tokio::test(flavor = "current_thread")]
async fn two_tasks_after_a_look_at_a_group_became_stale() {
    let stale_after = Duration::from_secs(1);
    let chaos = Chaos::new(memory().await.store().clone());
    let group = Group::new(&chaos.client(), "g").stale_after(stale_after);
    let member = group.join("one:1").await.expect("memory works");
    tokio::time::sleep(stale_after).await;
    let looks = chaos.count(Op::Snapshot);
    chaos.calls(Op::Snapshot, 0, 1, Fault::Delay(Duration::from_millis(20)));
    let (one, two) = tokio::join!(member.route("a"), member.route("b"));
    assert!(matches!(one.expect("the store answers"), Route::Mine(_)));
    assert!(matches!(two.expect("the store answers"), Route::Mine(_)));
    // One, and another after the new token that the first asks for.
    assert_eq!(chaos.count(Op::Snapshot) - looks, 2, "each task has looked");
}
