//! Administration: inspecting locks, and breaking them (G8, G19).

use super::kit::{Recipe, Terms, in_time, line};
use super::{Ctx, Fault, Op, group};
use holdline::ErrorKind;
use holdline::Loss;
use holdline::store::TicketId;
use holdline::{Mutex, Semaphore};
use std::time::Duration;

group! { "admin":
    a_free_lock_is_shown_free,
    the_holder_is_shown_as_it_is,
    waiters_are_shown_in_order needs Queues,
    weights_are_shown needs Weights,
    others_words_are_shown_as_a_label,
    labels_too_long_are_refused,
    breaking_by_a_wrong_id_does_nothing,
    breaking_lets_the_next_in needs Queues,
    a_removed_waiter_stands_at_the_end needs Queues,
    breaking_twice_is_harmless,
    breaking_tells_the_holder,
    breaking_tells_by_whom_and_why,
    a_removal_is_shown_and_only_the_last_few,
    a_loss_without_a_breaker_has_none,
}

async fn a_free_lock_is_shown_free(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let info = client.inspect(&name).await.expect("the store is there");
    assert_eq!((info.name.as_str(), info.capacity), (name.as_str(), 0));
    assert_eq!((info.holders, info.waiters), (vec![], vec![]));
    assert_eq!(client.list(&name).await.expect("the store is there"), []);
}

async fn the_holder_is_shown_as_it_is(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let label = "nightly \"report\" — é\n{}";
    let lease = ctx.longer(10);
    let lock = Mutex::new(&one, &name).label(label).lease(lease);
    let guard = lock.lock().await.expect("the store is there");
    let info = line(&two, &name, 1, 0).await;
    let party = &info.holders[0];
    assert_eq!((party.id, party.token, party.weight), (guard.ticket(), guard.token(), 1));
    assert_eq!(info.capacity, 1);
    assert_eq!(party.note.label.as_deref(), Some(label));
    assert_eq!(party.note.pid, std::process::id());
    assert!(!party.note.host.is_empty());
    let age = (crate::clock::wall_micros() / 1000).abs_diff(party.note.since);
    assert!(age < 60_000, "it says that it began {age} ms from now");
    assert!(party.expires_in > lease / 2, "{:?} of {lease:?}", party.expires_in);
    assert!(party.expires_in <= lease + Duration::from_secs(1), "{:?}", party.expires_in);
    guard.unlock().await.expect("it was held");
}

async fn waiters_are_shown_in_order(ctx: Ctx) {
    let (watcher, name) = (ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&watcher, &name).await;
    let mut tasks = Vec::new();
    for waiting in 1..=3 {
        let lock = Mutex::new(&ctx.client().await, &name).label(format!("waiter {waiting}"));
        tasks.push(tokio::spawn(async move { lock.lock().await.expect("the store is there") }));
        line(&watcher, &name, 1, waiting).await;
    }
    let info = line(&watcher, &name, 1, 3).await;
    let labels: Vec<_> = info.waiters.iter().filter_map(|who| who.note.label.clone()).collect();
    assert_eq!(labels, ["waiter 1", "waiter 2", "waiter 3"]);
    assert!(info.waiters.is_sorted_by_key(|who| who.token));
    assert!(!ctx.capabilities.fencing_tokens || info.holders[0].token < info.waiters[0].token);
    held.unlock().await.expect("it was held");
    for (task, promised) in tasks.into_iter().zip(info.waiters) {
        let guard = in_time("the waiters", task).await.expect("no task fails");
        assert_eq!((guard.ticket(), guard.token()), (promised.id, promised.token));
        guard.unlock().await.expect("it was held");
    }
}

async fn weights_are_shown(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let guard = Semaphore::new(&one, &name, 7).acquire(3).await.expect("the store is there");
    let info = line(&two, &name, 1, 0).await;
    assert_eq!((info.capacity, info.holders[0].weight), (7, 3));
    guard.unlock().await.expect("it was held");
}

