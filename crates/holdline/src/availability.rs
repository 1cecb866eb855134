//! The availability of a store, on which a client's waiting depends during an outage.
//!
//! The calls of a client report their outcomes here, except for watches, for the question why a
//! lock was lost, and for an entry that its caller's limit cut off within a quarter of a second. A
//! store that has answered once is worth waiting for; one that never has may not exist.

use crate::clock;
use crate::error::Result;
use holdline_kernel::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The shortest interval at which an acquisition that does not ask the store checks for an outage.
pub(crate) const OUTAGE_CHECK: Duration = Duration::from_millis(50);

/// The recent outcomes of calls to one store.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    reached: AtomicBool,
    /// When calls began to fail; 0 if the last one was answered.
    away_since: AtomicU64,
}

impl Availability {
    /// Records the outcome of a call. A permanent error counts as an answer, but not as one worth
    /// waiting for: it may come from the wrong server.
    pub(crate) fn note<T>(&self, address: impl FnOnce() -> String, outcome: Option<&Result<T>>) {
        match outcome {
            Some(Ok(_)) => {
                // The fast path of every call: two loads.
                if !self.reached.load(Ordering::Relaxed) {
                    self.reached.store(true, Ordering::Relaxed);
                }
                self.answered(address);
            }
            Some(Err(error)) if !error.retryable() => self.answered(address),
            Some(Err(error)) => self.failed(address, &format_args!("{error:#}")),
            None => self.failed(address, &format_args!("no answer in time")),
        }
    }

    fn answered(&self, address: impl FnOnce() -> String) {
        if self.away_since.load(Ordering::Relaxed) != 0 {
            let since = Time(self.away_since.swap(0, Ordering::Relaxed));
            if since != Time(0) && self.reached.load(Ordering::Relaxed) {
                let away = since.until(clock::now());
                tracing::info!(store = address(), ?away, "the store answers again");
            }
        }
    }

    fn failed(&self, address: impl FnOnce() -> String, error: &std::fmt::Arguments<'_>) {
        let now = clock::now().0.max(1);
        let first = self.away_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() && self.has_answered() {
            tracing::warn!(store = address(), %error, "the store does not answer");
        }
    }

    /// Whether the store has ever answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// How long the store has not answered; `None` if the last call succeeded.
    pub(crate) fn away_for(&self) -> Option<Duration> {
        let since = Time(self.away_since.load(Ordering::Relaxed));
        (since != Time(0)).then(|| since.until(clock::now()))
    }
}
