//! Cost: no operation grows with the number of waiters or holders of its line (G18).
//!
//! Times are compared with times of the same run, minimum with minimum: a busy machine slows all of
//! them, but a walk along the line still shows.

use super::kit::{Raw, in_time, ticket};
use super::{Ctx, group};
use crate::clock;
use futures_util::future::join_all;
use holdline::store::{Enter, Standing, Ticket};
use std::time::Duration;

group! { "cost":
    many_waiters_cost_nothing needs Queues,
    many_holders_cost_nothing needs Weights,
}

/// The length of the long line.
const MANY: usize = 1000;
/// The number of concurrent entries, so that no lease ends before the line is full.
const AT_ONCE: usize = 50;
/// The highest accepted ratio of a long line's time to a short one's; a walk along the line would
/// give 50.
const FACTOR: u32 = 8;

async fn many_waiters_cost_nothing(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    raw.hold(&ticket(&ctx, 1, 1)).await;
    compare(&ctx, &raw, 1).await;
}

async fn many_holders_cost_nothing(ctx: Ctx) {
    compare(&ctx, &Raw::new(&ctx).await, 1 << 20).await;
}

async fn compare(ctx: &Ctx, raw: &Raw, capacity: u32) {
    let mut standing = Vec::new();
    let short = in_time("a short line", fill(ctx, raw, capacity, 20, &mut standing)).await;
    let long = in_time("a long line", fill(ctx, raw, capacity, MANY, &mut standing)).await;
    for some in standing.chunks(AT_ONCE) {
        let left = join_all(some.iter().map(|ticket| raw.leave(ticket))).await;
        assert!(left.into_iter().all(|there| there));
    }
    // Below this time the machine is measured, not the store.
    let most = (short * FACTOR).max(Duration::from_micros(100));
    let most = most + ctx.subject.each_place() * MANY as u32;
    assert!(long < most, "one round took {short:?} on a short line, and {long:?} on a long one");
}

/// Fills the line, and measures rounds of entering, polling and leaving.
async fn fill(
    ctx: &Ctx,
    raw: &Raw,
    capacity: u32,
    length: usize,
    standing: &mut Vec<Ticket>,
) -> Duration {
    while standing.len() < length {
        let some = AT_ONCE.min(length - standing.len());
        let next: Vec<_> = (0..some).map(|_| ticket(ctx, 1, capacity)).collect();
        join_all(next.iter().map(|ticket| raw.enter(ticket, Enter::Queue))).await;
        standing.extend(next);
    }
    let mut fastest = Duration::MAX;
    for _ in 0..30 {
        let start = clock::now();
        let next = ticket(ctx, 1, capacity);
        let (Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) =
            raw.enter(&next, Enter::Queue).await
        else {
            panic!("it takes a place")
        };
        raw.keep(&next, seq).await;
        raw.leave(&next).await;
        fastest = fastest.min(start.until(clock::now()));
    }
    fastest
}
