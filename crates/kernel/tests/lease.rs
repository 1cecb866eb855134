//! The arithmetic of leases: a deadline that no clock difference makes late, three tries to renew,
//! and a lock that is never held longer than the store keeps it.

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

/// Lets every renewal fail, and returns when each was due, and when the lock was lost.
fn without_replies(timer: &mut LeaseTimer, mut now: Time) -> (Vec<Time>, Time) {
    let mut asked = Vec::new();
    loop {
        match timer.next(now) {
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

    /// The holder's deadline comes before the end of the store's lease, even if the holder's clock
    /// runs 1% slower than the store's and its request was handled at once.
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

    /// Without replies there are three renewals, each with an interval's time for its reply.
    #[test]
    fn three_tries_per_lease(lease in lease(), sent in 0..u64::MAX / 4) {
        let sent = Time(sent);
        let mut timer = LeaseTimer::new(lease, sent, true);
        let (asked, lost) = without_replies(&mut timer, sent);
        prop_assert!(asked.len() >= 3);
        for (at, time) in asked.iter().take(3).enumerate() {
            prop_assert_eq!(*time, sent.after(lease.renew_interval() * (at as u32 + 1)));
            prop_assert!(time.after(lease.renew_interval()) <= lost);
        }
        prop_assert_eq!(lost, lease.good_until(sent));
        prop_assert_eq!(timer.until(), lost);
    }

    /// One reply of three is enough, and the next three renewals are counted from it.
    #[test]
    fn one_success_is_enough(lease in lease(), which in 0..3_usize) {
        let mut timer = LeaseTimer::new(lease, Time(0), true);
        let (mut now, mut asked) = (Time(0), 0);
        let sent = loop {
            match timer.next(now) {
                Next::Sleep(until) => now = until,
                Next::Renew if asked == which => break now,
                Next::Renew => asked += 1,
                Next::Lose => panic!("lost before try {which}"),
            }
        };
        timer.renewed(lease, sent);
        prop_assert_eq!(timer.until(), lease.good_until(sent));
        let (asked, lost) = without_replies(&mut timer, sent);
        prop_assert!(asked.len() >= 3);
        prop_assert_eq!(lost, lease.good_until(sent));
    }

    /// Replies in any order: the deadline is the latest that any of them gives, and a renewal is
    /// due before it.
    #[test]
    fn replies_may_overtake(
        lease in lease(),
        renewals in prop::collection::vec((1..=100_u32, 1..390_u64), 0..6),
        now in 0..100_u64,
    ) {
        let interval = lease.renew_interval().as_nanos() as u64;
        let mut timer = LeaseTimer::new(lease, Time(0), true);
        let mut best = lease.good_until(Time(0));
        let (mut last, mut intervals) = (0, lease.renew_interval());
        for (percent, at) in renewals {
            let shorter = Lease { length: lease.length * percent / 100, ..lease };
            let sent = Time(at * interval / 100);
            timer.renewed(shorter, sent);
            best = best.max(shorter.good_until(sent));
            last = last.max(sent.0);
            intervals = intervals.min(shorter.renew_interval());
        }
        prop_assert_eq!(timer.until(), best);
        let now = Time(last + now);
        if let Next::Sleep(until) = timer.next(now) {
            prop_assert!(until.after(intervals) <= best, "too late to try before the end");
        }
    }
}

/// What a notice leaves of a lease is short, and has time for three tries all the same.
#[test]
fn three_tries_in_what_a_notice_leaves() {
    let (lease, rest) = (seconds(10), Duration::from_millis(1_400));
    let granted = Time(7);
    let mut timer = LeaseTimer::trusted(lease, granted, granted.after(rest));
    let due = |interval: Duration, from: Time| [1, 2, 3].map(|n| from.after(interval * n));
    let (asked, lost) = without_replies(&mut timer.clone(), granted);
    assert_eq!((&asked[..], lost), (&due(rest / 4, granted)[..], granted.after(rest)));
    // After one that succeeds they are as far apart as with any other lock.
    let sent = granted.after(rest / 4);
    assert_eq!(timer.next(sent), Next::Renew);
    timer.renewed(lease, sent);
    let (asked, lost) = without_replies(&mut timer, sent);
    assert_eq!(asked[..3], due(lease.renew_interval(), sent));
    assert_eq!(lost, lease.good_until(sent));
}

/// What is left after a lease that is shorter than before was put off has three tries, too.
#[test]
fn three_tries_in_a_shorter_extension() {
    let (lease, short) = (seconds(10), seconds(4));
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    let sent = Time(0).after(Duration::from_secs(8));
    timer.renewed(short, sent);
    let (asked, lost) = without_replies(&mut timer, sent);
    assert!(asked.len() >= 3, "{asked:?}");
    assert_eq!(lost, short.good_until(sent));
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let lease = seconds(10);
    let mut timer = LeaseTimer::new(lease, Time(5), false);
    assert_eq!(without_replies(&mut timer, Time(5)), (vec![], lease.good_until(Time(5))));
}

/// It must not turn a fixed lease into one that is renewed for ever.
#[test]
fn a_hint_about_a_fixed_lease_asks_until_there_is_an_answer() {
    let lease = seconds(10);
    let mut timer = LeaseTimer::new(lease, Time(0), false);
    let (before, hint) = (Time(900_000_000), Time(1_000_000_000));
    timer.verify(hint);
    timer.confirmed(before);
    assert_eq!(timer.next(hint), Next::Renew);
    let again = hint.after(lease.renew_interval());
    assert_eq!(timer.next(hint), Next::Sleep(again));
    assert_eq!(timer.next(again), Next::Renew);
    timer.confirmed(again);
    assert_eq!(timer.next(again), Next::Sleep(lease.good_until(Time(0))));
    // The first renewal is sent at the instant of the hint, and answers it as well.
    let mut timer = LeaseTimer::new(lease, Time(0), false);
    timer.verify(hint);
    timer.confirmed(hint);
    assert_eq!(timer.next(hint), Next::Sleep(lease.good_until(Time(0))));
}

/// One that is renewed goes on.
#[test]
fn a_confirmation_ends_no_renewals_of_a_renewed_lease() {
    let lease = seconds(10);
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    timer.confirmed(Time(1));
    assert_eq!(timer.next(Time(1)), Next::Sleep(Time(0).after(lease.renew_interval())));
}

#[test]
fn a_hint_asks_at_once_and_then_as_before() {
    let lease = seconds(10);
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    let hint = Time(1_000_000_000);
    timer.verify(hint);
    assert_eq!(timer.next(hint), Next::Renew);
    assert_eq!(timer.next(hint), Next::Sleep(hint.after(lease.renew_interval())));
}

/// The reply to a renewal sent before the hint does not answer the hint.
#[test]
fn an_older_reply_does_not_settle_a_hint() {
    let lease = seconds(10);
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    let (before, hint) = (Time(900_000_000), Time(1_000_000_000));
    timer.verify(hint);
    timer.renewed(lease, before);
    assert_eq!(timer.next(hint), Next::Renew);
    // A reply to one sent after it does.
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    timer.verify(hint);
    timer.renewed(lease, hint);
    assert_eq!(timer.next(hint), Next::Sleep(hint.after(lease.renew_interval())));
}

/// A lease shorter than its allowances is lost at once.
#[test]
fn a_lease_without_time_is_lost_at_once() {
    let second = Duration::from_secs(1);
    let lease = Lease { length: second, margin: second };
    assert_eq!(lease.usable(), Duration::ZERO);
    assert_eq!(LeaseTimer::new(lease, Time(7), true).next(Time(7)), Next::Lose);
}

/// A holder that was paused past its deadline is told of the loss, not asked to renew.
#[test]
fn waking_up_late_is_a_loss() {
    let lease = seconds(1);
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    assert_eq!(timer.next(Time(0).after(Duration::from_secs(60))), Next::Lose);
    assert_eq!(timer.next(lease.good_until(Time(0))), Next::Lose);
}

#[test]
fn a_lease_can_be_renewed_more_often_and_not_more_seldom() {
    let (lease, second) = (seconds(100), Duration::from_secs(1));
    let start = Time(1);
    let mut often = LeaseTimer::new(lease, start, true).every(second, start);
    for n in 1..=3 {
        let due = start.after(second * n);
        assert_eq!(often.next(Time(due.0 - 1)), Next::Sleep(due));
        assert_eq!(often.next(due), Next::Renew);
        often.renewed(lease, due);
    }
    let usual = LeaseTimer::new(lease, start, true);
    let seldom = usual.every(second * 99, start);
    assert_eq!(seldom, usual);
    let mut fixed = LeaseTimer::new(lease, start, false).every(second, start);
    assert_eq!(fixed.next(start.after(second * 5)), Next::Sleep(fixed.until()));
}

/// The interval is set some time after the request: what was due before is not put off.
#[test]
fn a_renewal_that_is_due_earlier_is_not_put_off() {
    let (lease, start) = (seconds(10), Time(1));
    let interval = lease.renew_interval();
    let due = start.after(interval);
    let later = start.after(interval / 2);
    let mut timer = LeaseTimer::new(lease, start, true).every(interval, later);
    assert_eq!(timer.next(later), Next::Sleep(due));
    // Nor is one that a later request has put off brought forward by the reply to an earlier one.
    let sent = due.after(interval);
    timer.renewed(lease, sent);
    timer.renewed(lease, due);
    assert_eq!(timer.next(sent), Next::Sleep(sent.after(interval)));
}

/// A timer that is asked late renews once, and not once for each interval that has passed.
#[test]
fn renewals_that_were_missed_are_not_made_up_for() {
    let lease = seconds(10);
    let interval = lease.renew_interval();
    let mut timer = LeaseTimer::new(lease, Time(0), true);
    let late = Time(0).after(interval * 5 / 2);
    assert_eq!(timer.next(late), Next::Renew);
    assert_eq!(timer.next(late), Next::Sleep(late.after(interval)));
}

/// Other clocks may run slower by 1%: on this one, their time takes longer than 1% more.
#[test]
fn a_time_by_any_clock_is_long_enough() {
    for time in [0, 1, 1_000, 60_000, 24 * 3_600_000].map(Duration::from_millis) {
        let by_slowest = time * 100 / 99;
        let longest = Lease::by_any_clock(time);
        assert!(
            (by_slowest..=by_slowest + time / 4000 + Duration::from_millis(3)).contains(&longest)
        );
    }
}

#[test]
fn no_time_is_left_until_what_is_past() {
    assert_eq!(Time(7).until(Time(5)), Duration::ZERO);
}
