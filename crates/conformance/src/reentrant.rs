//! The reentrant mutex.

use super::kit::{in_time, line};
use super::{Ctx, group};
use holdline::ErrorKind;
use holdline::{Mutex, Owner, ReentrantMutex};
use std::time::Duration;

group! { "reentrant":
    its_owner_locks_again,
    others_wait,
    the_last_guard_releases,
    an_owner_that_lost_it_is_told,
    two_tasks_of_one_owner_share_it,
    a_scope_carries_the_owner,
}

async fn its_owner_locks_again(ctx: Ctx) {
    let (client, name, me) = (ctx.client().await, ctx.name("x"), Owner::new());
    let lock = ReentrantMutex::new(&client, &name);
    let outer = in_time("outer", lock.lock(&me)).await.expect("the store is there");
    let inner = in_time("inner", lock.lock(&me)).await.expect("the store is there");
    let third = lock.try_lock(&me).await.expect("the store is there").expect("it is mine");
    let fourth = lock.lock_within(&me, Duration::from_secs(5)).await;
    let fourth = fourth.expect("the store is there").expect("it is mine");
    for guard in [&inner, &third, &fourth] {
        assert_eq!(guard.token(), outer.token());
    }
    line(&client, &name, 1, 0).await;
}

async fn others_wait(ctx: Ctx) {
    let (one, two, name, me) =
        (ctx.client().await, ctx.client().await, ctx.name("x"), Owner::new());
    let held = ReentrantMutex::new(&one, &name).lock(&me).await.expect("the store is there");
    let other = ReentrantMutex::new(&one, &name).try_lock(&Owner::new()).await;
    assert!(other.expect("the store is there").is_none(), "another owner got it");
    for client in [&one, &two] {
        let plain = Mutex::new(client, &name).try_lock().await.expect("the store is there");
        assert!(plain.is_none(), "a plain mutex of the name got it");
    }
    // An owner is known to its client only: to other clients it is another holder.
    let elsewhere = ReentrantMutex::new(&two, &name).try_lock(&me).await;
    assert!(elsewhere.expect("the store is there").is_none());
    held.unlock().await.expect("it was held");
}

async fn the_last_guard_releases(ctx: Ctx) {
    let (one, two, name, me) =
        (ctx.client().await, ctx.client().await, ctx.name("x"), Owner::new());
    let lock = ReentrantMutex::new(&one, &name);
    let plain = Mutex::new(&two, &name);
    let a = lock.lock(&me).await.expect("the store is there");
    let b = lock.lock(&me).await.expect("the store is there");
    let c = b.clone();
    for guard in [a, b] {
        guard.unlock().await.expect("it is held");
        assert!(plain.try_lock().await.expect("the store is there").is_none());
    }
    assert!(c.is_valid());
    c.unlock().await.expect("it was held");
    let guard = plain.try_lock().await.expect("the store is there").expect("it is free");
    guard.unlock().await.expect("it was held");
    drop(lock.lock(&me).await.expect("the owner can begin again"));
    drop(in_time("it is free", plain.lock()).await.expect("the store is there"));
}

async fn an_owner_that_lost_it_is_told(ctx: Ctx) {
    let (one, two, name, me) =
        (ctx.client().await, ctx.client().await, ctx.name("x"), Owner::new());
    let lock = ReentrantMutex::new(&one, &name).lease(ctx.lease);
    let outer = lock.lock(&me).await.expect("the store is there");
    two.force_unlock(&name, outer.ticket(), "a test").await.expect("works").expect("held");
    in_time("the loss", outer.lost()).await;
    let error = lock.lock(&me).await.expect_err("what it did so far may be undone");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let error = outer.unlock().await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    drop(in_time("again", lock.lock(&me)).await.expect("the owner can begin again"));
}

async fn two_tasks_of_one_owner_share_it(ctx: Ctx) {
    let (client, name, me) = (ctx.client().await, ctx.name("x"), Owner::new());
    let blocker = Mutex::new(&client, &name).lock().await.expect("the store is there");
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (lock, me) = (ReentrantMutex::new(&client, &name), me.clone());
            tokio::spawn(async move { lock.lock(&me).await.expect("the store is there") })
        })
        .collect();
    tokio::task::yield_now().await;
    blocker.unlock().await.expect("it was held");
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(in_time("every task", task).await.expect("no task fails"));
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    line(&client, &name, 1, 0).await;
}

async fn a_scope_carries_the_owner(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    assert_eq!(Owner::current().expect_err("no scope").kind(), ErrorKind::Invalid);
    let lock = ReentrantMutex::new(&client, &name);
    Owner::new()
        .scope(async {
            let me = Owner::current().expect("inside of a scope");
            let outer = lock.lock(&me).await.expect("the store is there");
            let nested = lock.lock(&Owner::current().expect("the same")).await.expect("works");
            assert_eq!(outer.token(), nested.token());
        })
        .await;
    line(&client, &name, 0, 0).await;
}
