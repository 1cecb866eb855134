//! The arithmetic of leases: a deadline that no clock difference makes late, three tries to renew,
//! and a hold that never outlives what the store gave.

use core::time::Duration;
use holdline_kernel::{Lease, LeaseTimer, Next, Time};
use proptest::prelude::*;

fn lease() -> impl Strategy<Value = Lease> {
    let length = prop_oneof![100..60_000_u64, 60_000..86_400_000_u64];
    (length, 0..50_u32).prop_map(|(length, percent)| {
        let length = Duration::from_millis(length);
        Lease { length, margin: length * percent / 100 }
    })
}

fn seconds(length: u64) -> Lease {
    Lease { length: Duration::from_secs(length), margin: Duration::from_millis(100) }
}

/// Lets every renewal fail, and returns when each was asked for, and when the lock was lost.
fn deaf(hold: &mut LeaseTimer, mut now: Time) -> (Vec<Time>, Time) {
    let mut asked = Vec::new();
    loop {
        match hold.next(now) {
            Next::Sleep(until) => {
                assert!(until > now, "a sleep that does not end is a spin");
                now = until;
            }
            Next::Renew => asked.push(now),
            Next::Lose => return (asked, now),
        }
    }
}

fn runs(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(runs(2_000))]

    /// The holder's clock may run up to 1% slower than the store's, and its request may have been
    /// handled at once: when the holder's deadline comes, the store's lease has not ended.
    #[test]
    fn the_deadline_is_never_late(
        lease in lease(), sent in 0..u64::MAX / 4, slower in 0..10_000_u128,
    ) {
        let good = lease.good_until(Time(sent)).0 - sent;
        // On the holder's clock `good` has passed; on the store's, up to 1% more.
        let passed = u128::from(good) * (1_000_000 + slower) / 1_000_000;
        let left = lease.length.as_nanos().checked_sub(passed);
        prop_assert!(left.is_some_and(|left| left > 0 && left + 1 >= lease.margin.as_nanos()));
    }

    /// If nothing answers, there are three tries, each with a interval's time to be answered in.
    #[test]
    fn three_tries_per_lease(lease in lease(), sent in 0..u64::MAX / 4) {
        let sent = Time(sent);
        let mut hold = LeaseTimer::new(lease, sent, true);
        let (asked, lost) = deaf(&mut hold, sent);
        prop_assert!(asked.len() >= 3);
        for (at, time) in asked.iter().take(3).enumerate() {
            prop_assert_eq!(*time, sent.after(lease.renew_interval() * (at as u32 + 1)));
            prop_assert!(time.after(lease.renew_interval()) <= lost);
        }
        prop_assert_eq!(lost, lease.good_until(sent));
        prop_assert_eq!(hold.until(), lost);
    }

    /// Any one of the three is enough, and the next three follow from it.
    #[test]
    fn one_success_is_enough(lease in lease(), which in 0..3_usize) {
        let mut hold = LeaseTimer::new(lease, Time(0), true);
        let (mut now, mut asked) = (Time(0), 0);
        let sent = loop {
            match hold.next(now) {
                Next::Sleep(until) => now = until,
                Next::Renew if asked == which => break now,
                Next::Renew => asked += 1,
                Next::Lose => panic!("lost before try {which}"),
            }
        };
        hold.renewed(lease, sent);
        prop_assert_eq!(hold.until(), lease.good_until(sent));
        let (asked, lost) = deaf(&mut hold, sent);
        prop_assert!(asked.len() >= 3);
        prop_assert_eq!(lost, lease.good_until(sent));
    }

    /// Replies in any order: the hold is good exactly as long as the best of them says, and keeps
    /// time for a try before its end.
    #[test]
    fn replies_may_overtake(
        lease in lease(),
        renewals in prop::collection::vec((1..=100_u32, 1..390_u64), 0..6),
        now in 0..100_u64,
    ) {
        let interval = lease.renew_interval().as_nanos() as u64;
        let mut hold = LeaseTimer::new(lease, Time(0), true);
        let mut best = lease.good_until(Time(0));
        let (mut last, mut intervals) = (0, lease.renew_interval());
        for (percent, at) in renewals {
            let shorter = Lease { length: lease.length * percent / 100, ..lease };
            let sent = Time(at * interval / 100);
            hold.renewed(shorter, sent);
            best = best.max(shorter.good_until(sent));
            last = last.max(sent.0);
            intervals = intervals.min(shorter.renew_interval());
        }
        prop_assert_eq!(hold.until(), best);
        let now = Time(last + now);
        if let Next::Sleep(until) = hold.next(now) {
            prop_assert!(until.after(intervals) <= best, "too late to try before the end");
        }
    }
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let lease = seconds(10);
    let mut hold = LeaseTimer::new(lease, Time(5), false);
    assert_eq!(deaf(&mut hold, Time(5)), (vec![], lease.good_until(Time(5))));
}

/// A hint asks once. It must not turn a fixed lease into one that is renewed for ever.
#[test]
fn a_hint_about_a_fixed_lease_asks_once() {
    let lease = seconds(10);
    let mut hold = LeaseTimer::new(lease, Time(0), false);
    let hint = Time(1_000_000_000);
    hold.verify(hint);
    assert_eq!(deaf(&mut hold, hint), (vec![hint], lease.good_until(Time(0))));
}

#[test]
fn a_hint_asks_at_once_and_then_as_before() {
    let lease = seconds(10);
    let mut hold = LeaseTimer::new(lease, Time(0), true);
    let hint = Time(1_000_000_000);
    hold.verify(hint);
    assert_eq!(hold.next(hint), Next::Renew);
    assert_eq!(hold.next(hint), Next::Sleep(hint.after(lease.renew_interval())));
}

/// The reply to a renewal from before the hint says nothing about what the hint is about.
#[test]
fn an_older_reply_does_not_settle_a_hint() {
    let lease = seconds(10);
    let mut hold = LeaseTimer::new(lease, Time(0), true);
    let (before, hint) = (Time(900_000_000), Time(1_000_000_000));
    hold.verify(hint);
    hold.renewed(lease, before);
    assert_eq!(hold.next(hint), Next::Renew);
    // A reply from after it does.
    let mut hold = LeaseTimer::new(lease, Time(0), true);
    hold.verify(hint);
    hold.renewed(lease, hint);
    assert_eq!(hold.next(hint), Next::Sleep(hint.after(lease.renew_interval())));
}

/// A lease that leaves nothing after the allowances is never good: it is lost at once.
#[test]
fn a_lease_without_time_is_lost_at_once() {
    let second = Duration::from_secs(1);
    let lease = Lease { length: second, margin: second };
    assert_eq!(lease.usable(), Duration::ZERO);
    assert_eq!(LeaseTimer::new(lease, Time(7), true).next(Time(7)), Next::Lose);
}

/// A holder that slept through everything is told that it lost, not asked to renew.
#[test]
fn waking_up_late_is_a_loss() {
    let lease = seconds(1);
    let mut hold = LeaseTimer::new(lease, Time(0), true);
    assert_eq!(hold.next(Time(0).after(Duration::from_secs(60))), Next::Lose);
    assert_eq!(hold.next(lease.good_until(Time(0))), Next::Lose);
}
