//! Observers that are notified of changes: none of them could see a change here by polling in time,
//! nor by the look that begins each wait.

use super::kit::{in_time, line};
use super::{Ctx, Op, group};
use crate::clock;
use holdline::store::Lines;
use holdline::{Election, Group, Mutex};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

group! { "observers":
    a_leader_is_seen_without_polling needs Observers,
    locks_with_a_prefix_are_seen_without_polling needs Observers,
    members_are_seen_without_polling needs Observers Weights Fences,
    a_dropped_wait_loses_no_change needs Observers,
}

/// The poll interval: longer than any case may take.
const NEVER: Duration = Duration::from_secs(3600);

/// The time after which an observer has done its looks, and waits: several times the shortest time
/// between two looks.
const SETTLED: Duration = Duration::from_millis(60);

/// Makes a change while an observer waits, and returns what it sees and what came of the change. A
/// change that comes before would be seen by a look, and prove nothing.
async fn seen_during<S, C>(
    seen: impl Future<Output = S>,
    change: impl Future<Output = C>,
) -> (S, C) {
    let mut seen = pin!(seen);
    let early = clock::within(clock::now().after(SETTLED), &mut seen).await;
    assert!(early.is_none(), "it saw a change before there was one");
    in_time("a change", async { tokio::join!(seen, change) }).await
}

async fn a_leader_is_seen_without_polling(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, two) = ctx.chaos().await;
    let mut observer = Election::new(&two, &name).observe().every(NEVER);
    let mut next = async || {
        let seen = observer.next().await.expect("the store is there");
        seen.map(|leader| leader.value)
    };
    assert_eq!(in_time("a look", next()).await, None, "at first it says how things are");
    assert_eq!(chaos.count(Op::Snapshot), 1, "one look is enough for that");
    let election = Election::new(&one, &name);
    let (seen, leader) = seen_during(next(), Box::pin(election.campaign("a"))).await;
    let leader = leader.expect("the store is there");
    assert_eq!(seen.as_deref(), Some("a"));
    let (seen, proclaimed) = seen_during(next(), leader.proclaim("b")).await;
    proclaimed.expect("it leads");
    assert_eq!(seen.as_deref(), Some("b"));
    let (seen, resigned) = seen_during(next(), leader.resign()).await;
    resigned.expect("it led");
    assert_eq!(seen, None);
    let (seen, leader) = seen_during(next(), Box::pin(election.campaign("c"))).await;
    let leader = leader.expect("the store is there");
    assert_eq!(seen.as_deref(), Some("c"));
    let breaks = one.force_unlock(&name, leader.ticket(), "a test");
    let (seen, broken) = seen_during(next(), breaks).await;
    assert!(broken.expect("the store is there").is_some());
    assert_eq!(seen, None);
}

async fn locks_with_a_prefix_are_seen_without_polling(ctx: Ctx) {
    let (one, two, prefix) = (ctx.client().await, ctx.client().await, ctx.name("many/"));
    let mut changes = two.changes(Lines::Prefix(prefix.clone()));
    let mut until = async |count: usize| {
        while two.list(&prefix).await.expect("the store is there").len() != count {
            changes.next(NEVER).await;
        }
    };
    in_time("no locks", until(0)).await;
    let mut guards = Vec::new();
    for at in 1..=3 {
        let lock = Mutex::new(&one, format!("{prefix}{at}/lock"));
        let ((), guard) = seen_during(until(at), lock.lock()).await;
        guards.push(guard.expect("the store is there"));
    }
    for (at, guard) in guards.into_iter().enumerate() {
        let ((), unlocked) = seen_during(until(2 - at), guard.unlock()).await;
        unlocked.expect("it was held");
    }
}

async fn members_are_seen_without_polling(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut observer = Group::new(&two, &name).observe().every(NEVER);
    let mut next = async || {
        let seen = observer.next().await.expect("the store is there");
        seen.addresses().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(in_time("a look", next()).await.is_empty());
    let group = Group::new(&one, &name);
    let (seen, member) = seen_during(next(), group.join("10.0.0.1:80")).await;
    assert_eq!(seen, ["10.0.0.1:80"]);
    let (seen, left) = seen_during(next(), member.expect("the store is there").leave()).await;
    left.expect("it was there");
    assert!(seen.is_empty());
}

async fn a_dropped_wait_loses_no_change(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut changes = two.changes(Lines::Named(holdline::Name::new(&name).expect("a good name")));
    // The first notice is consumed; from here on it listens.
    in_time("the first notice", changes.next(NEVER)).await;
    let guard = Mutex::new(&one, &name).lock().await.expect("the store is there");
    // None of these waits is long, and the change comes in one of them, or is kept for the next.
    let mut noticed = false;
    for _ in 0..20 {
        let limit = clock::now().after(Duration::from_millis(1));
        noticed |= clock::within(limit, changes.next(NEVER)).await.is_some();
    }
    if !noticed {
        in_time("the change", changes.next(NEVER)).await;
    }
    line(&two, &name, 1, 0).await;
    guard.unlock().await.expect("it was held");
}
