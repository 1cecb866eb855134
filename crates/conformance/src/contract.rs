//! The contract of [`Store`](holdline::store::Store), by operation, on the raw store (G7, G8, G11,
//! G12, G13, G15, G16).

use super::kit::{Raw, eventually, in_time, poll_once, ticket};
use super::{Ctx, group};
use crate::clock;
use holdline::ErrorKind;
use holdline::store::{Enter, Seq, Standing, Ticket};
use std::sync::Arc;
use std::time::Duration;

group! { "contract":
    enter_is_idempotent,
    enter_is_idempotent_while_waiting needs Queues,
    leave_is_idempotent,
    keep_never_takes_a_place,
    a_try_leaves_no_trace,
    a_try_does_not_pass_waiters needs Queues Weights,
    bad_weights_are_refused needs Weights,
    another_capacity_is_refused_and_changes_nothing needs Weights,
    an_empty_line_takes_another_capacity needs Weights,
    a_departure_admits_the_next needs Queues,
    what_is_not_heard_of_lapses,
    a_waiter_follows_a_holder_that_lapsed needs Queues,
    a_dead_waiter_blocks_nobody needs Queues,
    a_place_lasts_no_longer_than_its_lease needs Queues,
    a_waiter_looks_again_within_a_second needs Queues,
    a_renewal_lengthens_and_never_shortens,
    a_lower_weight_admits_the_next needs Queues Weights,
    a_lower_weight_wakes_the_next needs Queues Weights Wakes,
    a_span_reserves_tokens needs Spans Fences,
    a_lower_bound_raises_tokens needs Spans Fences,
    a_notice_is_kept_until_it_is_watched_for needs Queues Wakes,
    a_notice_comes_while_it_is_watched_for needs Queues Wakes,
    a_notice_that_gives_a_place_is_true needs Queues Wakes,
    a_background_handle_is_the_same_store,
    dropped_calls_are_done_or_not_done,
    an_eviction_takes_one_place needs Queues,
    an_eviction_wakes_the_next needs Queues Wakes,
    an_eviction_by_a_wrong_id_does_nothing,
    an_eviction_fences_the_victim_and_nobody_else needs Queues Fences,
}

async fn enter_is_idempotent(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let mine = ticket(&ctx, 1, 1);
    let seq = raw.hold(&mine).await;
    for how in [Enter::Queue, Enter::Try, Enter::Keep(seq), Enter::Queue] {
        assert_eq!(raw.enter(&mine, how).await, Standing::Admitted(seq), "{how:?}");
    }
    assert_eq!(raw.seen().await, [(mine.id, true)]);
}

async fn enter_is_idempotent_while_waiting(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (first, second) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    raw.hold(&first).await;
    let seq = raw.queue(&second).await;
    for how in [Enter::Queue, Enter::Try, Enter::Keep(seq)] {
        let standing = raw.enter(&second, how).await;
        let same = matches!(standing, Standing::Waiting { seq: Some(now), .. } if now == seq);
        assert!(same, "{how:?} of place {seq:?} gave {standing:?}");
    }
    assert_eq!(raw.seen().await, [(first.id, true), (second.id, false)]);
}

async fn leave_is_idempotent(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (mine, never) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    assert!(!raw.leave(&mine).await, "there was nothing to leave");
    raw.hold(&mine).await;
    assert!(!raw.leave(&never).await, "it never came");
    assert!(raw.leave(&mine).await);
    assert!(!raw.leave(&mine).await, "it had left");
    assert_eq!(raw.seen().await, []);
}

