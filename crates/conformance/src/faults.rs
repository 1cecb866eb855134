//! Faults: with lost requests, lost replies, hanging calls and late requests at each operation in
//! turn, the lock is never granted twice, and nothing is left behind (G1, G7).

use super::kit::{How, Recipe, Terms, in_time, line};
use super::{Chaos, Ctx, Fault, Op, group};
use holdline::ErrorKind;
use holdline_kernel::Backoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

group! { "faults":
    failing_requests_of_a_contended_lock,
    failing_replies_of_a_contended_lock,
    silence_before_a_contended_lock,
    silence_after_a_contended_lock,
    a_lost_reply_is_asked_for_again,
    a_try_with_a_lost_reply_leaves_nothing,
    a_dead_store_is_an_error_in_bounded_time,
    an_outage_is_outlasted,
    an_outage_ends_by_the_limit_or_the_bound,
    behind_a_waiter_that_outlasts_an_outage_the_limit_holds,
    a_time_limit_holds_when_the_store_is_silent,
    a_time_limit_is_no_failure_of_the_store,
    a_late_entry_lapses,
    a_late_renewal_is_no_entry,
    a_late_departure_hits_nobody_else,
    a_watch_that_fails_makes_nobody_spin needs Queues Wakes,
}

async fn failing_requests_of_a_contended_lock(ctx: Ctx) {
    contended(ctx, Fault::FailBefore).await;
}

async fn failing_replies_of_a_contended_lock(ctx: Ctx) {
    contended(ctx, Fault::FailAfter).await;
}

async fn silence_before_a_contended_lock(ctx: Ctx) {
    contended(ctx, Fault::HangBefore).await;
}

async fn silence_after_a_contended_lock(ctx: Ctx) {
    contended(ctx, Fault::HangAfter).await;
}

/// Two competing clients, one with this fault at its nth entry, and then at its nth departure.
async fn contended(ctx: Ctx, fault: Fault) {
    let clean = ctx.client().await;
    // The time limit of a call is a third of the lease.
    let terms = Terms::of(ctx.lease * 3);
    for op in [Op::Enter, Op::Leave] {
        for skip in 0..3 {
            let name = ctx.name(&format!("{op:?} {skip}"));
            let (chaos, client) = ctx.chaos().await;
            chaos.calls(op, skip, 1, fault);
            let inside = Arc::new(AtomicU32::new(0));
            let (a, b) = (Arc::clone(&inside), inside);
            let (here, there) = (name.clone(), name.clone());
            let one = tokio::spawn(async move { rounds(&client, &here, &a, terms).await });
            let clean_one = clean.clone();
            let two = tokio::spawn(async move { rounds(&clean_one, &there, &b, terms).await });
            in_time("the client with the fault", one).await.expect("no task fails");
            in_time("the other client", two).await.expect("no task fails");
            line(&clean, &name, 0, 0).await;
        }
    }
}

async fn rounds(client: &holdline::Client, name: &str, inside: &AtomicU32, terms: Terms) {
    for _ in 0..3 {
        let held = Recipe::Mutex.lock_for(client, name, terms).await;
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        match held.unlock().await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error}"),
        }
    }
}

async fn a_lost_reply_is_asked_for_again(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, client) = ctx.chaos().await;
    chaos.calls(Op::Enter, 0, 2, Fault::FailAfter);
    let held = Recipe::Mutex.lock(&client, &name).await;
    let info = line(&client, &name, 1, 0).await;
    assert_eq!(info.holders[0].id, held.guard().ticket(), "one ticket, asked for three times");
    assert_eq!(chaos.count(Op::Enter), 3);
    held.unlock().await.expect("it was held");
    line(&client, &name, 0, 0).await;
}

async fn a_try_with_a_lost_reply_leaves_nothing(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    chaos.calls(Op::Enter, 0, 1, Fault::FailAfter);
    let held = Recipe::Mutex.try_lock(&one, &name).await.expect("it is free, and it was ours");
    held.unlock().await.expect("it was held");
    line(&two, &name, 0, 0).await;
    chaos.heal();
    chaos.always(Op::Enter, Fault::FailAfter);
    let result = in_time("the try", Recipe::Mutex.take(&one, &name, How::Try, Terms::LONG)).await;
    assert_eq!(result.err().expect("no reply").kind(), ErrorKind::Unavailable);
    line(&two, &name, 0, 0).await; // an acquisition of unknown outcome is undone
}

