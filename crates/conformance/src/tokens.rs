//! Fencing tokens: they always rise (G2, G19, G20), and exclude old holders (G3).

use super::kit::{Recipe, Terms, in_time, line};
use super::{Ctx, Fault, Op, group};
use holdline::{ErrorKind, Fence, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

group! { "tokens":
    they_rise_after_the_line_was_empty needs Fences,
    they_rise_after_a_loss needs Fences,
    they_rise_after_force needs Fences,
    they_rise_across_recipes needs Fences Weights,
    they_rise_along_a_handoff needs Fences Spans,
    a_handoff_is_bounded needs Spans,
    a_handoff_lets_others_in needs Spans Queues,
    a_fence_keeps_old_holders_out needs Fences,
    a_fenced_lock_has_a_token_or_is_refused,
    force_does_not_fence_waiters needs Fences Queues,
}

async fn they_rise_after_the_line_was_empty(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut last = 0;
    for round in 0..20 {
        let client = if round % 2 == 0 { &one } else { &two };
        let held = Recipe::Mutex.lock(client, &name).await;
        assert!(last < held.guard().token(), "{last} came before {}", held.guard().token());
        last = held.guard().token();
        held.unlock().await.expect("it was held");
    }
    drop((one, two)); // also after the line was empty
    let late = Recipe::Mutex.lock(&ctx.client().await, &name).await;
    assert!(last < late.guard().token());
}

async fn they_rise_after_a_loss(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let mut last = 0;
    for _ in 0..2 {
        let (chaos, one) = ctx.chaos().await;
        let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
        assert!(last < held.guard().token());
        chaos.always(Op::Enter, Fault::FailBefore);
        chaos.always(Op::Leave, Fault::FailBefore);
        let next = Recipe::Mutex.lock(&two, &name).await;
        assert!(held.guard().token() < next.guard().token());
        last = next.guard().token();
        next.unlock().await.expect("it was held");
    }
}

async fn they_rise_after_force(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut last = 0;
    for _ in 0..10 {
        let held = Recipe::Mutex.lock(&one, &name).await;
        assert!(last < held.guard().token() || last == held.guard().token());
        let id = held.guard().ticket();
        let token = two.force_unlock(&name, id, "a test").await.expect("works").expect("held");
        assert!(held.guard().token() < token, "the victim is not fenced");
        last = token;
    }
    let next = Recipe::Mutex.lock(&two, &name).await;
    assert!(last <= next.guard().token(), "the next holder is fenced, too");
    next.unlock().await.expect("it was held");
}

/// All recipes with the same name share one line.
async fn they_rise_across_recipes(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut last = 0;
    let recipes = [Recipe::Mutex, Recipe::Write, Recipe::SemaphoreDrained, Recipe::Election];
    for recipe in recipes.into_iter().cycle().take(12) {
        for client in [&one, &two] {
            let held = recipe.lock(client, &name).await;
            assert!(last < held.guard().token(), "{last} came before {recipe:?}");
            last = held.guard().token();
            held.unlock().await.expect("it was held");
        }
    }
}

async fn they_rise_along_a_handoff(ctx: Ctx) {
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let client = ctx.client().await;
        for _ in 0..6 {
            let lock = Mutex::new(&client, ctx.name("x")).handoff(4, Duration::from_secs(5));
            let last = Arc::clone(&last);
            tasks.push(tokio::spawn(async move {
                for round in 0..8 {
                    let guard = lock.lock().await.expect("the store is there");
                    let before = last.swap(guard.token(), Ordering::SeqCst);
                    assert!(before < guard.token(), "{before} came before {}", guard.token());
                    tokio::task::yield_now().await;
                    if round % 2 == 0 {
                        guard.unlock().await.expect("it was held");
                    }
                }
            }));
        }
    }
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
    line(&ctx.client().await, &ctx.name("x"), 0, 0).await;
}

/// A place in the store serves no more holders than were asked for.
async fn a_handoff_is_bounded(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let lock = Mutex::new(&client, &name).handoff(5, Duration::from_secs(60));
            tokio::spawn(async move {
                let mut places = Vec::new();
                for _ in 0..20 {
                    let guard = lock.lock().await.expect("the store is there");
                    places.push(guard.ticket());
                    tokio::task::yield_now().await;
                    guard.unlock().await.expect("it was held");
                }
                places
            })
        })
        .collect();
    let mut holders = HashMap::<_, u32>::new();
    for task in tasks {
        for place in in_time("every task", task).await.expect("no task fails") {
            *holders.entry(place).or_default() += 1;
        }
    }
    assert!(holders.values().all(|holders| *holders <= 5), "{holders:?}");
    line(&client, &name, 0, 0).await;
}

/// Local handoff in one client must let other clients in. Without a queue they would have to ask
/// just between two places of that client.
async fn a_handoff_lets_others_in(ctx: Ctx) {
    let (other, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, client) = ctx.chaos().await;
    let done = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let lock = Mutex::new(&client, &name).handoff(5, Duration::from_secs(60));
            let done = Arc::clone(&done);
            tokio::spawn(async move {
                while done.load(Ordering::SeqCst) == 0 {
                    let guard = lock.lock().await.expect("the store is there");
                    tokio::task::yield_now().await;
                    guard.unlock().await.expect("it was held");
                }
            })
        })
        .collect();
    line(&other, &name, 1, 0).await;
    let got = Recipe::Mutex.lock(&other, &name).await;
    done.store(1, Ordering::SeqCst);
    got.unlock().await.expect("it was held");
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
    assert!(chaos.count(Op::Leave) > 0, "it was never given back");
    line(&other, &name, 0, 0).await;
}

async fn a_fence_keeps_old_holders_out(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let fence = Fence::default();
    let old = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
    fence.check(old.guard().token()).expect("nobody newer has been here");
    chaos.always(Op::Enter, Fault::FailBefore);
    let new = Recipe::Mutex.lock(&two, &name).await;
    fence.check(new.guard().token()).expect("it is the newest");
    let stale = fence.check(old.guard().token()).expect_err("it is no longer the newest");
    assert_eq!(stale.newest, new.guard().token());
    fence.check(new.guard().token()).expect("it still is the newest");
    new.unlock().await.expect("it was held");
}

/// Another store must not switch the check of tokens off, unnoticed.
async fn a_fenced_lock_has_a_token_or_is_refused(ctx: Ctx) {
    let lock = Mutex::new(&ctx.client().await, ctx.name("x")).fenced();
    match lock.lock().await {
        Ok(guard) => {
            assert!(ctx.capabilities.fencing_tokens && guard.token() > 0);
            guard.unlock().await.expect("it was held");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!ctx.capabilities.fencing_tokens);
        }
    }
}

async fn force_does_not_fence_waiters(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let fence = Fence::default();
    let victim = Recipe::Mutex.lock(&one, &name).await;
    let waiter = {
        let (client, name) = (two.clone(), name.clone());
        tokio::spawn(async move { Recipe::Mutex.lock(&client, &name).await })
    };
    let id = line(&one, &name, 1, 1).await.holders[0].id;
    let token = two.force_unlock(&name, id, "a test").await.expect("works").expect("held");
    fence.check(token).expect("it is the newest");
    let next = in_time("the waiter", waiter).await.expect("no task fails");
    fence.check(victim.guard().token()).expect_err("the victim is fenced");
    fence.check(next.guard().token()).expect("the next holder is not");
    next.unlock().await.expect("it was held");
}
