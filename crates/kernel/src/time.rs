//! Instants as plain numbers, so that the kernel's caller may use any clock, or none.

use core::time::Duration;

/// An instant: nanoseconds on the caller's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant after all others.
    pub const NEVER: Time = Time(u64::MAX);

    /// This instant plus `wait`, at most [`Time::NEVER`].
    pub fn after(self, wait: Duration) -> Time {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }

    /// The time from this instant until `later`; zero if `later` is past.
    pub fn until(self, later: Time) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}
