//! The mutex suite, through every recipe that can serve as a mutex (G1, G2, G4, G6, G14, G19).

use super::kit::{Held, How, Recipe, Terms, eventually, in_time, line};
use super::{Case, Ctx, Fault, Need, Op};
use crate::clock;
use holdline::ErrorKind;
use holdline_kernel::Backoff;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// All recipes, with their names and needs.
fn recipes() -> Vec<(&'static str, Recipe, &'static [Need])> {
    let jittered = Backoff::exponential(MS, MS * 20).jitter(50);
    vec![
        ("mutex", Recipe::Mutex, &[]),
        ("write_lock", Recipe::Write, &[Need::Weights]),
        ("semaphore_of_one", Recipe::SemaphoreOfOne, &[]),
        ("semaphore_drained", Recipe::SemaphoreDrained, &[Need::Weights]),
        ("multi_of_one", Recipe::MultiOfOne, &[]),
        ("multi_of_two", Recipe::MultiOfTwo, &[]),
        ("election", Recipe::Election, &[]),
        ("reentrant", Recipe::Reentrant, &[]),
        ("unfair", Recipe::Unfair, &[]),
        ("poll_fixed", Recipe::Poll(Backoff::fixed(MS * 5)), &[]),
        // Other pauses differ only in the kernel, where they are tested.
        ("poll_jittered", Recipe::Poll(jittered), &[]),
        ("handoff", Recipe::Handoff, &[Need::Spans]),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (label, recipe, needs) in recipes() {
        let mut add = |case: Case| cases.push(case);
        add(made(label, "locks_and_unlocks", recipe, needs, locks_and_unlocks));
        add(made(label, "waits_in_time", recipe, needs, waits_in_time));
        add(made(label, "waits_until_unlocked", recipe, needs, waits_until_unlocked));
        add(made(label, "one_at_a_time", recipe, needs, one_at_a_time));
        add(made(label, "a_dropped_guard_releases", recipe, needs, a_dropped_guard_releases));
        add(made(label, "a_dropped_wait_is_over", recipe, needs, a_dropped_wait_is_over));
        add(made(label, "renewal_keeps_it", recipe, needs, renewal_keeps_it));
        add(made(label, "loss_comes_before_a_rival", recipe, needs, loss_comes_before_a_rival));
        add(made(label, "a_broken_lock_is_lost", recipe, needs, a_broken_lock_is_lost));
    }
    cases
}

fn made<F: Future<Output = ()> + Send + 'static>(
    label: &str,
    what: &str,
    recipe: Recipe,
    needs: &[Need],
    body: fn(Ctx, Recipe) -> F,
) -> Case {
    Case::new(&format!("mutex::{label}::{what}"), needs, move |ctx| body(ctx, recipe))
}

async fn locks_and_unlocks(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let first = recipe.lock(&one, &name).await;
    assert!(first.guard().is_valid());
    assert!(first.guard().remaining() > Duration::ZERO);
    assert!(first.guard().remaining() < Terms::LONG.lease);
    assert_eq!(first.guard().name().as_str(), name);
    assert!(recipe.try_lock(&one, &name).await.is_none(), "the same client got it twice");
    assert!(recipe.try_lock(&two, &name).await.is_none(), "another client got it, too");
    let token = first.guard().token();
    first.unlock().await.expect("it was held");
    let second = recipe.lock(&two, &name).await;
    if ctx.capabilities.fencing_tokens {
        assert!(token < second.guard().token(), "tokens rise");
    }
    second.unlock().await.expect("it was held");
    line(&one, &name, 0, 0).await;
    for client in [&one, &two] {
        let third = recipe.try_lock(client, &name).await.expect("it is free");
        third.unlock().await.expect("it was held");
    }
}

async fn waits_in_time(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let held = recipe.lock(&one, &name).await;
    line(&two, &name, 1, 0).await; // both are connected: that is not what is limited here
    let time = ctx.brief();
    for client in [&one, &two] {
        for slow in 0.. {
            let start = clock::now();
            let taken = recipe.take(client, &name, How::Within(time), Terms::LONG);
            match in_time("the time", taken).await {
                // No answer at all in that short time, which the error says.
                Err(error) if error.retryable() && slow < 5 => continue,
                got => assert!(got.expect("the store is there").is_none(), "it is held"),
            }
            assert!(start.until(clock::now()) >= time, "it gave up early");
            break;
        }
    }
    line(&two, &name, 1, 0).await;
    held.unlock().await.expect("it was held");
    let long = How::Within(Duration::from_secs(30));
    let got = in_time("the lock", recipe.take(&two, &name, long, Terms::LONG)).await;
    got.expect("the store is there").expect("it is free").unlock().await.expect("it was held");
}

async fn waits_until_unlocked(ctx: Ctx, recipe: Recipe) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    let held = recipe.lock(&one, &name).await;
    let token = held.guard().token();
    let waiter = {
        let name = name.clone();
        tokio::spawn(async move { recipe.lock(&two, &name).await })
    };
    eventually("the waiter asks", || async {
        chaos.count(Op::Enter) > 1 || waits(&one, &name).await
    })
    .await;
    assert!(!waiter.is_finished(), "it is held");
    held.unlock().await.expect("it was held");
    let got = in_time("the waiter", waiter).await.expect("it does not fail");
    if ctx.capabilities.fencing_tokens {
        assert!(token < got.guard().token(), "tokens rise");
    }
    got.unlock().await.expect("it was held");
}