async fn a_dead_store_is_an_error_in_bounded_time(ctx: Ctx) {
    let name = ctx.name("x");
    for fault in [Fault::FailBefore, Fault::HangBefore] {
        let (chaos, client) = ctx.chaos().await;
        for op in [Op::Enter, Op::Leave] {
            chaos.always(op, fault); // the store never answers
        }
        for how in [How::Try, How::Forever, How::Within(Duration::from_secs(20))] {
            let take = Recipe::Mutex.take(&client, &name, how, Terms::of(ctx.lease));
            let error = in_time("the error", take).await.err().expect("the store is dead");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.retryable());
        }
        chaos.heal();
        Recipe::Mutex.lock(&client, &name).await.unlock().await.expect("it was held");
    }
}

/// An outage of a store that has answered once is waited out, even by a waiter that loses its place
/// meanwhile.
async fn an_outage_is_outlasted(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&two, &name).await;
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::HangBefore] {
        let (chaos, one) = ctx.chaos().await;
        one.inspect(&name).await.expect("the store is there");
        assert_eq!(one.unavailable_for(), None);
        for op in [Op::Enter, Op::Leave, Op::Watch] {
            chaos.always(op, fault);
        }
        let waiter = {
            let (one, name) = (one.clone(), name.clone());
            let terms = Terms::of(ctx.lease);
            tokio::spawn(async move { Recipe::Mutex.lock_for(&one, &name, terms).await })
        };
        // More often than with a store that has never answered.
        super::kit::eventually("it asks on", || async { chaos.count(Op::Enter) > 6 }).await;
        assert!(one.unavailable_for().is_some());
        assert!(!waiter.is_finished(), "it has given the store up");
        chaos.heal();
        super::kit::eventually("it is back", || async { one.unavailable_for().is_none() }).await;
        waiter.abort();
        let _ = waiter.await;
        one.settle().await;
    }
    held.unlock().await.expect("it was held");
}

async fn an_outage_ends_by_the_limit_or_the_bound(ctx: Ctx) {
    let name = ctx.name("x");
    let limit = Duration::from_millis(1500);
    let mut quickest = Duration::MAX;
    for fault in [Fault::FailBefore, Fault::HangBefore] {
        for (bounded, how) in [(false, How::Within(limit)), (true, How::Forever)] {
            let (chaos, client) = ctx.chaos().await;
            let client = if bounded { client.outage(limit) } else { client };
            client.inspect(&name).await.expect("the store is there");
            chaos.always(Op::Enter, fault);
            let start = crate::clock::now();
            let take = Recipe::Mutex.take(&client, &name, how, Terms::of(ctx.lease));
            let error = in_time("the end", take).await.err().expect("the store is away");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let took = start.until(crate::clock::now());
            assert!(took >= limit, "it gave up after {took:?}");
            if fault == Fault::HangBefore && !bounded {
                quickest = quickest.min(took);
            }
        }
    }
    // A call that hangs does not prolong the wait. A busy machine may be late each time.
    for _ in 0..5 {
        if quickest < limit + Duration::from_millis(500) {
            return;
        }
        let (chaos, client) = ctx.chaos().await;
        client.inspect(&name).await.expect("the store is there");
        chaos.always(Op::Enter, Fault::HangBefore);
        let start = crate::clock::now();
        let take = Recipe::Mutex.take(&client, &name, How::Within(limit), Terms::LONG);
        assert!(in_time("the end", take).await.is_err());
        quickest = quickest.min(start.until(crate::clock::now()));
    }
    assert!(quickest < limit + Duration::from_millis(500), "at best it took {quickest:?}");
}

/// In the local queue: the limit holds for a task that is not the one asking the store, and it is
/// not told that the lock is held, which nobody knows.
async fn behind_a_waiter_that_outlasts_an_outage_the_limit_holds(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, client) = ctx.chaos().await;
    client.inspect(&name).await.expect("the store is there");
    chaos.always(Op::Enter, Fault::FailBefore);
    let first = {
        let (client, name) = (client.clone(), name.clone());
        tokio::spawn(async move { Recipe::Mutex.lock(&client, &name).await })
    };
    let is_away = || async { client.unavailable_for().is_some() };
    super::kit::eventually("the first has asked", is_away).await;
    for how in [How::Within(ctx.brief()), How::Try] {
        let second = Recipe::Mutex.take(&client, &name, how, Terms::LONG);
        let error = in_time("the second", second).await.err().expect("nobody could be asked");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(!first.is_finished());
    chaos.heal();
    let first = in_time("the first", first).await.expect("no task fails");
    first.unlock().await.expect("it was held");
}

