//! Recipes of several locks, guards or owners: who is told of a loss, and one time limit for all.

use super::scripted::{Answer, Scripted};
use futures_util::FutureExt;
use holdline::store::{Seq, Standing};
use holdline::{
    Client, Election, ErrorKind, Group, Loss, Members, Multi, OnLoss, Owner, ReentrantMutex, Route,
    RwLock,
};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TIME: Duration = Duration::from_millis(150);

async fn memory() -> Client {
    holdline::open("memory:").await.expect("memory opens")
}

/// Any of them: the first error is that of the release, and the others are released all the same.
#[tokio::test(flavor = "current_thread")]
async fn one_of_several_locks_is_lost() {
    for lost in [0, 1, 2] {
        let client = memory().await;
        let all = Multi::new(&client, ["a", "b", "c"]).lock().await.expect("memory works");
        let (name, id) = (all.guards()[lost].name().clone(), all.guards()[lost].ticket());
        client.force_unlock(name.as_str(), id, "").await.expect("works").expect("it was there");
        all.lost().await;
        assert!(!all.is_valid());
        assert!(matches!(all.loss().await, Some(Loss::Broken { .. })));
        let error = all.protect(async {}).await.expect_err("one is lost");
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        let error = all.unlock().await.expect_err("one was lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert_eq!(client.list("").await.expect("memory works"), []);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn work_under_several_locks_goes_on_if_asked_to() {
    let client = memory().await;
    let both = Multi::new(&client, ["a", "b"]).on_loss(OnLoss::Continue);
    let both = both.lock().await.expect("memory works");
    client.force_unlock("b", both.guards()[1].ticket(), "").await.expect("works").expect("there");
    both.lost().await;
    assert_eq!(both.protect(async { 7 }).await.expect("it goes on"), 7);
}

/// The work blocks its thread until after the deadline, and so ends in one step.
#[tokio::test(flavor = "current_thread")]
async fn work_under_several_locks_that_ended_too_late_is_not_trusted() {
    let lease = TIME * 4;
    let both = Multi::new(&memory().await, ["a", "b"]).fixed_lease(lease);
    let both = both.lock().await.expect("memory works");
    let error = both.protect(async { std::thread::sleep(lease) }).await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// Three answers in two thirds of the time each: they are too late together. On a busy machine the
/// time may also be over between two of them; then nothing is in doubt.
#[tokio::test(flavor = "current_thread")]
async fn several_locks_have_the_time_limit_of_one() {
    let slow = Answer::After(TIME * 2 / 3, Standing::Admitted(Seq(7)));
    let client = Scripted::new(move |_, _| slow).client().response_timeout(TIME);
    let all = Multi::new(&client, ["a", "b", "c"]);
    let tried = all.try_lock().await;
    assert!(!matches!(tried, Ok(Some(_))), "the time was over");
    client.settle().await; // the first of them is free again
    let waited = all.lock_within(TIME).await;
    assert!(!matches!(waited, Ok(Some(_))), "the time was over");
}

/// Each answer is quick, and comes in the 50 ms that any request may take.
#[tokio::test(flavor = "current_thread")]
async fn many_locks_have_the_time_limit_of_one() {
    let quick = Answer::After(TIME / 7, Standing::Admitted(Seq(7)));
    let store = Scripted::new(move |_, _| quick);
    let client = store.client().response_timeout(TIME);
    let all = Multi::new(&client, (0..100).map(|number| format!("{number:03}")));
    let tried = all.try_lock().await;
    assert!(!matches!(tried, Ok(Some(_))), "the time was over");
    let waited = all.lock_within(TIME).await;
    assert!(!matches!(waited, Ok(Some(_))), "the time was over");
    let asked = store.entries().len();
    assert!(asked < 40, "{asked} were asked for in the time of some 14");
}

/// Its owner does not get it again, and does not take it for free.
#[tokio::test(flavor = "current_thread")]
async fn a_reentrant_lock_that_is_lost_is_not_locked_again() {
    let client = memory().await;
    let (lock, owner) = (ReentrantMutex::new(&client, "x"), Owner::new());
    let outer = lock.lock(&owner).await.expect("memory works");
    client.force_unlock("x", outer.ticket(), "").await.expect("works").expect("it was there");
    outer.lost().await;
    let error = lock.lock(&owner).await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(outer);
    lock.lock(&owner).await.expect("it is free").unlock().await.expect("it was held");
}

/// Two tasks of one owner, of which one waits: the other's time limit holds.
#[tokio::test(flavor = "current_thread")]
async fn a_reentrant_lock_that_a_task_of_its_owner_waits_for() {
    let client = memory().await;
    let other = ReentrantMutex::new(&Client::new(client.store().clone()), "x");
    let held = other.lock(&Owner::new()).await.expect("memory works");
    let (lock, owner) = (ReentrantMutex::new(&client, "x"), Owner::new());
    let mut first = Box::pin(lock.lock(&owner));
    assert!((&mut first).now_or_never().is_none(), "it is held");
    assert!(lock.try_lock(&owner).await.expect("it is known").is_none());
    let second = tokio::time::timeout(TIME * 60, lock.lock_within(&owner, TIME / 10)).await;
    assert!(second.expect("it is over").expect("it is known").is_none());
    held.unlock().await.expect("it was held");
    let first = first.await.expect("memory works");
    drop(first);
}

/// The first gives up when the other's time is over: that does not begin again. G25.
#[tokio::test(flavor = "current_thread")]
async fn a_reentrant_lock_is_not_waited_for_longer_after_a_task_of_its_owner() {
    let chaos = Chaos::new(memory().await.store().clone());
    let (client, time, ended) = (chaos.client(), TIME * 4, AtomicBool::new(false));
    let other = ReentrantMutex::new(&chaos.client(), "x");
    let held = other.lock(&Owner::new()).await.expect("memory works");
    let (lock, owner) = (ReentrantMutex::new(&client, "x"), Owner::new());
    let mut first = Box::pin(lock.lock(&owner));
    assert!((&mut first).now_or_never().is_none(), "it is held");
    let mut second = Box::pin(lock.lock_within(&owner, time));
    assert!((&mut second).now_or_never().is_none(), "the first waits");
    tokio::time::sleep(time).await;
    let asked = chaos.count(Op::Enter);
    drop(first);
    let second = async {
        let second = second.await.expect("it is known");
        ended.store(true, Ordering::Relaxed);
        second
    };
    let released = async {
        let answered = || chaos.count(Op::Enter) > asked && chaos.under_way(Op::Enter) == 0;
        until("it has asked", async || ended.load(Ordering::Relaxed) || answered()).await;
        held.unlock().await.expect("it was held");
    };
    let (second, ()) = tokio::join!(second, released);
    assert!(second.is_none(), "its time was over");
}

/// However many locks their owners have had since.
#[tokio::test(flavor = "current_thread")]
async fn a_reentrant_lock_stays_its_owners_among_many_others() {
    let client = memory().await;
    let (lock, owner) = (ReentrantMutex::new(&client, "x"), Owner::new());
    let outer = lock.lock(&owner).await.expect("memory works");
    for number in 0..300 {
        let brief = ReentrantMutex::new(&client, format!("brief {number}"));
        drop(brief.lock(&owner).await.expect("memory works"));
    }
    let inner = lock.try_lock(&owner).await.expect("memory works");
    assert!(inner.is_some_and(|inner| inner.token() == outer.token()), "it is not its owner's");
}

/// Also one that is still waited for.
#[tokio::test(flavor = "current_thread")]
async fn a_reentrant_lock_that_is_waited_for_stays_its_owners_among_many_others() {
    let client = memory().await;
    let other = ReentrantMutex::new(&Client::new(client.store().clone()), "x");
    let held = other.lock(&Owner::new()).await.expect("memory works");
    let (lock, owner) = (ReentrantMutex::new(&client, "x"), Owner::new());
    let mut waits = Box::pin(lock.lock(&owner));
    assert!((&mut waits).now_or_never().is_none(), "it is held");
    for number in 0..300 {
        let brief = ReentrantMutex::new(&client, format!("brief {number}"));
        drop(brief.lock(&owner).await.expect("memory works"));
    }
    held.unlock().await.expect("it was held");
    let outer = waits.await.expect("memory works");
    let inner = lock.try_lock(&owner).await.expect("memory works");
    assert!(inner.is_some_and(|inner| inner.token() == outer.token()), "it is not its owner's");
}

/// At once, though its last look at the members is good for long. G26.
#[tokio::test(flavor = "current_thread")]
async fn a_member_that_has_lost_its_place_owns_no_key() {
    let client = memory().await;
    let member = Group::new(&client, "x").stale_after(TIME * 4000).join("one:1").await;
    let member = member.expect("memory works");
    let Ok(Route::Mine(owned)) = member.route("key").await else { panic!("it is alone") };
    assert!(owned.is_valid());
    client.force_unlock("x", member.ticket(), "").await.expect("works").expect("it was there");
    member.lost().await;
    assert!(!owned.is_valid());
    tokio::time::timeout(TIME * 100, owned.lost()).await.expect("it is told");
    let error = owned.protect(async {}).await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// It has its place long after it asked for it, and waits from then on: by then no other member
/// relies on a look that does not show it. G26.
#[tokio::test(flavor = "current_thread")]
async fn a_member_waits_from_when_it_has_its_place() {
    let (chaos, stale_after) = (Chaos::new(memory().await.store().clone()), TIME * 20);
    let group = || Group::new(&chaos.client(), "x").stale_after(stale_after).lease(TIME * 400);
    let one = group().join("one:1").await.expect("memory works");
    let members = Members::of(["one:1", "two:1"]);
    let key = (0..1000).map(|n| n.to_string()).find(|key| members.owner(key) == Some("two:1"));
    let key = key.expect("half of them");
    chaos.calls(Op::Enter, 0, 1, Fault::Stutter(1));
    let other = group();
    let mut joins = Box::pin(other.join("two:1"));
    let requests = chaos.count(Op::Enter);
    while chaos.count(Op::Enter) == requests {
        assert!((&mut joins).now_or_never().is_none(), "it has no place yet");
    }
    tokio::time::sleep(stale_after / 4).await; // the next look of the first is due
    let Ok(Route::Mine(owned)) = one.route(&key).await else { panic!("it is alone") };
    let two = joins.await.expect("memory works");
    assert!(!owned.is_valid(), "the key may have two owners");
    drop(owned);
    drop(two);
}

/// What was seen last is not passed off as what is there now.
#[tokio::test(flavor = "current_thread")]
async fn members_that_cannot_be_looked_at_are_unknown() {
    let (chaos, stale_after) = (Chaos::new(memory().await.store().clone()), TIME * 2);
    let group = Group::new(&chaos.client(), "x").stale_after(stale_after).lease(TIME * 400);
    let member = group.join("one:1").await.expect("memory works");
    chaos.always(Op::Snapshot, Fault::FailBefore);
    tokio::time::sleep(stale_after).await;
    let error = member.members().await.expect_err("nobody knows");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(member.is_valid());
}

/// The members are looked at again after the wait for another task. That may have been long.
#[tokio::test(flavor = "current_thread")]
async fn a_task_waits_for_a_key_for_longer_than_a_look_is_good() {
    let stale_after = TIME * 8;
    let group = Group::new(&memory().await, "x").stale_after(stale_after).lease(TIME * 400);
    let member = group.join("one:1").await.expect("memory works");
    let Ok(Route::Mine(owned)) = member.route("key").await else { panic!("it is alone") };
    let mut next = Box::pin(member.route("key"));
    assert!((&mut next).now_or_never().is_none(), "another task has it");
    tokio::time::sleep(stale_after * 2).await;
    drop(owned);
    assert!(matches!(next.await.expect("memory works"), Route::Mine(_)));
}

/// An observer tells leaders apart by their tokens, not only by their values.
#[tokio::test(flavor = "current_thread")]
async fn a_new_leader_with_the_value_of_the_last_one_is_seen() {
    let client = memory().await;
    let election = Election::new(&client, "x");
    let mut observer = election.observe().every(TIME / 5);
    let first = election.campaign("same").await.expect("memory works");
    let seen = observer.next().await.expect("memory works").expect("somebody leads");
    assert_eq!(seen.token, first.token());
    let seen = tokio::time::timeout(TIME, observer.next()).await;
    assert!(seen.is_err(), "nothing has changed: {seen:?}");
    first.resign().await.expect("it led");
    let second = election.campaign("same").await.expect("memory works");
    let seen = tokio::time::timeout(TIME * 100, observer.next()).await.expect("it is seen");
    assert_eq!(seen.expect("memory works").map(|seen| seen.token), Some(second.token()));
}

/// A fixed lease has no renewal that would publish it later.
#[tokio::test(flavor = "current_thread")]
async fn a_value_is_published_though_its_future_is_dropped() {
    let chaos = Chaos::new(memory().await.store().clone());
    let election = Election::new(&chaos.client(), "x").fixed_lease(TIME * 400);
    let leader = election.campaign("one").await.expect("memory works");
    chaos.calls(Op::Enter, 0, 1, Fault::HangBefore);
    assert!(leader.proclaim("two").now_or_never().is_none(), "there is no answer");
    until("it is published", async || {
        election.leader().await.expect("memory works").expect("it leads").value == "two"
    })
    .await;
    assert!(leader.is_valid());
}

/// A renewal that was sent before the change and is carried out after it brings the old value back.
#[tokio::test(flavor = "current_thread")]
async fn a_value_that_a_late_renewal_undoes_is_published_again() {
    let chaos = Chaos::new(memory().await.store().clone());
    let election = Election::new(&chaos.client(), "x").lease(Duration::from_secs(3600));
    let leader = election.campaign("one").await.expect("memory works");
    let seen = async || election.leader().await.expect("memory works").expect("it leads");
    let requests = chaos.count(Op::Enter);
    chaos.calls(Op::Enter, 0, 1, Fault::Delay(Duration::from_millis(300)));
    chaos.hint(seen().await.participant.id);
    until("it is renewed", async || chaos.count(Op::Enter) > requests).await;
    leader.proclaim("two").await.expect("memory works");
    until("the renewal is answered", async || chaos.under_way(Op::Enter) == 0).await;
    until("it is published again", async || seen().await.value == "two").await;
    assert!(leader.is_valid());
}

/// Only the value changes: not the label, and not since when it leads.
#[tokio::test(flavor = "current_thread")]
async fn a_leader_keeps_its_note() {
    let client = memory().await;
    let election = Election::new(&client, "x").label("ops");
    let leader = election.campaign("one").await.expect("memory works");
    let first = election.leader().await.expect("memory works").expect("somebody leads");
    tokio::time::sleep(Duration::from_millis(2)).await;
    leader.proclaim("two").await.expect("memory works");
    let seen = election.leader().await.expect("memory works").expect("somebody leads");
    assert_eq!((seen.value.as_str(), seen.participant.note.label.as_deref()), ("two", Some("ops")));
    assert_eq!(seen.participant.note.since, first.participant.note.since);
    drop(leader);
}

/// The guard comes back, still held. The renewer downgrades it when the store answers again, also
/// under a fixed lease.
#[tokio::test(flavor = "current_thread")]
async fn a_downgrade_without_an_answer_returns_the_guard() {
    let fixed = |lock: RwLock| lock.fixed_lease(TIME * 20);
    let renewed = |lock: RwLock| lock.lease(TIME * 20);
    for lease in [fixed, renewed] {
        for (fault, missing) in [(Fault::FailBefore, 2), (Fault::FailAfter, 1)] {
            let chaos = Chaos::new(memory().await.store().clone());
            let (client, other) = (chaos.client(), RwLock::new(&chaos.client(), "x"));
            let writer = lease(RwLock::new(&client, "x")).write().await.expect("memory works");
            chaos.calls(Op::Enter, 0, missing, fault);
            let (writer, error) = writer.downgrade().await.expect_err("the answer was lost");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            until("others can read", async || {
                other.try_read().await.is_ok_and(|reader| reader.is_some())
            })
            .await;
            assert!(writer.is_valid());
            // The tasks of this process are not let in: their writer was told of a failure.
            let beside = RwLock::new(&client, "x").try_read().await.expect("memory works");
            assert!(beside.is_none());
        }
    }
}

/// As a single lock: what is free needs no time to wait.
#[tokio::test(flavor = "current_thread")]
async fn several_free_locks_are_acquired_without_time_to_wait() {
    let client = memory().await;
    let both = Multi::new(&client, ["a", "b"]);
    // A busy machine may take longer than a store has in any case.
    until("both are acquired", async || {
        let guard = both.lock_within(Duration::ZERO).await.expect("memory works");
        guard.is_some_and(|guard| guard.guards().len() == 2)
    })
    .await;
}
