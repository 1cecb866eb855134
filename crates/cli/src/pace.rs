//! When to look at the store again, for verbs that go on looking.

use holdline::store::Lines;
use holdline::{Changes, Client};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The pauses between looks: until the store tells of a change, and `every` where it tells of none.
pub(crate) struct Pace {
    changes: Changes,
    every: Duration,
    /// Whether what is shown has ages in it, so that it is due after `every` without a change, too.
    ages: bool,
    /// When the look began.
    began: Instant,
}

/// Looking may take one part in so many of the time, so that a store with many locks that change
/// all the time is not kept busy by those who watch.
const SHARE: u32 = 5;

impl Pace {
    pub(crate) fn new(client: &Client, lines: Lines, every: Duration) -> Self {
        Pace { changes: client.changes(lines), every, ages: false, began: Instant::now() }
    }

    /// For what has ages in it.
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
