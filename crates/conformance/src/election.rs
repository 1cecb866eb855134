//! Leader election.

use super::kit::{Terms, eventually, in_time, line};
use super::{Ctx, Fault, Op, group};
use holdline::Election;
use holdline::ErrorKind;
use std::time::Duration;

group! { "election":
    the_leader_is_seen_with_its_value,
    a_proclamation_is_seen_and_outlives_renewals,
    a_late_renewal_undoes_no_proclamation,
    a_proclamation_too_long_is_refused,
    observers_follow_the_changes,
    a_cut_off_leader_is_followed_by_a_candidate,
    a_proclamation_of_a_lost_leader_fails,
}

async fn the_leader_is_seen_with_its_value(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let (here, there) = (Election::new(&one, &name), Election::new(&two, &name));
    assert_eq!(there.leader().await.expect("the store is there"), None);
    let value = "10.0.0.1:80 \"é\" {}";
    let leader = here.campaign(value).await.expect("the store is there");
    let seen = there.leader().await.expect("the store is there").expect("there is one");
    assert_eq!((seen.value.as_str(), seen.token), (value, leader.token()));
    assert_eq!(seen.participant.note.pid, std::process::id());
    let none = there.try_campaign("early").await;
    assert!(none.expect("the store is there").is_none());
    line(&two, &name, 1, 0).await; // a try takes no place
    let none = there.campaign_within("late", ctx.brief()).await;
    assert!(none.expect("the store is there").is_none());
    line(&two, &name, 1, 0).await; // the candidature is withdrawn in the background
    leader.resign().await.expect("it led");
    assert_eq!(there.leader().await.expect("the store is there"), None);
}

async fn a_proclamation_is_seen_and_outlives_renewals(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let election = Election::new(&one, &name).lease(ctx.lease * 2).label("mine");
    let leader = election.campaign("first").await.expect("the store is there");
    leader.proclaim("second").await.expect("it leads");
    let value = || async {
        let seen = Election::new(&two, &name).leader().await.expect("the store is there");
        let seen = seen.expect("there is one");
        assert_eq!(seen.participant.note.label.as_deref(), Some("mine"));
        seen.value
    };
    assert_eq!(value().await, "second");
    crate::clock::pause(ctx.lease * 3).await; // longer than its lease without renewals
    assert_eq!(value().await, "second");
    leader.resign().await.expect("it led");
}

/// The renewal was sent before, with the old value, and the store handles it afterwards.
async fn a_late_renewal_undoes_no_proclamation(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let lease = ctx.longer(12);
    chaos.calls(Op::Enter, 1, 1, Fault::Delay(lease / 20));
    let election = Election::new(&one, &name).lease(lease);
    let leader = election.campaign("old").await.expect("the store is there");
    eventually("a renewal is under way", || async { chaos.count(Op::Enter) == 2 }).await;
    leader.proclaim("new").await.expect("it leads");
    let sent = crate::clock::now();
    eventually("the next renewal", || async { chaos.count(Op::Enter) > 3 }).await;
    let soon = sent.until(crate::clock::now());
    assert!(soon < lease / 8, "it came after {soon:?}");
    let value = || async {
        let seen = Election::new(&two, &name).leader().await.expect("the store is there");
        seen.expect("there is one").value
    };
    eventually("the new value", || async { value().await == "new" }).await;
    leader.resign().await.expect("it led");
}

async fn a_proclamation_too_long_is_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let election = Election::new(&client, &name);
    let long = "x".repeat(5000);
    let error = election.campaign(long.as_str()).await.expect_err("it is too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let leader = election.campaign("short").await.expect("the store is there");
    let error = leader.proclaim(long.as_str()).await.expect_err("it is too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let seen = election.leader().await.expect("the store is there").expect("there is one");
    assert_eq!(seen.value, "short");
    leader.resign().await.expect("it led");
}

async fn observers_follow_the_changes(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let mut observer = Election::new(&two, &name).observe().every(Duration::from_millis(10));
    let mut next = async || {
        let seen = in_time("a change", observer.next()).await.expect("the store is there");
        seen.map(|leader| leader.value)
    };
    assert_eq!(next().await, None, "at first it says how things are");
    let leader = Election::new(&one, &name).campaign("a").await.expect("the store is there");
    assert_eq!(next().await.as_deref(), Some("a"));
    leader.proclaim("b").await.expect("it leads");
    assert_eq!(next().await.as_deref(), Some("b"));
    leader.resign().await.expect("it led");
    assert_eq!(next().await, None);
}

async fn a_cut_off_leader_is_followed_by_a_candidate(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name("x"));
    let (chaos, one) = ctx.chaos().await;
    let Terms { lease, margin } = Terms::of(ctx.lease);
    let old = Election::new(&one, &name).lease(lease).margin(margin);
    let old = old.campaign("old").await.expect("the store is there");
    let candidate = {
        let election = Election::new(&two, &name);
        tokio::spawn(async move { election.campaign("new").await.expect("the store is there") })
    };
    if ctx.capabilities.fair_queue {
        line(&two, &name, 1, 1).await;
    }
    chaos.always(Op::Enter, Fault::HangBefore);
    let new = in_time("the candidate", candidate).await.expect("no task fails");
    assert!(!old.is_valid(), "two lead");
    assert!(!ctx.capabilities.fencing_tokens || old.token() < new.token());
    let seen = Election::new(&two, &name).leader().await.expect("the store is there");
    assert_eq!(seen.expect("there is one").value, "new");
    new.resign().await.expect("it led");
}

async fn a_proclamation_of_a_lost_leader_fails(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name("x"));
    let leader = Election::new(&one, &name).campaign("a").await.expect("the store is there");
    two.force_unlock(&name, leader.ticket(), "a test").await.expect("works").expect("it led");
    let error = leader.proclaim("b").await.expect_err("it was removed");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!leader.is_valid());
    assert_eq!(Election::new(&two, &name).leader().await.expect("the store is there"), None);
}
