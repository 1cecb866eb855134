//! How long a poller waits between two looks.

use core::time::Duration;

/// A schedule of waits, each with optional jitter. Chance is an argument: the kernel draws none.
///
/// The schedules are those of the polling locks that people know: a fixed pause (50 ms in many
/// Redis locks), a pause that shrinks by 1 ms with every failure so that whoever has waited longest
/// looks most often, and the exponential back-off.
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

/// A shrinking pause loses this much with every try,
const SHRINK: Duration = Duration::from_millis(1);
/// and stops here.
const FLOOR: Duration = Duration::from_millis(10);
/// No schedule spins: this is the shortest pause of all.
const SHORTEST: Duration = Duration::from_micros(100);
/// Nor does its arithmetic overflow: this is the longest, in nanoseconds (some 146 years).
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

    /// The pause after failed try number `attempt` (the first is 0). `random` is any random number.
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
