//! Medians, percentiles and spreads.

pub(crate) use holdline_experiments::Spread;
use std::time::Duration;

/// Sorted durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    seconds: Vec<f64>,
}

impl Waits {
    pub(crate) fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Waits { seconds }
    }

    pub(crate) fn count(&self) -> usize {
        self.seconds.len()
    }

    pub(crate) fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// The smallest duration that at least `percent` of all do not exceed; 0 if there are none.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.seconds.len() as f64).ceil() as usize;
        self.seconds.get(rank.max(1) - 1).copied().unwrap_or(0.0)
    }
}

/// The largest and the smallest share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) most: usize,
    pub(crate) least: usize,
}

impl Shares {
    pub(crate) fn of(shares: &[usize]) -> Self {
        let most = shares.iter().max().copied().unwrap_or(0);
        Shares { most, least: shares.iter().min().copied().unwrap_or(0) }
    }

    /// The ratio of the largest to the smallest: 1 is perfectly fair, infinite if one got nothing.
    pub(crate) fn ratio(self) -> f64 {
        if self.least == 0 { f64::INFINITY } else { self.most as f64 / self.least as f64 }
    }
}

pub(crate) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_occurred() {
        let waits = Waits::new((1..=100).rev().map(f64::from).collect());
        assert!((waits.percentile(50.0) - 50.0).abs() < 1e-9);
        assert!((waits.percentile(99.0) - 99.0).abs() < 1e-9);
        assert!((waits.percentile(100.0) - 100.0).abs() < 1e-9);
        assert!((Waits::default().percentile(99.0)).abs() < 1e-9);
    }

    #[test]
    fn a_task_without_locks_is_infinitely_uneven() {
        assert!((Shares::of(&[3, 2, 2]).ratio() - 1.5).abs() < 1e-9);
        assert!(Shares::of(&[3, 0]).ratio().is_infinite());
    }
}
