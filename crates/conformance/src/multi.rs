//! Several locks as one.

use super::kit::{in_time, line};
use super::{Ctx, Fault, Op, group};
use holdline::ErrorKind;
use holdline::{Multi, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

group! { "multi":
    all_or_none,
    each_is_the_mutex_of_its_name,
    no_circle_of_waiting,
    a_name_twice_counts_once,
    no_names_and_bad_names_are_refused,
    one_lost_is_all_lost,
    a_try_of_many_has_one_time_limit,
    an_error_half_way_leaves_nothing,
}

async fn all_or_none(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let names = [ctx.name("a"), ctx.name("b"), ctx.name("c")];
    let held = Mutex::new(&one, &names[2]).lock().await.expect("the store is there");
    let all = Multi::new(&two, &names);
    assert!(all.try_lock().await.expect("the store is there").is_none());
    let time = ctx.brief();
    assert!(all.lock_within(time).await.expect("the store is there").is_none());
    for name in &names[..2] {
        line(&one, name, 0, 0).await; // the locks acquired so far are released
    }
    held.unlock().await.expect("it was held");
    let guard = in_time("all", all.lock()).await.expect("the store is there");
    assert_eq!(guard.guards().len(), 3);
    assert!(guard.is_valid());
    guard.unlock().await.expect("all were held");
    for name in &names {
        line(&one, name, 0, 0).await;
    }
}

async fn each_is_the_mutex_of_its_name(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let names = [ctx.name("b"), ctx.name("a")];
    let guard = Multi::new(&one, &names).lock().await.expect("the store is there");
    let held: Vec<_> = guard.guards().iter().map(|guard| guard.name().to_string()).collect();
    assert_eq!(held, [ctx.name("a"), ctx.name("b")], "in the order of the names");
    for name in &names {
        for client in [&one, &two] {
            let got = Mutex::new(client, name).try_lock().await.expect("the store is there");
            assert!(got.is_none(), "{name} was not locked");
        }
    }
    assert_eq!(guard.protect(async { 7 }).await.expect("it is held"), 7);
    guard.unlock().await.expect("it was held");
}

async fn no_circle_of_waiting(ctx: Ctx) {
    let inside = [0; 3].map(|_| Arc::new(AtomicU32::new(0)));
    let names = [ctx.name("a"), ctx.name("b"), ctx.name("c")];
    let mut tasks = Vec::new();
    for turn in 0..6_usize {
        // Each locks two of the three, named in a different order.
        let pair = [turn % 3, (turn + 1 + turn / 3) % 3];
        let all = Multi::new(&ctx.client().await, pair.map(|at| names[at].clone()));
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..6 {
                let guard = all.lock().await.expect("the store is there");
                for at in pair {
                    assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                }
                tokio::task::yield_now().await;
                for at in pair {
                    inside[at].fetch_sub(1, Ordering::SeqCst);
                }
                guard.unlock().await.expect("it was held");
            }
        }));
    }
    for task in tasks {
        in_time("every task", task).await.expect("no task fails");
    }
}

async fn a_name_twice_counts_once(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let twice = Multi::new(&client, [&name, &name]);
    let guard = in_time("it", twice.lock()).await.expect("the store is there");
    assert_eq!(guard.guards().len(), 1);
    guard.unlock().await.expect("it was held");
}

async fn no_names_and_bad_names_are_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let none = Multi::new(&client, Vec::<String>::new());
    assert_eq!(none.lock().await.expect_err("no names").kind(), ErrorKind::Invalid);
    let bad = Multi::new(&client, [name.as_str(), ""]);
    assert_eq!(bad.lock().await.expect_err("a bad name").kind(), ErrorKind::Invalid);
    line(&client, &name, 0, 0).await;
}

async fn one_lost_is_all_lost(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    let names = [ctx.name("a"), ctx.name("b")];
    let guard = Multi::new(&one, &names).lease(ctx.lease).lock().await.expect("works");
    let victim = guard.guards()[1].ticket();
    let never = guard.protect(async {
        two.force_unlock(&names[1], victim, "a test").await.expect("works").expect("it was there");
        std::future::pending::<()>().await;
    });
    let error = in_time("the loss", never).await.expect_err("one is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains(&names[1]), "it says which: {error}");
    assert!(!guard.is_valid());
    in_time("the loss", guard.lost()).await;
    assert!(guard.guards()[0].is_valid(), "the other one is still held");
    assert_eq!(guard.unlock().await.expect_err("one was lost").kind(), ErrorKind::Lost);
    line(&two, &names[0], 0, 0).await;
}

/// Each answer comes in time, but all of them together do not.
async fn a_try_of_many_has_one_time_limit(ctx: Ctx) {
    let (chaos, client) = ctx.chaos().await;
    client.inspect(ctx.name("a")).await.expect("the store is there");
    let limit = Duration::from_millis(1800);
    chaos.always(Op::Enter, Fault::Delay(limit / 2));
    let names = ["a", "b", "c", "d", "e"].map(|name| ctx.name(name));
    let all = Multi::new(&client, &names).lease(Duration::from_secs(10));
    let error = in_time("the try", all.try_lock()).await.expect_err("the time is over");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(chaos.count(Op::Enter) < names.len(), "it has asked for all");
    chaos.heal();
    client.settle().await;
    for name in &names {
        line(&client, name, 0, 0).await;
    }
}

async fn an_error_half_way_leaves_nothing(ctx: Ctx) {
    let (two, names) = (ctx.client().await, [ctx.name("a"), ctx.name("b")]);
    let (chaos, one) = ctx.chaos().await;
    let one = one.outage(Duration::ZERO);
    chaos.calls(Op::Enter, 1, 20, Fault::FailAfter); // the second, and all its retries
    let error = in_time("the error", Multi::new(&one, &names).lock()).await.expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for name in &names {
        line(&two, name, 0, 0).await;
    }
}
