//! The back-off: how long to pause between two polls.

use core::time::Duration;

/// A schedule of pauses, each with optional jitter. Random numbers are arguments: the kernel draws
/// none.
///
/// The schedules are those of common polling locks: a fixed pause (50 ms in many Redis locks), a
/// pause that shrinks by 1 ms with every attempt so that the longest waiter polls most often, and
/// exponential back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    shape: Shape,
    jitter: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Fixed(Duration),
    Shrinking { from: Duration },
    Exponential { from: Duration, most: Duration },
}

/// The step of a shrinking pause.
const SHRINK: Duration = Duration::from_millis(1);
/// The lower bound of a shrinking pause.
const FLOOR: Duration = Duration::from_millis(10);
/// The shortest pause of all, so that no schedule spins.
const SHORTEST: Duration = Duration::from_micros(100);
/// The longest pause, in nanoseconds (some 146 years), so that no arithmetic overflows.
const LONGEST: u64 = u64::MAX / 4;

impl Backoff {
    /// The same pause each time.
    pub const fn fixed(pause: Duration) -> Self {
        Backoff { shape: Shape::Fixed(pause), jitter: 0 }
    }

    /// A pause that begins with `from` and is 1 ms shorter each time, down to 10 ms.
    pub const fn shrinking(from: Duration) -> Self {
        Backoff { shape: Shape::Shrinking { from }, jitter: 0 }
    }

    /// A pause that begins with `from` and doubles each time, up to `most`.
    pub const fn exponential(from: Duration, most: Duration) -> Self {
        Backoff { shape: Shape::Exponential { from, most }, jitter: 0 }
    }

    /// Spreads every pause evenly over ± `percent` (at most 100) of itself, so that callers who
    /// began together do not stay together.
    pub const fn jitter(mut self, percent: u8) -> Self {
        self.jitter = if percent > 100 { 100 } else { percent };
        self
    }

    /// The pause after failed try number `attempt` (the first is 0). `random` is a new random
    /// number of the caller's, such as `fastrand::u64(..)`; without [`jitter`](Backoff::jitter) it
    /// is not used, and pauses are the same for all callers.
    pub fn pause(&self, attempt: u32, random: u64) -> Duration {
        let pause = match self.shape {
            Shape::Fixed(pause) => pause,
            Shape::Shrinking { from } => {
                from.saturating_sub(SHRINK.saturating_mul(attempt)).max(FLOOR.min(from))
            }
            Shape::Exponential { from, most } => {
                from.saturating_mul(1 << attempt.min(30)).min(most)
            }
        };
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX).min(LONGEST);
        let spread = nanos / 100 * u64::from(self.jitter);
        let extra = if spread == 0 { 0 } else { random % (2 * spread + 1) };
        Duration::from_nanos(nanos - spread + extra).max(SHORTEST)
    }
}