async fn waits(client: &holdline::Client, name: &str) -> bool {
    !client.inspect(name).await.expect("the store is there").waiters.is_empty()
}

/// The guarded resource. It is read and written separately, so that an overlap loses an update.
#[derive(Default)]
struct Shared {
    inside: AtomicU64,
    counter: AtomicU64,
    token: AtomicU64,
}

impl Shared {
    async fn work(&self, held: &Held, fences: bool) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        let before = self.counter.load(Ordering::SeqCst);
        let (token, last) = (held.guard().token(), self.token.load(Ordering::SeqCst));
        assert!(!fences || last < token, "token {token} comes after {last}");
        self.token.store(token, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.counter.store(before + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn one_at_a_time(ctx: Ctx, recipe: Recipe) {
    const CLIENTS: u64 = 3;
    const TASKS: u64 = 3;
    const ROUNDS: u64 = 5;
    let (shared, fences) = (Arc::new(Shared::default()), ctx.capabilities.fencing_tokens);
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let client = ctx.client().await;
        for _ in 0..TASKS {
            let (client, name, shared) = (client.clone(), ctx.name("x"), Arc::clone(&shared));
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let held = recipe.lock(&client, &name).await;
                    shared.work(&held, fences).await;
                    held.unlock().await.expect("it was held to the end");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task fails");
    }
    assert_eq!(shared.counter.load(Ordering::SeqCst), CLIENTS * TASKS * ROUNDS);
    line(&ctx.client().await, &ctx.name("x"), 0, 0).await;
}

async fn a_dropped_guard_releases(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    drop(recipe.lock(&one, &name).await);
    drop(recipe.lock(&two, &name).await);
    recipe.lock(&one, &name).await.unlock().await.expect("it was held");
    line(&one, &name, 0, 0).await;
}

async fn a_dropped_wait_is_over(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let held = recipe.lock(&one, &name).await;
    let queues = ctx.capabilities.fair_queue && recipe != Recipe::Unfair;
    for (client, waiters) in [(&one, 0), (&two, usize::from(queues))] {
        let (client, own) = (client.clone(), name.clone());
        let waiter = tokio::spawn(async move { recipe.lock(&client, &own).await });
        tokio::task::yield_now().await;
        line(&one, &name, 1, waiters).await;
        waiter.abort();
        assert!(waiter.await.is_err(), "it is held, and the wait was cut off");
        let start = clock::now();
        line(&one, &name, 1, 0).await;
        let took = start.until(clock::now());
        assert!(took < Duration::from_secs(2), "its place was not left, but lapsed after {took:?}");
    }
    held.unlock().await.expect("it was held");
    for client in [&one, &two] {
        recipe.lock(client, &name).await.unlock().await.expect("it was held");
    }
}

async fn renewal_keeps_it(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let terms = Terms::kept(ctx.lease);
    let held = recipe.lock_for(&one, &name, terms).await;
    let end = clock::now().after(terms.lease * 3 / 2);
    while clock::now() < end {
        clock::pause(ctx.lease / 10).await;
        assert!(held.guard().is_valid(), "it was lost: {:?}", held.guard());
        assert!(recipe.try_lock(&two, &name).await.is_none(), "another client got it, too");
    }
    held.unlock().await.expect("it was held to the end");
}

/// The store stops answering the holder, who must know of the loss before another client is
/// admitted.
async fn loss_comes_before_a_rival(ctx: Ctx, recipe: Recipe) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let held = Arc::new(recipe.lock_for(&one, &name, Terms::of(ctx.lease)).await);
    let token = held.guard().token();
    chaos.always(Op::Enter, Fault::FailBefore);
    chaos.always(Op::Leave, Fault::FailBefore);
    let told = {
        let held = Arc::clone(&held);
        tokio::spawn(async move {
            held.guard().lost().await;
            clock::now()
        })
    };
    let rival = recipe.lock(&two, &name).await;
    let granted = clock::now();
    assert!(!held.guard().is_valid(), "two hold it");
    assert_eq!(held.guard().time_to_stop(), Duration::ZERO, "the rival came too early");
    let told = in_time("the holder is told", told).await.expect("no panic");
    assert!(told < granted, "the holder was told {:?} after the rival came", granted.until(told));
    if ctx.capabilities.fencing_tokens {
        assert!(token < rival.guard().token(), "tokens rise");
    }
    chaos.heal();
    let held = Arc::into_inner(held).expect("nobody else has it");
    let error = held.unlock().await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(rival.guard().is_valid(), "the late unlock took the rival's lock");
    rival.unlock().await.expect("it was held");
}

async fn a_broken_lock_is_lost(ctx: Ctx, recipe: Recipe) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let held = recipe.lock_for(&one, &name, Terms::kept(ctx.lease)).await;
    let id = line(&two, &name, 1, 0).await.holders[0].id;
    assert_eq!(id, held.guard().ticket());
    let token = two.force_unlock(&name, id, "a test").await.expect("the store is there");
    let token = token.expect("it was there");
    assert!(!ctx.capabilities.fencing_tokens || held.guard().token() < token);
    in_time("the holder is told", held.guard().lost()).await;
    assert!(!held.guard().is_valid());
    assert_eq!(held.guard().time_to_stop(), Duration::ZERO, "somebody else may be in");
    let error = held.unlock().await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let next = recipe.lock(&two, &name).await;
    assert!(!ctx.capabilities.fencing_tokens || token <= next.guard().token(), "it is fenced, too");
    next.unlock().await.expect("it was held");
}