/// A note of another program, or of another version of this one, is not an error.
async fn others_words_are_shown_as_a_label(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let line_name = holdline::Name::new(&name).expect("a good name");
    for (words, label) in [("not { json", Some("not { json")), ("", None), ("[1]", Some("[1]"))] {
        let ticket = super::kit::ticket(&ctx, 1, 1);
        let note = std::sync::Arc::from(words);
        let how = holdline::store::Enter::Try;
        client.store().enter(&line_name, &ticket, &note, how).await.expect("the store is there");
        let info = line(&client, &name, 1, 0).await;
        assert_eq!(info.holders[0].note.label.as_deref(), label);
        client.store().leave(&line_name, ticket.id).await.expect("the store is there");
    }
}

async fn labels_too_long_are_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let lock = Mutex::new(&client, &name).label("x".repeat(5000));
    assert_eq!(lock.lock().await.expect_err("too long").kind(), ErrorKind::Invalid);
    let long = "é".repeat(1500);
    let guard = Mutex::new(&client, &name).label(&long).lock().await.expect("long enough");
    let info = line(&client, &name, 1, 0).await;
    assert_eq!(info.holders[0].note.label.as_ref(), Some(&long));
    guard.unlock().await.expect("it was held");
}

async fn breaking_by_a_wrong_id_does_nothing(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let none = two.force_unlock(&name, TicketId(7), "a test").await.expect("works");
    assert_eq!(none, None, "nobody is there");
    let before = Recipe::Mutex.lock(&one, &name).await;
    let old = before.guard().ticket();
    before.unlock().await.expect("it was held");
    let held = Recipe::Mutex.lock(&one, &name).await;
    for id in [old, TicketId(0), TicketId(u128::MAX)] {
        let none = two.force_unlock(&name, id, "a test").await.expect("works");
        assert_eq!(none, None, "somebody else is there");
    }
    assert!(held.guard().is_valid());
    held.unlock().await.expect("it was held");
}

async fn breaking_lets_the_next_in(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&one, &name).await;
    let next = {
        let (client, name) = (ctx.client().await, name.clone());
        tokio::spawn(async move { Recipe::Mutex.lock(&client, &name).await })
    };
    line(&two, &name, 1, 1).await;
    two.force_unlock(&name, held.guard().ticket(), "a test").await.expect("works").expect("held");
    let next = in_time("the next", next).await.expect("no task fails");
    // The victim's late unlock must not affect the next holder.
    assert_eq!(held.unlock().await.expect_err("it was broken").kind(), ErrorKind::Lost);
    assert!(next.guard().is_valid());
    line(&two, &name, 1, 0).await;
    next.unlock().await.expect("it was held");
}

async fn a_removed_waiter_stands_at_the_end(ctx: Ctx) {
    let (watcher, name) = (ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&watcher, &name).await;
    let mut tasks = Vec::new();
    for waiting in 1..=2 {
        let (client, own) = (ctx.client().await, name.clone());
        tasks.push(tokio::spawn(async move { Recipe::Mutex.lock(&client, &own).await }));
        line(&watcher, &name, 1, waiting).await;
    }
    let first = line(&watcher, &name, 1, 2).await.waiters[0].id;
    watcher.force_unlock(&name, first, "a test").await.expect("works").expect("it was there");
    let info = line(&watcher, &name, 1, 2).await; // it restarts with a new ticket
    assert!(info.waiters.iter().all(|who| who.id != first));
    held.unlock().await.expect("it was held");
    for task in tasks.into_iter().rev() {
        let next = in_time("the waiters", task).await.expect("no task fails");
        next.unlock().await.expect("it was held");
    }
}

async fn breaking_twice_is_harmless(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, two) = ctx.chaos().await;
    let held = Recipe::Mutex.lock(&ctx.client().await, &name).await;
    let id = held.guard().ticket();
    chaos.calls(Op::Evict, 0, 1, Fault::FailAfter);
    let error = two.force_unlock(&name, id, "a test").await.expect_err("the reply is lost");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let next = Recipe::Mutex.lock(&two, &name).await;
    let again = two.force_unlock(&name, id, "a test").await.expect("works");
    assert_eq!(again, None, "it was done the first time");
    assert!(next.guard().is_valid());
    next.unlock().await.expect("it was held");
}