async fn keep_never_takes_a_place(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (mine, other) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    assert_eq!(raw.keep(&mine, Seq(1)).await, Standing::Lost, "it never came");
    let seq = raw.hold(&mine).await;
    assert_eq!(raw.keep(&mine, Seq(seq.0 + 1)).await, Standing::Lost, "not its place");
    assert_eq!(raw.keep(&mine, seq).await, Standing::Admitted(seq), "still its place");
    assert_eq!(raw.keep(&other, seq).await, Standing::Lost, "not its ticket");
    raw.leave(&mine).await;
    assert_eq!(raw.keep(&mine, seq).await, Standing::Lost, "it had left");
    raw.hold(&other).await;
    assert_eq!(raw.keep(&mine, seq).await, Standing::Lost, "somebody else is there");
    assert_eq!(raw.seen().await, [(other.id, true)]);
}

async fn a_try_leaves_no_trace(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (first, second) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    raw.hold(&first).await;
    let standing = raw.enter(&second, Enter::Try).await;
    assert!(matches!(standing, Standing::Waiting { seq: None, .. }), "{standing:?}");
    assert_eq!(raw.seen().await, [(first.id, true)]);
    raw.leave(&first).await;
    let standing = raw.enter(&second, Enter::Try).await;
    assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
}

async fn a_try_does_not_pass_waiters(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (one, all, passer) = (ticket(&ctx, 1, 3), ticket(&ctx, 3, 3), ticket(&ctx, 1, 3));
    raw.hold(&one).await;
    raw.queue(&all).await;
    let standing = raw.enter(&passer, Enter::Try).await;
    assert!(matches!(standing, Standing::Waiting { .. }), "it fits, but {standing:?}");
    raw.queue(&passer).await;
}

