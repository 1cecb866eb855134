//! A storm of cancelled acquisitions: the work in progress stays bounded, and nothing is left
//! behind (G6).

use super::kit::{Recipe, Terms, eventually, in_time};
use super::{Chaos, Ctx, Fault, Op, group};
use crate::clock;
use futures_util::{StreamExt, TryStreamExt};
use holdline::testing::{MOST_UNDONE, RELEASES_AT_ONCE, undone};
use holdline::{Client, ErrorKind, Mutex};
use holdline_kernel::Time;
use std::time::Duration;

group! { "storm":
    acquisitions_that_give_up_leave_nothing,
    dropped_acquisitions_leave_nothing,
    a_storm_over_a_slow_store_is_bounded,
    a_wait_for_room_ends_by_the_bound_of_outages,
}

const TASKS: usize = 64;
const NAMES: usize = 16;
/// The time after which an acquisition gives up.
const GIVE_UP: Duration = Duration::from_millis(1);
const TIME: Duration = Duration::from_millis(500);

async fn acquisitions_that_give_up_leave_nothing(ctx: Ctx) {
    storm(ctx, None, |lock| async move {
        // A busy store may return an error.
        let _ = lock.lock_within(GIVE_UP).await;
    })
    .await;
}

async fn dropped_acquisitions_leave_nothing(ctx: Ctx) {
    storm(ctx, None, dropped).await;
}

/// So slow that releases accumulate.
async fn a_storm_over_a_slow_store_is_bounded(ctx: Ctx) {
    storm(ctx, Some(Duration::from_millis(100)), dropped).await;
}

/// Too many places cannot be released, because the store is unavailable: an acquisition without a
/// limit ends by the client's outage limit, and not when the leases are over.
async fn a_wait_for_room_ends_by_the_bound_of_outages(ctx: Ctx) {
    let (chaos, client) = ctx.chaos().await;
    let client = client.outage(Duration::from_millis(500));
    let name = |number: usize| ctx.name(&number.to_string());
    // Longer than the case may take.
    let lease = ctx.capabilities.lease_max.min(Duration::from_secs(120));
    let locks = (0..MOST_UNDONE).map(|number| Mutex::new(&client, name(number)).lease(lease));
    let taken = futures_util::stream::iter(locks.map(|lock| async move { lock.lock().await }));
    let held: Vec<_> = taken.buffer_unordered(64).try_collect().await.expect("they are free");
    chaos.always(Op::Leave, Fault::FailBefore);
    chaos.always(Op::Enter, Fault::FailBefore);
    drop(held);
    eventually("they are to be given up", || async { undone(&client) >= MOST_UNDONE }).await;
    let last = Mutex::new(&client, name(MOST_UNDONE));
    let error = in_time("the error", last.lock()).await.expect_err("the store is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(undone(&client) >= MOST_UNDONE, "there was room");
    chaos.heal();
    in_time("all that was given up", client.settle()).await;
}

async fn dropped(lock: Mutex) {
    // A guard, if it was acquired, is dropped as well.
    let _ = clock::within(clock::now().after(GIVE_UP), lock.lock()).await;
}

async fn storm<F: Future<Output = ()> + Send + 'static>(
    ctx: Ctx,
    slow: Option<Duration>,
    acquire: impl Fn(Mutex) -> F + Copy + Send + 'static,
) {
    let (chaos, client) = ctx.chaos().await;
    client.inspect(ctx.name("")).await.expect("the store is there");
    // Half of the names are held, so that the cancelled acquisitions were waiters.
    let other = ctx.client().await;
    let mut held = Vec::new();
    for number in 0..NAMES / 2 {
        held.push(Recipe::Mutex.lock(&other, &ctx.name(&number.to_string())).await);
    }
    if let Some(slow) = slow {
        chaos.always(Op::Leave, Fault::Delay(slow));
    }
    let until = clock::now().after(TIME);
    let one = || acquire_until_over(ctx.clone(), client.clone(), chaos.clone(), until, acquire);
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(one())).collect();
    for task in tasks {
        in_time("the tasks", task).await.expect("no task fails");
    }
    bounded(&client, &chaos);
    chaos.heal();
    for held in held {
        held.unlock().await.expect("it was held");
    }
    in_time("all that was given up", client.settle()).await;
    let left = other.list(&ctx.name("")).await.expect("the store is there");
    assert_eq!(left, [], "places are left after it was said that none are");
    for number in 0..NAMES {
        let name = ctx.name(&number.to_string());
        let info = other.inspect(&name).await.expect("the store is there");
        assert_eq!((info.holders, info.waiters), (vec![], vec![]), "places are left");
        let held = Recipe::Mutex.lock(&other, &name).await;
        held.unlock().await.expect("it was held");
    }
}

/// Acquires until then, and until something was given up: what other cases give up at the same time
/// comes first.
async fn acquire_until_over<F: Future<Output = ()>>(
    ctx: Ctx,
    client: Client,
    chaos: Chaos,
    until: Time,
    acquire: impl Fn(Mutex) -> F,
) {
    // So long that an unreleased place would be found afterwards, and that no release is left to
    // the lease because it was slow.
    let Terms { lease, margin } = Terms::LONG;
    while clock::now() < until || chaos.most_at_once(Op::Leave) == 0 {
        let name = ctx.name(&fastrand::usize(..NAMES).to_string());
        acquire(Mutex::new(&client, name).lease(lease).margin(margin)).await;
    }
}

/// Checks the bounds of the library's own work in progress.
fn bounded(client: &Client, chaos: &Chaos) {
    let leaves = chaos.most_at_once(Op::Leave);
    assert!(leaves > 0, "nothing was given up: this was no storm");
    assert!(leaves <= RELEASES_AT_ONCE, "{leaves} departures at once");
    let enters = chaos.most_at_once(Op::Enter);
    assert!(enters <= NAMES, "{enters} entries at once, by {NAMES} names");
    let undone = undone(client);
    assert!(undone <= MOST_UNDONE + TASKS, "{undone} places wait to be given up");
}
