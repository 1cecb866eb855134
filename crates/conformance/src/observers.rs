//! Observers that are notified of changes: none of them could see a change here by polling in time.

use super::kit::{in_time, line};
use super::{Ctx, Op, group};
use holdline::store::Lines;
use holdline::{Election, Group, Mutex};
use std::time::Duration;

group! { "observers":
    a_leader_is_seen_without_polling needs Observers,
    locks_with_a_prefix_are_seen_without_polling needs Observers,
    members_are_seen_without_polling needs Observers Weights Fences,
    a_dropped_wait_loses_no_change needs Observers,
}

/// The poll interval: longer than any case may take.
const NEVER: Duration = Duration::from_secs(3600);

async fn a_leader_is_seen_without_polling(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    let mut observer = Election::new(&two, &name).observe().every(NEVER);
    let mut next = async || {
        let seen = in_time("a change", observer.next()).await.expect("the store is there");
        seen.map(|leader| leader.value)
    };
    assert_eq!(next().await, None, "at first it says how things are");
    assert_eq!(chaos.count(Op::Snapshot), 1, "one look is enough for that");
    let election = Election::new(&one, &name);
    let leader = election.campaign("a").await.expect("the store is there");
    assert_eq!(next().await.as_deref(), Some("a"));
    leader.proclaim("b").await.expect("it leads");
    assert_eq!(next().await.as_deref(), Some("b"));
    leader.resign().await.expect("it led");
    assert_eq!(next().await, None);
    let leader = election.campaign("c").await.expect("the store is there");
    assert_eq!(next().await.as_deref(), Some("c"));
    let broken = one.force_unlock(&name, leader.ticket(), "a test").await;
    assert!(broken.expect("the store is there").is_some());
    assert_eq!(next().await, None);
}

async fn locks_with_a_prefix_are_seen_without_polling(ctx: Ctx) {
    let (one, two, prefix) = (ctx.client().await, ctx.client().await, ctx.name("many/"));
    let mut changes = two.changes(Lines::Prefix(prefix.clone()));
    let mut until = async |count: usize| {
        in_time("the locks", async {
            while two.list(&prefix).await.expect("the store is there").len() != count {
                changes.next(NEVER).await;
            }
        })
        .await;
    };
    until(0).await;
    let mut guards = Vec::new();
    for at in 1..=3 {
        let name = format!("{prefix}{at}/lock");
        guards.push(Mutex::new(&one, &name).lock().await.expect("the store is there"));
        until(at).await;
    }
    for (at, guard) in guards.into_iter().enumerate() {
        guard.unlock().await.expect("it was held");
        until(2 - at).await;
    }
}

async fn members_are_seen_without_polling(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut observer = Group::new(&two, &name).observe().every(NEVER);
    let mut next = async || {
        let seen = in_time("a change", observer.next()).await.expect("the store is there");
        seen.addresses().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(next().await.is_empty());
    let member = Group::new(&one, &name).join("10.0.0.1:80").await.expect("the store is there");
    assert_eq!(next().await, ["10.0.0.1:80"]);
    member.leave().await.expect("it was there");
    assert!(next().await.is_empty());
}

async fn a_dropped_wait_loses_no_change(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut changes = two.changes(Lines::Named(holdline::Name::new(&name).expect("a good name")));
    // The first notice is consumed; from here on it listens.
    changes.next(NEVER).await;
    let guard = Mutex::new(&one, &name).lock().await.expect("the store is there");
    // None of these waits is long, and the change comes in one of them, or is kept for the next.
    let mut told = false;
    for _ in 0..20 {
        let limit = crate::clock::now().after(Duration::from_millis(1));
        told |= crate::clock::within(limit, changes.next(NEVER)).await.is_some();
    }
    if !told {
        in_time("the change", changes.next(NEVER)).await;
    }
    line(&two, &name, 1, 0).await;
    guard.unlock().await.expect("it was held");
}
