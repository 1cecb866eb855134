//! The read-write lock: many readers or one writer (G1, G9, G16).

use super::kit::{Recipe, in_time, line};
use super::{Ctx, Fault, Op, group};
use holdline::ErrorKind;
use holdline::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

group! { "rwlock":
    readers_share needs Weights,
    readers_wait_behind_a_waiting_writer needs Weights Queues,
    never_a_writer_with_anybody_else needs Weights,
    a_downgrade_lets_readers_in_but_no_writer needs Weights Queues,
    a_failed_downgrade_gives_the_guard_back needs Weights,
    a_mutex_of_the_name_is_refused needs Weights,
}

async fn readers_share(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let (near, far) = (RwLock::new(&one, &name), RwLock::new(&two, &name));
    let readers = [
        in_time("one", near.read()).await.expect("the store is there"),
        in_time("two", near.read()).await.expect("the store is there"),
        in_time("three", far.read()).await.expect("the store is there"),
        far.try_read().await.expect("the store is there").expect("there is no writer"),
    ];
    line(&one, &name, 4, 0).await;
    for lock in [&near, &far] {
        assert!(lock.try_write().await.expect("the store is there").is_none());
    }
    for reader in readers {
        assert!(reader.is_valid());
        reader.unlock().await.expect("it was held");
    }
    let writer = far.try_write().await.expect("the store is there").expect("it is free");
    for lock in [&near, &far] {
        assert!(lock.try_read().await.expect("the store is there").is_none());
    }
    writer.unlock().await.expect("it was held");
}

async fn readers_wait_behind_a_waiting_writer(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let first = RwLock::new(&one, &name).read().await.expect("the store is there");
    let writer = {
        let (client, name) = (ctx.client().await, name.clone());
        tokio::spawn(async move { Recipe::Write.lock(&client, &name).await })
    };
    line(&one, &name, 1, 1).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let lock = RwLock::new(&ctx.client().await, &name);
        readers.push(tokio::spawn(async move { lock.read().await.expect("the store is there") }));
    }
    line(&one, &name, 1, 4).await;
    first.unlock().await.expect("it was held");
    let writer = in_time("the writer", writer).await.expect("no task fails");
    line(&one, &name, 1, 3).await;
    writer.unlock().await.expect("it was held");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(in_time("the readers", reader).await.expect("no task fails"));
    }
    line(&one, &name, 3, 0).await; // all at once
}

async fn never_a_writer_with_anybody_else(ctx: Ctx) {
    let (inside, counter) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = Vec::new();
    for turn in 0..9 {
        let lock = RwLock::new(&ctx.client().await, ctx.name("x"));
        let (inside, counter) = (Arc::clone(&inside), Arc::clone(&counter));
        tasks.push(tokio::spawn(async move {
            for round in 0..6 {
                if (turn + round) % 3 == 0 {
                    let writer = lock.write().await.expect("the store is there");
                    assert_eq!(inside.fetch_sub(100, Ordering::SeqCst), 0, "it is not alone");
                    let before = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(before + 1, Ordering::SeqCst);
                    inside.fetch_add(100, Ordering::SeqCst);
                    writer.unlock().await.expect("it was held");
                } else {
                    let reader = lock.read().await.expect("the store is there");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "a writer is there");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    reader.unlock().await.expect("it was held");
                }
            }
        }));
    }
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
    assert_eq!(counter.load(Ordering::SeqCst), 18);
}

async fn a_downgrade_lets_readers_in_but_no_writer(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let lock = RwLock::new(&one, &name);
    let writer = lock.write().await.expect("the store is there");
    let reader = {
        let lock = RwLock::new(&ctx.client().await, &name);
        tokio::spawn(async move { lock.read().await.expect("the store is there") })
    };
    line(&one, &name, 1, 1).await;
    let second = {
        let (client, name) = (ctx.client().await, name.clone());
        tokio::spawn(async move { Recipe::Write.lock(&client, &name).await })
    };
    line(&one, &name, 1, 2).await;
    let token = writer.token();
    let downgraded = writer.downgrade().await.map_err(|(_, error)| error).expect("it is held");
    assert_eq!(downgraded.token(), token);
    let reader = in_time("the reader", reader).await.expect("no task fails");
    line(&one, &name, 2, 1).await;
    reader.unlock().await.expect("it was held");
    assert!(downgraded.is_valid());
    assert!(!second.is_finished(), "a writer came in beside a reader");
    downgraded.unlock().await.expect("it was held");
    let second = in_time("the second writer", second).await.expect("no task fails");
    second.unlock().await.expect("it was held");
}

async fn a_failed_downgrade_gives_the_guard_back(ctx: Ctx) {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let (chaos, client) = ctx.chaos().await;
        let name = ctx.name("x");
        let lock = RwLock::new(&client, &name);
        let writer = lock.write().await.expect("the store is there");
        chaos.calls(Op::Enter, 0, 1, fault);
        let (writer, error) = writer.downgrade().await.expect_err("it was made to fail");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(writer.is_valid());
        let reader = writer.downgrade().await.map_err(|(_, error)| error).expect("it is held");
        let beside = lock.try_read().await.expect("the store is there").expect("readers share");
        assert!(lock.try_write().await.expect("the store is there").is_none());
        beside.unlock().await.expect("it was held");
        reader.unlock().await.expect("it was held");
    }
}

async fn a_mutex_of_the_name_is_refused(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let reader = RwLock::new(&one, &name).read().await.expect("the store is there");
    for client in [&one, &two] {
        let error = Mutex::new(client, &name).try_lock().await.expect_err("another capacity");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    }
    assert!(reader.is_valid());
    line(&two, &name, 1, 0).await;
    reader.unlock().await.expect("it was held");
    let guard = Mutex::new(&two, &name).try_lock().await.expect("nobody is there");
    assert!(guard.is_some(), "it is free");
}
