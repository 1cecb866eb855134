//! Recipes of several locks, guards or owners: who is told of a loss, and one time limit for all.

use super::scripted::{Answer, Scripted};
use futures_util::FutureExt;
use holdline::store::{Seq, Standing};
use holdline::{Client, Election, ErrorKind, Loss, Multi, OnLoss, Owner, ReentrantMutex, RwLock};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::until;
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

/// Three answers in two thirds of the time each: they are too late together.
#[tokio::test(flavor = "current_thread")]
async fn several_locks_have_the_time_limit_of_one() {
    let slow = Answer::After(TIME * 2 / 3, Standing::Admitted(Seq(7)));
    let client = Scripted::new(move |_, _| slow).client().response_timeout(TIME);
    let all = Multi::new(&client, ["a", "b", "c"]);
    all.try_lock().await.expect_err("the time was over");
    client.settle().await; // the first of them is free again
    all.lock_within(TIME).await.expect_err("the time was over");
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

/// An observer tells leaders apart by their tokens, not only by their values.
#[tokio::test(flavor = "current_thread")]
async fn a_new_leader_with_the_value_of_the_last_one_is_seen() {
    let client = memory().await;
    let election = Election::new(&client, "x");
    let mut observer = election.observe().every(TIME / 5);
    let first = election.campaign("same").await.expect("memory works");
    let seen = observer.next().await.expect("memory works").expect("somebody leads");
    assert_eq!(seen.token, first.token());
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
