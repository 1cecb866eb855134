//! The polling schedules: their exact pauses, and the bounds of their jitter.

use core::time::Duration;
use holdline_kernel::Backoff;
use proptest::prelude::*;

fn millis(pauses: impl IntoIterator<Item = u64>) -> Vec<Duration> {
    pauses.into_iter().map(Duration::from_millis).collect()
}

fn first(schedule: Backoff, count: u32) -> Vec<Duration> {
    (0..count).map(|attempt| schedule.pause(attempt, 12_345)).collect()
}

#[test]
fn fixed_stays() {
    assert_eq!(first(Backoff::fixed(Duration::from_millis(50)), 4), millis([50; 4]));
}

#[test]
fn shrinking_loses_a_millisecond_each_time_down_to_ten() {
    let schedule = Backoff::shrinking(Duration::from_millis(50));
    assert_eq!(first(schedule, 43), millis((10..=50).rev().chain([10, 10])));
    assert_eq!(schedule.pause(u32::MAX, 0), Duration::from_millis(10));
    // One that begins below ten milliseconds does not shrink.
    assert_eq!(first(Backoff::shrinking(Duration::from_millis(4)), 3), millis([4; 3]));
}

#[test]
fn exponential_doubles_up_to_its_most() {
    let schedule = Backoff::exponential(Duration::from_millis(10), Duration::from_millis(100));
    assert_eq!(first(schedule, 6), millis([10, 20, 40, 80, 100, 100]));
    assert_eq!(schedule.pause(u32::MAX, 0), Duration::from_millis(100));
}

#[test]
fn nothing_spins() {
    let shortest = Duration::from_micros(100);
    for schedule in [
        Backoff::fixed(Duration::ZERO),
        Backoff::shrinking(Duration::ZERO),
        Backoff::exponential(Duration::ZERO, Duration::ZERO),
        Backoff::fixed(Duration::from_micros(150)).jitter(100),
    ] {
        for random in [0, 1, u64::MAX] {
            assert!(schedule.pause(3, random) >= shortest, "{schedule:?} spins");
        }
    }
}

fn shape() -> impl Strategy<Value = Backoff> {
    let pause = || {
        prop_oneof![
            (0..5_000_000_000_u64).prop_map(Duration::from_nanos),
            (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
            Just(Duration::MAX),
        ]
    };
    prop_oneof![
        pause().prop_map(Backoff::fixed),
        pause().prop_map(Backoff::shrinking),
        (pause(), pause()).prop_map(|(from, most)| Backoff::exponential(from, most)),
    ]
}

fn runs(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(runs(2_000))]

    /// Jitter stays within its percentage of the plain pause, for any schedule and any random
    /// number.
    #[test]
    fn jitter_keeps_its_bounds(
        plain in shape(), percent: u8, attempt: u32, random: u64,
    ) {
        let pause = plain.pause(attempt, random).as_nanos();
        let spread = pause * u128::from(percent.min(100)) / 100;
        let jittered = plain.jitter(percent).pause(attempt, random).as_nanos();
        prop_assert!(jittered <= pause + spread, "{jittered} > {pause} + {spread}");
        prop_assert!(jittered + spread >= pause, "{jittered} < {pause} - {spread}");
    }

    /// Without jitter the random number does not matter, and pauses are never cut short.
    #[test]
    fn plain_pauses_are_what_they_say(from: u64, attempt: u32, random: u64) {
        let fixed = Backoff::fixed(Duration::from_nanos(from));
        let least = Duration::from_micros(100);
        let century = Duration::from_secs(100 * 365 * 86_400);
        let pause = fixed.pause(attempt, random);
        prop_assert!(pause == Duration::from_nanos(from).max(least) || pause > century);
        let long = Backoff::fixed(Duration::from_secs(from).max(century));
        prop_assert!(long.pause(attempt, random) >= century);
    }
}

/// Both ends of the jitter's range are reached.
#[test]
fn jitter_reaches_both_ends() {
    let schedule = Backoff::fixed(Duration::from_millis(100)).jitter(50);
    let spread = 50_000_000;
    assert_eq!(schedule.pause(0, 0), Duration::from_millis(50));
    assert_eq!(schedule.pause(0, 2 * spread), Duration::from_millis(150));
    assert_eq!(schedule.pause(0, spread), Duration::from_millis(100));
}
