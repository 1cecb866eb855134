//! Fairness: first come, first served (G9), no needless wake-ups (G10), and no starvation (G13).

use super::kit::{Recipe, eventually, in_time, line, poll_once};
use super::{Ctx, Op, group};
use crate::clock;
use holdline::{Mutex, RwLock, Semaphore};
use std::sync::{Arc, Mutex as Plain, PoisonError};
use std::time::Duration;

group! { "fairness":
    first_come_first_served needs Queues,
    pollers_keep_their_places needs Queues,
    tasks_of_one_client_take_turns,
    a_release_wakes_only_whom_it_admits needs Queues Wakes,
    a_lost_notice_costs_a_bounded_time needs Queues,
    a_cancelled_waiter_lets_the_next_pass needs Queues,
    heavy_askers_are_not_starved needs Queues Weights,
    a_try_does_not_overtake_waiters needs Queues Weights,
}

async fn first_come_first_served(ctx: Ctx) {
    in_order(ctx, Recipe::Mutex).await;
}

async fn pollers_keep_their_places(ctx: Ctx) {
    let schedule = holdline_kernel::Backoff::shrinking(Duration::from_millis(15));
    in_order(ctx, Recipe::Poll(schedule)).await;
}

/// Waiters that arrived one after another, each from a client of its own, are admitted in that
/// order.
async fn in_order(ctx: Ctx, recipe: Recipe) {
    let (watcher, name) = (ctx.client().await, ctx.name("x"));
    let held = recipe.lock(&watcher, &name).await;
    let order = Arc::new(Plain::new(Vec::new()));
    let mut tasks = Vec::new();
    for turn in 0..8 {
        let (client, name, order) = (ctx.client().await, name.clone(), Arc::clone(&order));
        let waiters = tasks.len() + 1;
        let watched = name.clone();
        tasks.push(tokio::spawn(async move {
            let held = recipe.lock(&client, &name).await;
            order.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
            held.unlock().await.expect("it was held");
        }));
        line(&watcher, &watched, 1, waiters).await;
    }
    held.unlock().await.expect("it was held");
    for task in tasks {
        in_time("every waiter", task).await.expect("no task fails");
    }
    let order = order.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(order.is_sorted(), "they came in the order {order:?}");
}

async fn tasks_of_one_client_take_turns(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&client, &name).await;
    let order = Arc::new(Plain::new(Vec::new()));
    let mut tasks = Vec::new();
    for turn in 0..8 {
        let (lock, order) = (Mutex::new(&client, &name), Arc::clone(&order));
        let mut wait = Box::pin(async move {
            let guard = lock.lock().await.expect("the store is there");
            order.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
            guard.unlock().await.expect("it was held");
        });
        // The first poll takes the place in the local queue.
        assert!(!poll_once(&mut wait).await);
        tasks.push(tokio::spawn(wait));
    }
    held.unlock().await.expect("it was held");
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
    let order = order.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(order.is_sorted(), "they came in the order {order:?}");
}

async fn a_release_wakes_only_whom_it_admits(ctx: Ctx) {
    const WAITERS: usize = 16;
    let (watcher, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, _) = ctx.chaos().await;
    let held = Recipe::Mutex.lock(&watcher, &name).await;
    let mut tasks = Vec::new();
    for waiters in 1..=WAITERS {
        let (client, name) = (chaos.client(), name.clone());
        let watched = name.clone();
        tasks.push(tokio::spawn(async move {
            let held = Recipe::Mutex.lock(&client, &name).await;
            clock::pause(Duration::from_millis(30)).await; // time for a herd to poll
            held.unlock().await.expect("it was held");
        }));
        line(&watcher, &watched, 1, waiters).await;
    }
    let (start, before) = (clock::now(), chaos.count(Op::Enter));
    held.unlock().await.expect("it was held");
    for task in tasks {
        in_time("every waiter", task).await.expect("no task fails");
    }
    let looks = chaos.count(Op::Enter) - before;
    // Each waiter polls once when it is admitted, and every second to keep its place. A thundering
    // herd would poll WAITERS * WAITERS / 2 = 128 times more.
    let seconds = usize::try_from(start.until(clock::now()).as_secs()).expect("a short time") + 1;
    let most = WAITERS * 2 + WAITERS * seconds;
    assert!(looks <= most, "{looks} looks for {WAITERS} admissions in less than {seconds} s");
}

