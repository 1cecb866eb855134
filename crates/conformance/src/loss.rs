//! Losses: when and how a holder is notified, and what happens to its work (G4, G8).

use super::kit::{Recipe, Terms, in_time, line};
use super::{Ctx, Fault, Op, group};
use crate::clock;
use holdline::ErrorKind;
use holdline::Guard;
use holdline::Mutex;
use holdline::OnLoss;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

group! { "loss":
    protect_returns_what_the_work_does,
    protect_stops_the_work,
    protect_refuses_to_begin_after_a_loss,
    protect_does_not_trust_work_that_ended_too_late,
    protect_goes_on_if_asked_to,
    a_hint_is_looked_into_at_once,
    a_false_hint_changes_nothing,
    a_lost_guard_that_is_kept_keeps_no_task_out,
    once_lost_always_lost,
    unlock_says_how_it_went,
    an_unconfirmed_unlock_goes_on,
    a_silent_store_does_not_hold_unlock_up,
    settle_waits_for_what_was_dropped,
}

/// A lock whose store has just stopped answering.
async fn doomed(ctx: &Ctx, on_loss: OnLoss) -> Guard {
    let (chaos, client) = ctx.chaos().await;
    let Terms { lease, margin } = Terms::of(ctx.lease);
    let lock = Mutex::new(&client, ctx.name("x")).lease(lease).margin(margin).on_loss(on_loss);
    let guard = lock.lock().await.expect("the store is there");
    chaos.always(Op::Enter, Fault::FailBefore);
    guard
}

async fn protect_returns_what_the_work_does(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    for on_loss in [OnLoss::Stop, OnLoss::Continue] {
        let lock = Mutex::new(&client, &name).on_loss(on_loss);
        let guard = lock.lock().await.expect("the store is there");
        let work = async {
            tokio::task::yield_now().await;
            guard.token()
        };
        assert_eq!(guard.protect(work).await.expect("it is held"), guard.token());
        guard.unlock().await.expect("it was held");
    }
}

/// A flag that is set when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn protect_stops_the_work(ctx: Ctx) {
    let guard = doomed(&ctx, OnLoss::Stop).await;
    let stopped = Arc::new(AtomicBool::new(false));
    let bomb = OnDrop(Arc::clone(&stopped));
    let work = guard.protect(async move {
        pending::<()>().await;
        drop(bomb);
    });
    let error = in_time("the loss", work).await.expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.is_lost() && !error.retryable());
    assert!(stopped.load(Ordering::SeqCst), "the work was not dropped");
    assert!(!guard.is_valid());
}

async fn protect_refuses_to_begin_after_a_loss(ctx: Ctx) {
    let guard = doomed(&ctx, OnLoss::Stop).await;
    in_time("the loss", guard.lost()).await;
    let began = AtomicBool::new(false);
    let result = guard.protect(async { began.store(true, Ordering::SeqCst) }).await;
    assert_eq!(result.expect_err("it is lost").kind(), ErrorKind::Lost);
    assert!(!began.load(Ordering::SeqCst));
}

/// The work blocks its thread until after the deadline, and so ends in one poll.
async fn protect_does_not_trust_work_that_ended_too_late(ctx: Ctx) {
    let guard = doomed(&ctx, OnLoss::Stop).await;
    let blocked = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("the system gives a runtime").block_on(guard.protect(async {
            while guard.is_valid() {
                std::thread::yield_now();
            }
        }))
    });
    let result = in_time("the work", blocked).await.expect("no panic");
    assert_eq!(result.expect_err("others may have been inside").kind(), ErrorKind::Lost);
}

async fn protect_goes_on_if_asked_to(ctx: Ctx) {
    let guard = doomed(&ctx, OnLoss::Continue).await;
    let work = guard.protect(async {
        guard.lost().await;
        "done all the same"
    });
    assert_eq!(in_time("the work", work).await.expect("it goes on"), "done all the same");
    assert!(!guard.is_valid());
}

/// The lease is so long that no renewal is due during the case.
async fn a_hint_is_looked_into_at_once(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let lease = ctx.longer(600);
    let guard = Mutex::new(&one, &name).lease(lease).lock().await.expect("works");
    let line = holdline::Name::new(&name).expect("a good name");
    two.store().leave(&line, guard.ticket()).await.expect("the store is there");
    chaos.hint(guard.ticket());
    in_time("the loss", guard.lost()).await;
    let error = guard.unlock().await.expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

async fn a_false_hint_changes_nothing(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, one) = ctx.chaos().await;
    let held = Recipe::Mutex.lock(&one, &name).await;
    for _ in 0..5 {
        chaos.hint(held.guard().ticket());
        chaos.hint(holdline::store::TicketId(fastrand::u128(..)));
        tokio::task::yield_now().await;
    }
    assert!(held.guard().is_valid());
    line(&one, &name, 1, 0).await;
    held.unlock().await.expect("it was held");
    chaos.hint(holdline::store::TicketId(0));
}