/// The holder learns of it at its next renewal at the latest.
async fn breaking_tells_the_holder(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::kept(ctx.lease)).await;
    two.force_unlock(&name, held.guard().ticket(), "a test").await.expect("works").expect("held");
    let start = crate::clock::now();
    in_time("the loss", held.guard().lost()).await;
    let took = start.until(crate::clock::now());
    assert!(took < ctx.lease * 2, "the holder was told after {took:?}");
    let error = held.guard().protect(async {}).await.expect_err("it was broken");
    assert!(error.to_string().contains(&name), "it says which: {error}");
}

const REASON: &str = "the host \"h\" is gone\n— é";

/// The cause is in every report of the loss: by the guard, in the work's error, in the release's
/// error.
async fn breaking_tells_by_whom_and_why(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    for way in 0..3 {
        let held = Recipe::Mutex.lock_for(&one, &name, Terms::kept(ctx.lease)).await;
        let guard = held.guard();
        assert_eq!(guard.loss().await, None, "it is held");
        let id = guard.ticket();
        let breaks = two.force_unlock(&name, id, REASON);
        let loss = match way {
            0 => {
                breaks.await.expect("works").expect("held");
                in_time("the loss", guard.lost()).await;
                in_time("the cause", guard.loss()).await
            }
            1 => {
                let work = guard.protect(std::future::pending::<()>());
                let (broken, lost) = tokio::join!(breaks, in_time("the loss", work));
                broken.expect("works").expect("held");
                let error = lost.expect_err("it was broken");
                assert!(error.to_string().contains("is gone"), "it says why: {error}");
                error.loss().cloned()
            }
            // The release finds the loss, if nothing else has.
            _ => {
                breaks.await.expect("works").expect("held");
                let error = held.unlock().await.expect_err("it was broken");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                error.loss().cloned()
            }
        };
        let Some(Loss::Broken { by, reason }) = loss else {
            panic!("it was broken by force, but the cause of the loss is {loss:?} (way {way})");
        };
        assert_eq!(reason.as_deref(), Some(REASON));
        assert_eq!(by.pid, std::process::id());
        assert!(!by.host.is_empty());
    }
}

/// Even when the lock is no longer in use; and no lock is listed because of it.
async fn a_removal_is_shown_and_only_the_last_few(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let mut ids = Vec::new();
    let most = holdline::store::EVICTIONS_KEPT;
    for round in 0..most + 2 {
        let held = Recipe::Mutex.lock(&client, &name).await;
        let id = held.guard().ticket();
        let reason = format!("round {round}");
        client.force_unlock(&name, id, &reason).await.expect("works").expect("held");
        ids.push((id, Some(reason)));
    }
    let info = line(&client, &name, 0, 0).await;
    let shown: Vec<_> = info.evictions.into_iter().map(|gone| (gone.id, gone.reason)).collect();
    assert_eq!(shown, ids[2..], "the last {most}, oldest first");
    assert_eq!(info.capacity, 0);
    let other = line(&client, &ctx.name("y"), 0, 0).await;
    assert!(other.evictions.is_empty(), "they are of another lock: {:?}", other.evictions);
    assert_eq!(client.list(&name).await.expect("the store is there"), []);
}

async fn a_loss_without_a_breaker_has_none(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let line_name = holdline::Name::new(&name).expect("a good name");
    let (chaos, one) = ctx.chaos().await;
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::kept(ctx.lease)).await;
    let id = held.guard().ticket();
    two.store().leave(&line_name, id).await.expect("the store is there");
    chaos.hint(id);
    in_time("the loss", held.guard().lost()).await;
    assert_eq!(in_time("the cause", held.guard().loss()).await, Some(Loss::Gone));
    drop(held); // so that the next one passes the local queue
    // A store that does not answer the query for the cause delays no one.
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::kept(ctx.lease)).await;
    two.store().leave(&line_name, held.guard().ticket()).await.expect("the store is there");
    chaos.always(Op::Snapshot, Fault::HangBefore);
    let error = in_time("the error", held.unlock()).await.expect_err("it was gone");
    assert_eq!(error.loss(), Some(&Loss::Gone), "{error}");
    chaos.heal();
    // An expired lease is a cause of its own; the store is not asked.
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
    chaos.always(Op::Enter, Fault::FailBefore);
    chaos.always(Op::Snapshot, Fault::HangBefore);
    in_time("the loss", held.guard().lost()).await;
    assert_eq!(in_time("the cause", held.guard().loss()).await, Some(Loss::Expired));
}
