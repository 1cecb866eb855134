//! Histograms of waits, the spread of rounds, and the statistics of the order of grants.

use hdrhistogram::Histogram;
use serde::Serialize;

/// One figure from several rounds: the median and the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest figure.
    pub low: f64,
    /// The highest figure.
    pub high: f64,
}

impl Spread {
    /// The spread of these rounds' figures; `None` if there are none.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let (low, high) = (*rounds.first()?, *rounds.last()?);
        let middle = rounds.len() / 2;
        let median = if rounds.len() % 2 == 1 {
            rounds[middle]
        } else {
            f64::midpoint(rounds[middle - 1], rounds[middle])
        };
        Some(Spread { median, low, high })
    }
}

/// The longest distinguishable wait: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// An empty histogram of nanoseconds, exact to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds make sense")
}

/// The histogram's content, as pairs of value and count.
pub(crate) fn pairs(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

/// Adds pairs of value and count.
pub(crate) fn add(histogram: &mut Histogram<u64>, pairs: &[(u64, u64)]) {
    for (value, count) in pairs {
        histogram.saturating_record_n(*value, *count);
    }
}

/// The same waits without coordinated omission. A waiting client makes no other requests, so long
/// waits are counted too seldom: a client that waits while each of the others takes a hundred turns
/// counts once, and so does each of their turns. `turn` is the time between two turns of a client
/// if all have equally many. For each longer wait, the waits that the client would have begun
/// meanwhile are added.
pub(crate) fn without_omission(waits: &Histogram<u64>, turn: u64) -> Histogram<u64> {
    waits.clone_correct(turn.max(1))
}

/// One acquisition: its name, and when it was requested, granted ([`NEVER`] if it was not) and
/// released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, Serialize)]
pub(crate) struct Turn(
    /// The name's number.
    pub(crate) u32,
    /// When it was requested.
    pub(crate) u64,
    /// When it was granted.
    pub(crate) u64,
    /// When its release began.
    pub(crate) u64,
);

/// Not granted before the round ended.
pub(crate) const NEVER: u64 = u64::MAX;

/// The statistics of the order of grants.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Order {
    /// Times from the beginning of a release to the next grant, while a client waited.
    pub(crate) gaps: Vec<f64>,
    /// The share of the grants that overtook an earlier request for the same name.
    pub(crate) overtaking: Option<f64>,
    /// Grants before the previous release had begun: must be 0 for a mutex.
    pub(crate) overlaps: u64,
}

/// Examines the turns of a round that were granted before `until`: later ones may be missing.
/// `exclusive`: whether the lock has one holder at a time.
pub(crate) fn order(turns: &mut [Turn], until: u64, exclusive: bool) -> Order {
    for Turn(_, _, granted, _) in turns.iter_mut().filter(|turn| turn.2 >= until) {
        *granted = NEVER;
    }
    turns.sort_unstable_by_key(|turn| (turn.0, turn.2));
    let mut order = Order::default();
    let (mut grants, mut overtaking) = (0_u64, 0_u64);
    for of_name in turns.chunk_by(|a, b| a.0 == b.0) {
        let mut earliest = NEVER;
        for Turn(_, asked, granted, _) in of_name.iter().rev() {
            if *granted != NEVER {
                grants += 1;
                overtaking += u64::from(earliest < *asked);
            }
            earliest = earliest.min(*asked);
        }
        if exclusive {
            for pair in of_name.windows(2).filter(|pair| pair[1].2 != NEVER) {
                order.overlaps += u64::from(pair[1].2 < pair[0].3);
                if pair[1].1 <= pair[0].3 {
                    order.gaps.push(pair[1].2.saturating_sub(pair[0].3) as f64 / 1e9);
                }
            }
        }
    }
    order.overtaking = (grants > 0).then(|| overtaking as f64 / grants as f64);
    order.gaps.sort_by(f64::total_cmp);
    order
}

/// The smallest value that at least this share of all do not exceed.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_starved_client_weighs_as_much_as_its_wait() {
        let mut waits = histogram();
        waits.record_n(1_000, 999).unwrap();
        waits.record(1_000_000_000).unwrap();
        assert!(waits.value_at_quantile(0.99) < 2_000);
        let corrected = without_omission(&waits, 1_000_000);
        assert!(corrected.value_at_quantile(0.99) > 900_000_000);
    }

    #[test]
    fn order_is_what_happened() {
        // The second request is granted third; the last is never granted.
        let mut turns =
            [Turn(0, 1, 10, 20), Turn(0, 2, 35, 40), Turn(0, 3, 22, 30), Turn(0, 4, NEVER, 0)];
        let order = order(&mut turns, NEVER, true);
        assert_eq!(order.overlaps, 0);
        assert_eq!(order.gaps, [2e-9, 5e-9]);
        assert_eq!(order.overtaking, Some(1.0 / 3.0));
    }

    /// The turns of one client are missing from 30 on: what lies between those of the others is
    /// unknown.
    #[test]
    fn turns_among_which_some_are_missing_do_not_count() {
        let mut turns = [Turn(0, 1, 10, 20), Turn(0, 2, 25, 30), Turn(0, 3, 90, 95)];
        let order = order(&mut turns, 31, true);
        assert_eq!(order.gaps, [5e-9]);
        assert_eq!(order.overtaking, Some(0.0));
    }

    #[test]
    fn two_holders_at_once_are_seen() {
        let mut turns = [Turn(0, 1, 10, 20), Turn(0, 2, 15, 30), Turn(1, 2, 16, 30)];
        assert_eq!(order(&mut turns, NEVER, true).overlaps, 1);
        assert_eq!(order(&mut turns, NEVER, false).overlaps, 0);
    }
}
