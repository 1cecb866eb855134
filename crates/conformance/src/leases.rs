//! Leases: renewal (G14), fixed leases, extension, limits (G16).

use super::kit::{How, Recipe, Terms, eventually, in_time, line};
use super::{Ctx, Fault, Op, group};
use crate::clock;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdline::ErrorKind;
use holdline::{Election, Mutex, RwLock};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

group! { "leases":
    renewal_survives_a_blocked_program,
    renewal_survives_an_unread_list,
    a_lock_outlives_the_runtime_it_was_taken_on,
    many_locks_are_renewed,
    one_failed_renewal_is_no_loss,
    a_fixed_lease_ends,
    a_fixed_lease_that_was_waited_for_is_whole needs Queues,
    a_hint_does_not_renew_a_fixed_lease,
    a_change_does_not_renew_a_fixed_lease needs Weights,
    extending_holds_without_renewal,
    extending_never_shortens,
    a_lost_lock_cannot_be_extended,
    an_extension_that_comes_too_late_is_none,
    a_silent_store_holds_no_change_up,
    leases_outside_the_limits_are_refused,
    margins_that_eat_the_lease_are_refused,
    the_deadline_is_before_the_stores,
}

/// The lock is kept even if the program's executor is blocked for longer than the lease.
async fn renewal_survives_a_blocked_program(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (own, locked) = (ctx.clone(), Arc::new(AtomicBool::new(false)));
    let has_locked = Arc::clone(&locked);
    let blocked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("the system gives a runtime").block_on(async {
            let client = own.client().await;
            let terms = Terms::kept(own.lease);
            let guard = Recipe::Mutex.lock_for(&client, &own.name("x"), terms).await;
            has_locked.store(true, Ordering::SeqCst);
            std::thread::sleep(terms.lease * 3 / 2); // blocks the executor
            assert!(guard.guard().is_valid(), "it was lost while the program was busy");
            guard.unlock().await.expect("it was held to the end");
        });
    });
    // (Not until the store has a holder: that may be a request whose reply came too late.)
    eventually("a lock", || async { locked.load(Ordering::SeqCst) || blocked.is_finished() }).await;
    while !blocked.is_finished() {
        if let Some(got) = Recipe::Mutex.try_lock(&two, &name).await {
            // The lease may have ended between the two calls; any other outcome is wrong.
            eventually("the blocked program ends", || async { blocked.is_finished() }).await;
            drop(got);
        }
        clock::pause(Duration::from_millis(20)).await;
    }
    assert!(blocked.join().is_ok(), "the lock was lost while the program was busy");
}

/// The lock is kept while the future of a long list is not polled.
async fn renewal_survives_an_unread_list(ctx: Ctx) {
    const NAMES: usize = 256;
    let (client, lease) = (ctx.client().await, ctx.longer(20));
    let name = |number: usize| ctx.name(&format!("{number:0>150}"));
    let locks = (0..NAMES).map(|number| Mutex::new(&client, name(number)).lease(lease));
    let taken = stream::iter(locks.map(|lock| async move { lock.lock().await }));
    let many: Vec<_> = taken.buffer_unordered(32).try_collect().await.expect("they are free");
    let terms = Terms::kept(ctx.lease);
    let held = Recipe::Mutex.lock_for(&client, &ctx.name("x"), terms).await;
    let prefix = ctx.name("");
    let mut list = Box::pin(client.list(&prefix));
    let _ = poll_fn(|context| Poll::Ready(list.as_mut().poll(context))).await;
    clock::pause(terms.lease * 3 / 2).await;
    assert!(held.guard().is_valid(), "it was lost while the list was not read");
    drop(list);
    let listed = || client.store().list(&prefix);
    let is_whole = || async { listed().await.is_ok_and(|names| names.len() == NAMES + 1) };
    eventually("a long list that is whole", is_whole).await;
    held.unlock().await.expect("it was held to the end");
    drop(many);
}