/// The waiter gets no notice: it must poll.
async fn a_lost_notice_costs_a_bounded_time(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    chaos.always(Op::Watch, super::Fault::HangBefore);
    let held = Recipe::Mutex.lock(&one, &name).await;
    let waiter = {
        let name = name.clone();
        tokio::spawn(async move { Recipe::Mutex.lock(&two, &name).await })
    };
    line(&one, &name, 1, 1).await;
    let start = clock::now();
    held.unlock().await.expect("it was held");
    let got = in_time("the waiter", waiter).await.expect("no task fails");
    let took = start.until(clock::now());
    assert!(took < Duration::from_secs(8), "it took {took:?} to notice");
    got.unlock().await.expect("it was held");
}

async fn a_cancelled_waiter_lets_the_next_pass(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let held = Recipe::Mutex.lock(&one, &name).await;
    let mut waiters = Vec::new();
    for waiting in 1..=3 {
        let (client, own) = (ctx.client().await, name.clone());
        waiters.push(tokio::spawn(async move { Recipe::Mutex.lock(&client, &own).await }));
        line(&one, &name, 1, waiting).await;
    }
    let last = waiters.pop().expect("three wait");
    for waiter in &waiters {
        waiter.abort();
    }
    line(&one, &name, 1, 1).await;
    held.unlock().await.expect("it was held");
    in_time("the last", last).await.expect("no task fails").unlock().await.expect("it was held");
}

/// A request for all permits is served in its turn, although a stream of others takes one each.
async fn heavy_askers_are_not_starved(ctx: Ctx) {
    let (watcher, name) = (ctx.client().await, ctx.name("x"));
    let semaphore = Semaphore::new(&watcher, &name, 3);
    let first = semaphore.acquire(1).await.expect("the store is there");
    let heavy = {
        let semaphore = Semaphore::new(&ctx.client().await, &name, 3);
        tokio::spawn(async move { semaphore.acquire(3).await.expect("the store is there") })
    };
    line(&watcher, &name, 1, 1).await;
    let light = {
        let semaphore = Semaphore::new(&ctx.client().await, &name, 3);
        tokio::spawn(async move { semaphore.acquire(1).await.expect("the store is there") })
    };
    line(&watcher, &name, 1, 2).await; // two permits are free, but the waiter is first
    first.unlock().await.expect("it was held");
    let heavy = in_time("the heavy one", heavy).await.expect("no task fails");
    assert!(!light.is_finished());
    line(&watcher, &name, 1, 1).await;
    heavy.unlock().await.expect("it was held");
    in_time("the light one", light).await.expect("no task fails").unlock().await.expect("held");
}

async fn a_try_does_not_overtake_waiters(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let reader = RwLock::new(&one, &name).read().await.expect("the store is there");
    let writer = {
        let (client, name) = (ctx.client().await, name.clone());
        tokio::spawn(async move { Recipe::Write.lock(&client, &name).await })
    };
    line(&one, &name, 1, 1).await;
    for client in [&one, &two] {
        let got = RwLock::new(client, &name).try_read().await.expect("the store is there");
        assert!(got.is_none(), "a reader passed a waiting writer");
    }
    reader.unlock().await.expect("it was held");
    let writer = in_time("the writer", writer).await.expect("no task fails");
    writer.unlock().await.expect("it was held");
    eventually("the line is empty", || async {
        one.inspect(&name).await.expect("the store is there").capacity == 0
    })
    .await;
}