async fn a_time_limit_holds_when_the_store_is_silent(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, client) = ctx.chaos().await;
    chaos.always(Op::Enter, Fault::HangBefore);
    let start = crate::clock::now();
    let how = How::Within(Duration::from_millis(300));
    let result = in_time("the end", Recipe::Mutex.take(&client, &name, how, Terms::LONG)).await;
    assert!(result.is_err(), "it cannot know that the lock is held");
    let took = start.until(crate::clock::now());
    assert!(took < Duration::from_secs(3), "it took {took:?}");
}

/// The lock is held, the store says so, and the last of many polls is cut off by the limit.
async fn a_time_limit_is_no_failure_of_the_store(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    let held = Recipe::Mutex.lock(&one, &name).await;
    line(&two, &name, 1, 0).await; // it is connected
    chaos.calls(Op::Enter, 1, u32::MAX, Fault::HangBefore);
    let limit = ctx.lease / 2;
    let how = How::Within(limit);
    for recipe in [Recipe::Poll(Backoff::fixed(limit * 9 / 10)), Recipe::Mutex] {
        let result = in_time("the end", recipe.take(&two, &name, how, Terms::LONG)).await;
        assert!(result.expect("the store is there").is_none(), "it is held");
        chaos.heal();
    }
    held.unlock().await.expect("it was held");
}

/// A request that arrives after its caller has given up takes a place that is never renewed.
async fn a_late_entry_lapses(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, client) = ctx.chaos().await;
    chaos.always(Op::Enter, Fault::Late);
    let take = Recipe::Mutex.take(&client, &name, How::Try, Terms::of(ctx.lease));
    assert!(take.await.is_err());
    chaos.heal();
    client.settle().await;
    assert!(chaos.deliver().await > 0);
    Recipe::Mutex.lock(&client, &name).await.unlock().await.expect("it was held");
    line(&client, &name, 0, 0).await;
}

async fn a_late_renewal_is_no_entry(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
    chaos.always(Op::Enter, Fault::Late);
    in_time("the loss", held.guard().lost()).await;
    let next = Recipe::Mutex.lock(&two, &name).await;
    assert!(chaos.deliver().await > 0, "there were renewals on the way");
    let info = line(&two, &name, 1, 0).await;
    assert_eq!(info.holders[0].id, next.guard().ticket());
    assert!(!held.guard().is_valid());
    next.unlock().await.expect("it was held");
    line(&two, &name, 0, 0).await;
}

async fn a_late_departure_hits_nobody_else(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, client): (Chaos, _) = ctx.chaos().await;
    let held = Recipe::Mutex.lock(&client, &name).await;
    chaos.calls(Op::Leave, 0, 1, Fault::Late);
    let error = held.unlock().await.expect_err("no reply");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let next = Recipe::Mutex.lock(&client, &name).await;
    assert_eq!(chaos.deliver().await, 1);
    assert!(next.guard().is_valid());
    line(&client, &name, 1, 0).await;
    next.unlock().await.expect("it was held");
}

/// A waiter polls at the same interval when the watch fails as when there are no notices. A store
/// that has had no notice yet, as before the first turn, may poll more often.
async fn a_watch_that_fails_makes_nobody_spin(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    chaos.always(Op::Watch, Fault::FailBefore);
    for most_a_second in [20, 5] {
        let before = chaos.count(Op::Enter);
        let held = Recipe::Mutex.lock(&one, &name).await;
        let waiter = {
            let (two, name) = (two.clone(), name.clone());
            tokio::spawn(async move { Recipe::Mutex.lock(&two, &name).await })
        };
        line(&one, &name, 1, 1).await;
        let start = crate::clock::now();
        crate::clock::pause(Duration::from_secs(2)).await;
        let looks = chaos.count(Op::Enter) - before;
        let waited = start.until(crate::clock::now());
        let most = most_a_second * (usize::try_from(waited.as_secs()).expect("a short time") + 1);
        assert!(looks <= most, "it looked {looks} times in {waited:?}");
        held.unlock().await.expect("it was held");
        let got = in_time("the waiter", waiter).await.expect("no task fails");
        got.unlock().await.expect("it was held");
    }
}