async fn bad_weights_are_refused(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    for (weight, capacity) in [(0, 3), (4, 3), (1, 0)] {
        let result = raw.try_enter(&ticket(&ctx, weight, capacity), Enter::Queue).await;
        let error = result.expect_err("the weight makes no sense");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let mine = ticket(&ctx, 1, 3);
    let seq = raw.hold(&mine).await;
    let heavier = Ticket { weight: 2, ..mine };
    let error = raw.try_enter(&heavier, Enter::Keep(seq)).await.expect_err("no raising");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(raw.keep(&mine, seq).await, Standing::Admitted(seq));
    let view = raw.store.snapshot(&raw.line).await.expect("works");
    assert_eq!((view.places.len(), view.places[0].weight), (1, 1));
}

async fn another_capacity_is_refused_and_changes_nothing(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let mine = ticket(&ctx, 2, 3);
    raw.hold(&mine).await;
    for how in [Enter::Queue, Enter::Try] {
        let result = raw.try_enter(&ticket(&ctx, 1, 1), how).await;
        let error = result.expect_err("the line has capacity 3");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(!error.retryable());
    }
    assert_eq!(raw.store.snapshot(&raw.line).await.expect("works").capacity, 3);
    assert_eq!(raw.seen().await, [(mine.id, true)]);
    raw.hold(&ticket(&ctx, 1, 3)).await;
}

async fn an_empty_line_takes_another_capacity(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    for capacity in [3, 1, 1 << 30, 2] {
        let mine = ticket(&ctx, 1, capacity);
        raw.hold(&mine).await;
        assert_eq!(raw.store.snapshot(&raw.line).await.expect("works").capacity, capacity);
        assert!(raw.leave(&mine).await);
    }
    assert_eq!(raw.store.snapshot(&raw.line).await.expect("works").capacity, 0, "nobody is there");
}

async fn a_departure_admits_the_next(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let tickets: Vec<_> = (0..4).map(|_| ticket(&ctx, 1, 1)).collect();
    raw.hold(&tickets[0]).await;
    let mut places = Vec::new();
    for ticket in &tickets[1..] {
        places.push(raw.queue(ticket).await);
    }
    assert!(places.is_sorted(), "places rise along the line: {places:?}");
    assert!(raw.leave(&tickets[2]).await, "one from the middle goes");
    assert!(raw.leave(&tickets[0]).await);
    assert_eq!(raw.keep(&tickets[1], places[0]).await, Standing::Admitted(places[0]));
    assert_eq!(raw.seen().await, [(tickets[1].id, true), (tickets[3].id, false)]);
    assert!(raw.leave(&tickets[1]).await);
    assert_eq!(raw.keep(&tickets[3], places[2]).await, Standing::Admitted(places[2]));
}

async fn what_is_not_heard_of_lapses(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let mine = Ticket { lease: ctx.lease, ..ticket(&ctx, 1, 1) };
    let seq = raw.hold(&mine).await;
    let listed = || async { raw.store.list(raw.line.as_str()).await.expect("works") };
    assert_eq!(listed().await, std::slice::from_ref(&raw.line));
    // Before any other operation could have removed the place.
    eventually("a list without the place", || async { listed().await.is_empty() }).await;
    eventually("the place lapses", || async { raw.seen().await.is_empty() }).await;
    assert_eq!(raw.keep(&mine, seq).await, Standing::Lost);
    assert!(!raw.leave(&mine).await);
    assert_eq!(listed().await, [], "nobody stands there");
    raw.hold(&ticket(&ctx, 1, 1)).await;
}

async fn a_waiter_follows_a_holder_that_lapsed(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let dead = Ticket { lease: ctx.lease, ..ticket(&ctx, 1, 1) };
    let next = ticket(&ctx, 1, 1);
    raw.hold(&dead).await;
    let seq = raw.queue(&next).await;
    let Standing::Waiting { again, .. } = raw.keep(&next, seq).await else {
        panic!("the lease is not over yet");
    };
    assert!(again <= ctx.lease * 2, "the first waiter is to look when the lease ends: {again:?}");
    let admitted = || async { raw.keep(&next, seq).await == Standing::Admitted(seq) };
    eventually("the waiter is admitted", admitted).await;
}

async fn a_dead_waiter_blocks_nobody(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let holder = ticket(&ctx, 1, 1);
    let dead = Ticket { wait_lease: ctx.lease, ..ticket(&ctx, 1, 1) };
    let live = ticket(&ctx, 1, 1);
    raw.hold(&holder).await;
    let dead_seq = raw.queue(&dead).await;
    let seq = raw.queue(&live).await;
    let rest = [(holder.id, true), (live.id, false)];
    eventually("the dead waiter lapses", || async { raw.seen().await == rest }).await;
    assert_eq!(raw.keep(&dead, dead_seq).await, Standing::Lost);
    assert!(raw.leave(&holder).await);
    assert_eq!(raw.keep(&live, seq).await, Standing::Admitted(seq));
}

/// A crashed holder blocks others for its lease (G11), and a dead waiter for its wait lease (G12).
/// Nor is a lease shorter than was asked for.
async fn a_place_lasts_no_longer_than_its_lease(ctx: Ctx) {
    /// What a store may round, and other clocks may differ.
    const ROUNDING: Duration = Duration::from_millis(500);
    let raw = Raw::new(&ctx).await;
    let (holder, waiter) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    let waiter = Ticket { wait_lease: Duration::from_secs(3), ..waiter };
    let mut start = clock::now();
    let seqs = [raw.hold(&holder).await, raw.queue(&waiter).await];
    let patient = Ticket { wait_lease: waiter.wait_lease * 2, ..waiter };
    for waiter in [waiter, patient] {
        if waiter == patient {
            start = clock::now();
            raw.keep(&holder, seqs[0]).await;
            raw.keep(&patient, seqs[1]).await;
        }
        let leases = [holder.lease, waiter.wait_lease];
        let view = raw.store.snapshot(&raw.line).await.expect("works");
        let rests: Vec<_> = view.places.iter().map(|place| place.expires_in).collect();
        assert!(rests.iter().zip(leases).all(|(rest, lease)| *rest <= lease), "{rests:?}");
        let since = start.until(clock::now()) + ROUNDING;
        let whole = rests.iter().zip(leases).all(|(rest, lease)| *rest + since >= lease);
        assert!(whole && rests.len() == 2, "{rests:?} are left of {leases:?} after {since:?}");
    }
    // An admitted waiter has the lease of a holder from its next request on.
    raw.leave(&holder).await;
    start = clock::now();
    assert_eq!(raw.keep(&patient, seqs[1]).await, Standing::Admitted(seqs[1]));
    let rest = raw.store.snapshot(&raw.line).await.expect("works").places[0].expires_in;
    let since = start.until(clock::now()) + ROUNDING;
    assert!(rest + since >= patient.lease, "{rest:?} are left after {since:?}");
}

/// With the wait lease that the library asks for, so a lost notice costs no more (G13).
async fn a_waiter_looks_again_within_a_second(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let waiter = Ticket { wait_lease: Duration::from_secs(3), ..ticket(&ctx, 1, 1) };
    raw.hold(&ticket(&ctx, 1, 1)).await;
    let seq = raw.queue(&waiter).await;
    for how in [Enter::Queue, Enter::Keep(seq)] {
        let Standing::Waiting { again, .. } = raw.enter(&waiter, how).await else {
            panic!("it is held");
        };
        assert!(again <= Duration::from_secs(1), "{how:?}: {again:?}");
    }
}

async fn a_renewal_lengthens_and_never_shortens(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let short = Ticket { lease: ctx.lease, ..ticket(&ctx, 1, 1) };
    let long = Ticket { lease: ctx.longer(10), ..short };
    let left =
        || async { raw.store.snapshot(&raw.line).await.expect("works").places[0].expires_in };
    let seq = raw.hold(&short).await;
    assert!(left().await <= ctx.lease * 2, "stores may round up, but not so much");
    assert_eq!(raw.keep(&long, seq).await, Standing::Admitted(seq));
    assert!(left().await > long.lease / 2);
    assert_eq!(raw.keep(&short, seq).await, Standing::Admitted(seq));
    assert_eq!(raw.enter(&short, Enter::Queue).await, Standing::Admitted(seq));
    assert!(left().await > long.lease / 2, "a late, shorter renewal undid a longer one");
    let renewed = raw.store.enter(&raw.line, &short, &Arc::from("new"), Enter::Keep(seq)).await;
    assert_eq!(renewed.expect("works"), Standing::Admitted(seq));
    assert!(left().await > long.lease / 2, "one that changes the note did");
}

async fn a_lower_weight_admits_the_next(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (all, one, rest) = (ticket(&ctx, 5, 5), ticket(&ctx, 1, 5), ticket(&ctx, 4, 5));
    let all_seq = raw.hold(&all).await;
    let one_seq = raw.queue(&one).await;
    raw.queue(&rest).await;
    let weights = || async {
        let view = raw.store.snapshot(&raw.line).await.expect("works");
        view.places.iter().map(|place| place.weight).collect::<Vec<_>>()
    };
    assert_eq!(weights().await, [5, 1, 4]);
    let lighter = Ticket { weight: 2, ..all };
    assert_eq!(raw.keep(&lighter, all_seq).await, Standing::Admitted(all_seq));
    assert_eq!(weights().await, [2, 1, 4]);
    assert_eq!(raw.keep(&one, one_seq).await, Standing::Admitted(one_seq));
    assert_eq!(raw.seen().await, [(all.id, true), (one.id, true), (rest.id, false)]);
    raw.keep(&Ticket { weight: 1, ..all }, all_seq).await;
    raw.leave(&one).await;
    assert_eq!(raw.seen().await, [(all.id, true), (rest.id, true)]);
}

async fn a_lower_weight_wakes_the_next(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (all, one) = (ticket(&ctx, 5, 5), ticket(&ctx, 1, 5));
    let all_seq = raw.hold(&all).await;
    let one_seq = raw.queue(&one).await;
    raw.keep(&Ticket { weight: 4, ..all }, all_seq).await;
    in_time("the notice", raw.store.watch(&raw.line, one.id)).await.expect("works");
    assert_eq!(raw.keep(&one, one_seq).await, Standing::Admitted(one_seq));
}

async fn a_span_reserves_tokens(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let wide = Ticket { token_count: 1_000_000_000, ..ticket(&ctx, 1, 1) };
    let next = ticket(&ctx, 1, 1);
    let seq = raw.hold(&wide).await;
    raw.leave(&wide).await;
    let after = raw.hold(&next).await;
    assert!(after.0 >= seq.0 + 1_000_000_000, "{after:?} is inside of the range of {seq:?}");
}

/// The bound of a ticket that enters, and of one that has a place, which keeps its token.
async fn a_lower_bound_raises_tokens(ctx: Ctx) {
    const FAR: u64 = 1_000_000_000;
    let raw = Raw::new(&ctx).await;
    let first = ticket(&ctx, 1, 1);
    let seq = raw.hold(&first).await;
    let bound = Ticket { min_token: seq.0 + FAR, ..first };
    assert_eq!(raw.keep(&bound, seq).await, Standing::Admitted(seq));
    raw.leave(&first).await;
    let next = ticket(&ctx, 1, 1);
    let after = raw.hold(&next).await;
    assert!(after.0 > bound.min_token, "{after:?} is not above {}", bound.min_token);
    raw.leave(&next).await;
    let bound = Ticket { min_token: after.0 + FAR, ..ticket(&ctx, 1, 1) };
    let last = raw.hold(&bound).await;
    assert!(last.0 >= bound.min_token, "{last:?} is below {}", bound.min_token);
}

async fn a_notice_is_kept_until_it_is_watched_for(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (holder, next) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    raw.hold(&holder).await;
    raw.queue(&next).await;
    raw.leave(&holder).await;
    in_time("the notice", raw.store.watch(&raw.line, next.id)).await.expect("works");
}

async fn a_notice_comes_while_it_is_watched_for(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (holder, next) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    raw.hold(&holder).await;
    let seq = raw.queue(&next).await;
    let watch = {
        let raw = raw.clone();
        tokio::spawn(async move {
            while raw.keep(&next, seq).await != Standing::Admitted(seq) {
                raw.store.watch(&raw.line, next.id).await.expect("works");
            }
        })
    };
    let far = Raw { store: Arc::clone(ctx.client().await.store()), ..raw.clone() };
    tokio::task::yield_now().await;
    far.leave(&holder).await;
    in_time("the notice", watch).await.expect("the watcher is admitted");
}

/// The waiter need not ask after such a notice: it takes the lock (G1).
async fn a_notice_that_gives_a_place_is_true(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let [holder, next, last] = [0; 3].map(|_| ticket(&ctx, 1, 1));
    raw.hold(&holder).await;
    let (next_seq, last_seq) = (raw.queue(&next).await, raw.queue(&last).await);
    let watch = async |who: &Ticket| raw.store.watch(&raw.line, who.id).await.expect("works");
    raw.leave(&holder).await;
    let given = in_time("the notice", watch(&next)).await;
    assert!(given.is_none_or(|seq| seq == next_seq), "{given:?} is given instead of {next_seq:?}");
    assert_eq!(raw.keep(&next, next_seq).await, Standing::Admitted(next_seq));
    // A notice may come too early, but then it gives no place.
    let early = clock::within(clock::now().after(ctx.brief()), watch(&last)).await;
    assert_eq!(early.flatten(), None, "a notice gave a place to a waiter that was not admitted");
    raw.leave(&next).await;
    let given = in_time("the notice", watch(&last)).await;
    assert!(given.is_none_or(|seq| seq == last_seq), "{given:?} is given instead of {last_seq:?}");
    assert_eq!(raw.keep(&last, last_seq).await, Standing::Admitted(last_seq));
}

async fn a_background_handle_is_the_same_store(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let background = Raw { store: raw.store.background_handle(), line: raw.line.clone() };
    let mine = ticket(&ctx, 1, 1);
    let seq = raw.hold(&mine).await;
    assert_eq!(background.keep(&mine, seq).await, Standing::Admitted(seq));
    assert_eq!(background.store.capabilities(), raw.store.capabilities());
    assert_eq!(background.store.address(), raw.store.address());
    assert!(background.leave(&mine).await);
    assert_eq!(raw.keep(&mine, seq).await, Standing::Lost);
}

async fn dropped_calls_are_done_or_not_done(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let note: Arc<str> = "note".into();
    for polls in 0..20 {
        let mine = ticket(&ctx, 1, 1);
        let mut call = raw.store.enter(&raw.line, &mine, &note, Enter::Queue);
        for _ in 0..polls {
            if poll_once(&mut call).await {
                call = Box::pin(std::future::pending());
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        // A dropped request may still be in transit; a retry finds out.
        let seq = raw.hold(&mine).await;
        assert_eq!(raw.keep(&mine, seq).await, Standing::Admitted(seq));
        let mut call = raw.store.leave(&raw.line, mine.id);
        poll_once(&mut call).await;
        drop(call);
        raw.leave(&mine).await;
        assert_eq!(raw.seen().await, []);
    }
}

async fn an_eviction_takes_one_place(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let tickets: Vec<_> = (0..3).map(|_| ticket(&ctx, 1, 1)).collect();
    let first = raw.hold(&tickets[0]).await;
    let second = raw.queue(&tickets[1]).await;
    let third = raw.queue(&tickets[2]).await;
    let evict =
        async |which: &Ticket| raw.store.evict(&raw.line, which.id, "a test").await.expect("works");
    assert!(evict(&tickets[1]).await.is_some(), "waiters can be removed, too");
    assert_eq!(raw.keep(&tickets[1], second).await, Standing::Lost);
    assert_eq!(raw.keep(&tickets[0], first).await, Standing::Admitted(first));
    assert!(evict(&tickets[0]).await.is_some());
    assert_eq!(raw.keep(&tickets[0], first).await, Standing::Lost);
    assert_eq!(raw.keep(&tickets[2], third).await, Standing::Admitted(third));
    assert!(!raw.leave(&tickets[0]).await);
}

async fn an_eviction_wakes_the_next(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (holder, next) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    raw.hold(&holder).await;
    let seq = raw.queue(&next).await;
    let token = raw.store.evict(&raw.line, holder.id, "a test").await.expect("works");
    assert!(token.is_some(), "it was there");
    in_time("the notice", raw.store.watch(&raw.line, next.id)).await.expect("works");
    assert_eq!(raw.keep(&next, seq).await, Standing::Admitted(seq));
}

async fn an_eviction_by_a_wrong_id_does_nothing(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (mine, other) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    assert_eq!(raw.store.evict(&raw.line, other.id, "a test").await.expect("works"), None);
    let seq = raw.hold(&mine).await;
    assert_eq!(raw.store.evict(&raw.line, other.id, "a test").await.expect("works"), None);
    assert_eq!(raw.keep(&mine, seq).await, Standing::Admitted(seq));
}

async fn an_eviction_fences_the_victim_and_nobody_else(ctx: Ctx) {
    let raw = Raw::new(&ctx).await;
    let (victim, next, last) = (ticket(&ctx, 1, 1), ticket(&ctx, 1, 1), ticket(&ctx, 1, 1));
    let token = raw.hold(&victim).await;
    let waiting = raw.queue(&next).await;
    let fence = raw.store.evict(&raw.line, victim.id, "a test").await.expect("works");
    let fence = fence.expect("it was there");
    assert!(token < fence, "{fence:?} does not fence {token:?}");
    assert!(fence <= waiting, "{fence:?} would fence the next holder, who has {waiting:?}");
    let fence = raw.store.evict(&raw.line, next.id, "a test").await.expect("works");
    let fence = fence.expect("it was there");
    assert!(waiting < fence, "{fence:?} does not fence {waiting:?}");
    let after = raw.hold(&last).await;
    assert!(fence <= after, "{fence:?} would fence the next holder, who has {after:?}");
}
