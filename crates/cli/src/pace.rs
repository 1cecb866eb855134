//! The pace of verbs that look at the store repeatedly.

use holdline::store::Lines;
use holdline::{Changes, Client};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The pauses between looks: until the store reports a change, or for `every` if it reports none.
pub(crate) struct Pace {
    changes: Changes,
    every: Duration,
    /// Whether the output shows ages, so that it must be refreshed after `every` even without a
    /// change.
    ages: bool,
    /// When the current look began.
    began: Instant,
}

/// The share of the time that looks may take (one part in this many), so that watching does not
/// overload a store with many locks that change all the time.
const SHARE: u32 = 5;

impl Pace {
    pub(crate) fn new(client: &Client, lines: Lines, every: Duration) -> Self {
        Pace { changes: client.changes(lines), every, ages: false, began: Instant::now() }
    }

    /// For output that shows ages.
    pub(crate) fn with_ages(self) -> Self {
        Pace { ages: true, ..self }
    }

    /// Waits until the next look is due.
    pub(crate) async fn next(&mut self) {
        let due = Instant::now() + self.every;
        sleep((self.began.elapsed() * (SHARE - 1)).min(self.every)).await;
        let left = due.saturating_duration_since(Instant::now());
        let limit = if self.ages { left } else { Duration::MAX };
        let _ = timeout(limit, self.changes.next(left)).await;
        self.began = Instant::now();
    }
}
