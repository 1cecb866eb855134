//! The semaphore: a limited number of holders (G1, G16).

use super::kit::{in_time, line};
use super::{Ctx, group};
use holdline::ErrorKind;
use holdline::{Mutex, Semaphore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

group! { "semaphore":
    so_many_and_no_more needs Weights,
    permits_add_up needs Weights,
    never_more_than_there_are needs Weights,
    many_hold_at_once needs Weights,
    senseless_numbers_are_refused needs Weights,
    a_refused_number_leaves_no_trace needs Weights,
    another_number_is_refused needs Weights,
}

async fn so_many_and_no_more(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let (near, far) = (Semaphore::new(&one, &name, 3), Semaphore::new(&two, &name, 3));
    let a = near.acquire(1).await.expect("the store is there");
    let b = far.acquire(1).await.expect("the store is there");
    let c = far.try_acquire(1).await.expect("the store is there").expect("one is left");
    for semaphore in [&near, &far] {
        assert!(semaphore.try_acquire(1).await.expect("the store is there").is_none());
    }
    line(&one, &name, 3, 0).await;
    b.unlock().await.expect("it was held");
    let d = near.try_acquire(1).await.expect("the store is there").expect("one is free");
    for guard in [a, c, d] {
        guard.unlock().await.expect("it was held");
    }
}

async fn permits_add_up(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let (near, far) = (Semaphore::new(&one, &name, 5), Semaphore::new(&two, &name, 5));
    let three = near.acquire(3).await.expect("the store is there");
    assert!(far.try_acquire(3).await.expect("the store is there").is_none());
    let two_more = far.try_acquire(2).await.expect("the store is there").expect("two are left");
    assert!(near.try_acquire(1).await.expect("the store is there").is_none());
    let info = line(&two, &name, 2, 0).await;
    assert_eq!(info.capacity, 5);
    assert_eq!(info.holders.iter().map(|party| party.weight).sum::<u32>(), 5);
    three.unlock().await.expect("it was held");
    two_more.unlock().await.expect("it was held");
    let all = in_time("all", far.acquire(5)).await.expect("the store is there");
    all.unlock().await.expect("it was held");
}

async fn never_more_than_there_are(ctx: Ctx) {
    const PERMITS: u32 = 4;
    let taken = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for turn in 0..9_u32 {
        let semaphore = Semaphore::new(&ctx.client().await, ctx.name("x"), PERMITS);
        let taken = Arc::clone(&taken);
        tasks.push(tokio::spawn(async move {
            for round in 0..6 {
                let n = 1 + (turn + round) % PERMITS;
                let guard = semaphore.acquire(n).await.expect("the store is there");
                let before = taken.fetch_add(n, Ordering::SeqCst);
                assert!(before + n <= PERMITS, "{n} permits were given beside {before}");
                tokio::task::yield_now().await;
                taken.fetch_sub(n, Ordering::SeqCst);
                guard.unlock().await.expect("it was held");
            }
        }));
    }
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
    line(&ctx.client().await, &ctx.name("x"), 0, 0).await;
}

/// More holders on one line than a small index or page would take.
async fn many_hold_at_once(ctx: Ctx) {
    const MANY: u32 = 150;
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut guards = Vec::new();
    for turn in 0..MANY {
        let client = if turn % 2 == 0 { &one } else { &two };
        let semaphore = Semaphore::new(client, &name, MANY);
        guards.push(in_time("each", semaphore.acquire(1)).await.expect("the store is there"));
    }
    let semaphore = Semaphore::new(&one, &name, MANY);
    assert!(semaphore.try_acquire(1).await.expect("the store is there").is_none());
    let info = line(&one, &name, MANY as usize, 0).await;
    assert!(info.holders.is_sorted_by_key(|party| party.token));
    guards.swap_remove(70).unlock().await.expect("it was held");
    let late = semaphore.try_acquire(1).await.expect("the store is there").expect("one is free");
    drop((guards, late));
    line(&one, &name, 0, 0).await;
}

async fn senseless_numbers_are_refused(ctx: Ctx) {
    let client = ctx.client().await;
    for (n, permits) in [(0, 3), (4, 3), (0, 0), (1, 0)] {
        let semaphore = Semaphore::new(&client, ctx.name("x"), permits);
        let error = semaphore.acquire(n).await.expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n} of {permits}: {error}");
        let error = semaphore.try_acquire(n).await.expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n} of {permits}: {error}");
    }
}

async fn a_refused_number_leaves_no_trace(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let error = Semaphore::new(&client, &name, 3).acquire(4).await.expect_err("it is too many");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let guard = Mutex::new(&client, &name).lock().await.expect("nobody uses the name");
    guard.unlock().await.expect("it was held");
}

async fn another_number_is_refused(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let guard = Semaphore::new(&one, &name, 3).acquire(2).await.expect("the store is there");
    for client in [&one, &two] {
        let other = Semaphore::new(client, &name, 4);
        for error in [other.acquire(1).await, other.try_acquire(1).await.map(Option::unwrap)] {
            let error = error.expect_err("another number of permits");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
    }
    assert!(guard.is_valid());
    let info = line(&two, &name, 1, 0).await;
    assert_eq!((info.capacity, info.holders[0].weight), (3, 2));
    guard.unlock().await.expect("it was held");
    let other = Semaphore::new(&two, &name, 4).acquire(4).await.expect("nobody is there");
    other.unlock().await.expect("it was held");
}
