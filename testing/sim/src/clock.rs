//! The machines' clocks, each with its own offset and rate.

use holdline_kernel::Time;

/// A machine's clock, as a function of true time (nanoseconds since the simulation began).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Its reading when the simulation began.
    pub(crate) offset: u64,
    /// Its rate relative to true time, in parts per million faster.
    pub(crate) ppm: i64,
}

impl Clock {
    /// Its reading at true time `at`.
    pub(crate) fn local(&self, at: u64) -> Time {
        let drift = i128::from(at) * i128::from(self.ppm) / 1_000_000;
        let local = i128::from(at) + drift + i128::from(self.offset);
        Time(u64::try_from(local).unwrap_or(0))
    }

    /// The first true time at which it reads `local` or more.
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