/// A client opened on a runtime that has ended works on another one, and so do its locks.
async fn a_lock_outlives_the_runtime_it_was_taken_on(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (own, terms) = (ctx.clone(), Terms::kept(ctx.lease));
    let taken = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("the system gives a runtime").block_on(async {
            let client = own.client().await;
            let guard = Recipe::Mutex.lock_for(&client, &own.name("x"), terms).await;
            (client, guard)
        })
    });
    let (client, guard) = taken.await.expect("no panic");
    clock::pause(terms.lease * 3 / 2).await;
    assert!(Recipe::Mutex.try_lock(&two, &name).await.is_none(), "it was not renewed");
    assert!(guard.guard().is_valid(), "it was lost with the runtime");
    guard.unlock().await.expect("it was held to the end");
    Recipe::Mutex.lock(&client, &name).await.unlock().await.expect("it was held");
}

async fn many_locks_are_renewed(ctx: Ctx) {
    let client = ctx.client().await;
    let mut locks = Vec::new();
    for turn in 0..20 {
        let name = ctx.name(&format!("lock {turn}"));
        locks.push(Recipe::Mutex.lock_for(&client, &name, Terms::kept(ctx.lease)).await);
    }
    clock::pause(ctx.lease * 3).await;
    for lock in locks {
        assert!(lock.guard().is_valid(), "it was lost: {:?}", lock.guard());
        lock.unlock().await.expect("it was held to the end");
    }
}

async fn one_failed_renewal_is_no_loss(ctx: Ctx) {
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::HangBefore, Fault::HangAfter] {
        let name = ctx.name("x");
        let (chaos, client) = ctx.chaos().await;
        let terms = Terms { lease: ctx.lease * 2, margin: ctx.lease / 10 };
        let held = Recipe::Mutex.lock_for(&client, &name, terms).await;
        chaos.calls(Op::Enter, 0, 1, fault);
        let calls = chaos.count(Op::Enter);
        // A lost lock is not renewed: then the count stays the same.
        let settled = || chaos.count(Op::Enter) >= calls + 4 || !held.guard().is_valid();
        eventually("further renewals", || async { settled() }).await;
        assert!(held.guard().is_valid(), "{fault:?} of one renewal lost the lock");
        held.unlock().await.expect("it was held");
    }
}

async fn a_fixed_lease_ends(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let start = clock::now();
    let guard = Mutex::new(&one, &name).fixed_lease(ctx.lease).lock().await.expect("works");
    assert!(guard.is_valid());
    let next = Recipe::Mutex.lock(&two, &name).await;
    assert!(!guard.is_valid(), "two hold it");
    assert!(start.until(clock::now()) >= ctx.lease, "it ended early");
    assert_eq!(guard.time_to_stop(), Duration::ZERO, "the rival came too early");
    in_time("the loss", guard.lost()).await;
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.unlock().await.expect_err("it ended").kind(), ErrorKind::Lost);
    next.unlock().await.expect("it was held");
}

/// A notice may grant the rest of a waiter's lease, if renewals extend it.
async fn a_fixed_lease_that_was_waited_for_is_whole(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let lease = ctx.lease * 4;
    let held = Recipe::Mutex.lock(&one, &name).await;
    let waits = Mutex::new(&two, &name).fixed_lease(lease);
    let waiter = tokio::spawn(async move { waits.lock().await });
    line(&one, &name, 1, 1).await;
    held.unlock().await.expect("it was held");
    let guard = in_time("its turn", waiter).await.expect("no panic").expect("works");
    let remaining = guard.remaining();
    assert!(remaining > lease * 8 / 10 && remaining <= lease, "{remaining:?} are left");
    guard.unlock().await.expect("it was held");
}

