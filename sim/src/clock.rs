//! Clocks that nobody may compare: each has its own beginning and its own rate.

use holdline_kernel::Time;

/// One machine's clock, as a function of true time (nanoseconds since the world began).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What it showed when the world began.
    pub(crate) offset: u64,
    /// How much faster than true time it runs, in parts per million.
    pub(crate) ppm: i64,
}

impl Clock {
    /// What it shows at true time `at`.
    pub(crate) fn local(&self, at: u64) -> Time {
        let drift = i128::from(at) * i128::from(self.ppm) / 1_000_000;
        let local = i128::from(at) + drift + i128::from(self.offset);
        Time(u64::try_from(local).unwrap_or(0))
    }

    /// The first true time at which it shows `local` or more.
    pub(crate) fn when(&self, local: Time) -> u64 {
        if local == Time::NEVER {
            return u64::MAX;
        }
        let since = i128::from(local.0.saturating_sub(self.offset));
        let guess = since * 1_000_000 / (1_000_000 + i128::from(self.ppm));
        let mut at = u64::try_from(guess.max(2) - 2).unwrap_or(u64::MAX);
        while self.local(at) < local {
            at += 1;
        }
        at
    }
}