/// Neither one that waits already, nor one that comes later (G4).
async fn a_lost_guard_that_is_kept_keeps_no_task_out(ctx: Ctx) {
    let (other, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, client) = ctx.chaos().await;
    let lock = Mutex::new(&client, &name).lease(ctx.longer(600));
    let lost = lock.lock().await.expect("works");
    let line = holdline::Name::new(&name).expect("a good name");
    let lose = async {
        other.store().leave(&line, lost.ticket()).await.expect("the store is there");
        chaos.hint(lost.ticket());
    };
    let (next, ()) = in_time("the waiting task", async { tokio::join!(lock.lock(), lose) }).await;
    let next = next.expect("works");
    assert!(next.is_valid() && !lost.is_valid());
    next.unlock().await.expect("it was held");
    let last = in_time("the next task", lock.lock()).await.expect("works");
    assert_eq!(lost.unlock().await.expect_err("it was lost").kind(), ErrorKind::Lost);
    last.unlock().await.expect("it was held");
}

/// The store answers again after the deadline: the loss stands.
async fn once_lost_always_lost(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, one) = ctx.chaos().await;
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
    chaos.always(Op::Enter, Fault::FailBefore);
    in_time("the loss", held.guard().lost()).await;
    chaos.heal();
    let end = clock::now().after(ctx.lease);
    while clock::now() < end {
        assert!(!held.guard().is_valid(), "it came back to life");
        clock::pause(ctx.lease / 20).await;
    }
    let next = Recipe::Mutex.lock(&ctx.client().await, &name).await;
    next.unlock().await.expect("it was held");
    assert_eq!(held.unlock().await.expect_err("it was lost").kind(), ErrorKind::Lost);
}

async fn unlock_says_how_it_went(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    Recipe::Mutex.lock(&one, &name).await.unlock().await.expect("it was held");
    let held = Recipe::Mutex.lock(&one, &name).await;
    let line = holdline::Name::new(&name).expect("a good name");
    two.store().leave(&line, held.guard().ticket()).await.expect("the store is there");
    let rival = Recipe::Mutex.lock(&two, &name).await;
    let error = held.unlock().await.expect_err("it was gone, and nobody had noticed");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains(&name), "it says which: {error}");
    rival.unlock().await.expect("it was held");
}

async fn an_unconfirmed_unlock_goes_on(ctx: Ctx) {
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::HangBefore, Fault::HangAfter] {
        let name = ctx.name("x");
        let (chaos, one) = ctx.chaos().await;
        let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
        chaos.calls(Op::Leave, 0, 1, fault);
        let error = in_time("the answer", held.unlock()).await.expect_err("it is not known");
        assert_eq!(error.kind(), ErrorKind::Unknown, "{fault:?}: {error}");
        line(&one, &name, 0, 0).await;
        let next = Recipe::Mutex.lock(&one, &name).await;
        next.unlock().await.expect("it was held");
    }
}

async fn a_silent_store_does_not_hold_unlock_up(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, one) = ctx.chaos().await;
    let held = Recipe::Mutex.lock_for(&one, &name, Terms::of(ctx.lease)).await;
    chaos.always(Op::Leave, Fault::HangBefore);
    chaos.always(Op::Enter, Fault::HangBefore);
    let error = in_time("the answer", held.unlock()).await.expect_err("it is not known");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    chaos.heal();
    let two = ctx.client().await;
    Recipe::Mutex.lock(&two, &name).await.unlock().await.expect("the lease ended it");
}

async fn settle_waits_for_what_was_dropped(ctx: Ctx) {
    let name = ctx.name("x");
    let (chaos, one) = ctx.chaos().await;
    chaos.always(Op::Leave, Fault::Delay(ctx.lease / 5));
    drop(Recipe::Mutex.lock(&one, &name).await);
    in_time("all that was dropped", one.settle()).await;
    let info = one.inspect(&name).await.expect("the store is there");
    assert_eq!(info.holders, [], "it is still there");
}