/// One request answers the hint. A store that does not answer it in time is asked again, which a
/// busy machine may do to some locks.
async fn a_hint_does_not_renew_a_fixed_lease(ctx: Ctx) {
    for turn in 0..5 {
        if requests_after_a_hint(&ctx, &format!("x{turn}")).await == 1 {
            return;
        }
    }
    panic!("it was renewed each time");
}

/// The number of requests about a fixed lease after a hint that it may be gone.
async fn requests_after_a_hint(ctx: &Ctx, name: &str) -> usize {
    let name = ctx.name(name);
    let (chaos, one) = ctx.chaos().await;
    let guard = Mutex::new(&one, &name).fixed_lease(ctx.lease * 2).lock().await.expect("works");
    let (calls, end) = (chaos.count(Op::Enter), clock::now().after(guard.remaining()));
    clock::pause(ctx.lease / 2).await;
    chaos.hint(guard.ticket());
    eventually("the hint is looked into", || async { chaos.count(Op::Enter) > calls }).await;
    clock::pause(ctx.lease / 10).await; // for the reply
    let over = end.until(clock::now().after(guard.remaining()));
    assert!(over < ctx.lease / 4, "it is to go on for {over:?} after its end");
    in_time("the loss", guard.lost()).await;
    let requests = chaos.count(Op::Enter) - calls;
    line(&one, &name, 0, 0).await;
    requests
}

async fn a_change_does_not_renew_a_fixed_lease(ctx: Ctx) {
    let client = ctx.client().await;
    let lease = ctx.lease * 4;
    let writer = RwLock::new(&client, ctx.name("x")).fixed_lease(lease).write().await;
    let writer = writer.expect("the store is there");
    let leader = Election::new(&client, ctx.name("y")).fixed_lease(lease).campaign("a").await;
    let leader = leader.expect("the store is there");
    let (writes, leads) = (writer.deadline(), leader.deadline());
    clock::pause(ctx.lease).await;
    let reader = writer.downgrade().await.map_err(|(_, error)| error).expect("it is held");
    leader.proclaim("b").await.expect("it leads");
    let slack = ctx.lease / 2;
    assert!(reader.deadline() < writes + slack, "the downgrade renewed the lease");
    assert!(leader.deadline() < leads + slack, "the proclamation renewed the lease");
    let left = line(&client, &ctx.name("y"), 1, 0).await.holders[0].expires_in;
    assert!(left + ctx.lease <= lease + slack, "the proclamation renewed the lease in the store");
}

async fn extending_holds_without_renewal(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let guard = Mutex::new(&one, &name).fixed_lease(ctx.lease).lock().await.expect("works");
    let by = ctx.lease * 3;
    let start = clock::now();
    guard.extend(by).await.expect("it is held");
    assert!(guard.remaining() + start.until(clock::now()) >= by, "it is not as long as asked for");
    chaos.always(Op::Enter, Fault::FailBefore);
    let next = Recipe::Mutex.lock(&two, &name).await;
    assert!(start.until(clock::now()) >= by, "somebody else came in before the time was over");
    assert!(!guard.is_valid(), "two hold it");
    next.unlock().await.expect("it was held");
}

async fn extending_never_shortens(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let long = ctx.longer(20);
    let guard = Mutex::new(&client, &name).lease(long).lock().await.expect("works");
    let before = guard.deadline();
    guard.extend(ctx.lease).await.expect("it is held");
    assert!(guard.deadline() + Duration::from_millis(50) > before, "it was shortened");
    let left = line(&client, &name, 1, 0).await.holders[0].expires_in;
    assert!(left > long / 2, "it was shortened in the store, to {left:?}");
    let error = guard.extend(Duration::MAX).await.expect_err("no store takes that");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(guard.is_valid());
    guard.unlock().await.expect("it was held");
}

async fn a_lost_lock_cannot_be_extended(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let guard = Mutex::new(&one, &name).lock().await.expect("the store is there");
    two.force_unlock(&name, guard.ticket(), "a test").await.expect("works").expect("held");
    let error = guard.extend(ctx.lease).await.expect_err("it was broken");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let error = guard.extend(ctx.lease).await.expect_err("it stays lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    line(&one, &name, 0, 0).await;
}

/// The store still has the lock when asked, but its holder has been notified of the loss.
async fn an_extension_that_comes_too_late_is_none(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let lease = ctx.lease * 2;
    let lock = Mutex::new(&one, &name).fixed_lease(lease).margin(ctx.lease);
    let guard = lock.lock().await.expect("the store is there");
    chaos.always(Op::Enter, Fault::Delay(guard.remaining() + ctx.lease / 4));
    let error = in_time("the answer", guard.extend(lease * 5)).await.expect_err("it is too late");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_valid(), "it came back to life");
    let start = clock::now();
    let next = Recipe::Mutex.lock(&two, &name).await;
    let took = start.until(clock::now());
    assert!(took < lease * 4, "what was extended in vain was kept for {took:?}");
    next.unlock().await.expect("it was held");
}

/// A change of a held lock ends with the lock, or before if the lease is long.
async fn a_silent_store_holds_no_change_up(ctx: Ctx) {
    let (chaos, client) = ctx.chaos().await;
    let Terms { lease, margin } = Terms::of(ctx.lease);
    // Fixed: a renewal in flight would put off the end after the call has read it.
    let lock = Mutex::new(&client, ctx.name("x")).fixed_lease(lease).margin(margin);
    let guard = lock.lock().await.expect("the store is there");
    let election = Election::new(&client, ctx.name("y")).lease(ctx.longer(20));
    let leader = election.campaign("old").await.expect("the store is there");
    chaos.always(Op::Enter, Fault::HangBefore);
    let extended = in_time("the end of the lock", guard.extend(ctx.lease)).await;
    let error = extended.expect_err("there is no answer");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let proclaimed = in_time("the end of the time", leader.proclaim("new")).await;
    let error = proclaimed.expect_err("there is no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(leader.is_valid() && client.unavailable_for().is_some());
}

async fn leases_outside_the_limits_are_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let (least, most) = (ctx.capabilities.lease_min, ctx.capabilities.lease_max);
    let tiny = Duration::from_nanos(1);
    for lease in [Duration::ZERO, least.saturating_sub(tiny), most + tiny, Duration::MAX] {
        let error = Mutex::new(&client, &name).lease(lease).lock().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{lease:?}: {error}");
    }
    for lease in [least, most] {
        // The shortest lease may be over before the reply arrives.
        let lock = Mutex::new(&client, &name).lease(lease);
        drop(in_time("the lock", lock.lock()).await.expect("within the limits"));
    }
    line(&client, &name, 0, 0).await;
}

async fn margins_that_eat_the_lease_are_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    for margin in [ctx.lease, ctx.lease * 2, Duration::MAX] {
        let terms = Terms { lease: ctx.lease, margin };
        let result = Recipe::Mutex.take(&client, &name, How::Try, terms).await;
        let error = result.err().expect("no time is left");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{margin:?}: {error}");
    }
    line(&client, &name, 0, 0).await;
}

/// The holder's deadline is before the end of the lease in the store, at least by the margin.
async fn the_deadline_is_before_the_stores(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let margin = ctx.lease;
    let lock = Mutex::new(&client, &name).lease(ctx.lease * 5).margin(margin);
    let guard = lock.lock().await.expect("the store is there");
    for _ in 0..20 {
        let (asked, remaining) = (Instant::now(), guard.remaining());
        let stored = line(&client, &name, 1, 0).await.holders[0].expires_in;
        // The request takes time, by which the store's figure is lower; a store may round, too.
        let shown = stored + asked.elapsed() + Duration::from_millis(500);
        assert!(remaining + margin < shown, "{remaining:?} here, {stored:?} in the store");
        clock::pause(ctx.lease / 20).await;
    }
    guard.unlock().await.expect("it was held");
}
