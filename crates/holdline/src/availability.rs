//! The availability of a store, on which a client's waiting depends during an outage.
//!
//! The calls of a client report their outcomes here, except for watches, for the question why a
//! lock was lost, and for an entry that its caller's limit cut off within a quarter of a second. A
//! store that has answered once is worth waiting for; one that never has may not exist.
//!
//! A replica can be read and not changed, and a store whose disk or memory is full may also let
//! places be given up and kept, but not taken. Those who wait for a lock need to take one, so a
//! call that succeeds does not end an outage of calls that ask more of the store.

use crate::clock;
use crate::error::Result;
use holdline_kernel::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The shortest interval at which an acquisition that does not ask the store checks for an outage.
pub(crate) const OUTAGE_CHECK: Duration = Duration::from_millis(50);
/// How long a failed call counts for more than one that succeeds and asks less of the store: longer
/// than the time between two requests of an acquisition that waits. A client that takes no lock any
/// more learns from looks that the store is back.
const FAILURE_COUNTS: Duration = Duration::from_secs(10);

/// What a call does, in the order of what it asks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// It reads.
    Look,
    /// It removes a place.
    Release,
    /// It keeps a place: a renewal, or the poll of one that waits.
    Keep,
    /// It takes a place.
    Take,
}

/// The recent outcomes of calls to one store.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    reached: AtomicBool,
    /// When calls began to fail; 0 if the last one was answered.
    away_since: AtomicU64,
    /// When each [`Call`] failed last, in this outage; 0 if none did.
    failed_at: [AtomicU64; 4],
}

impl Availability {
    /// Records the outcome of a call. A permanent error counts as an answer, but not as one worth
    /// waiting for: it may come from the wrong server.
    pub(crate) fn note<T>(
        &self,
        address: impl FnOnce() -> String,
        call: Call,
        outcome: Option<&Result<T>>,
    ) {
        match outcome {
            Some(Ok(_)) => {
                // The fast path of every call: two loads.
                if !self.reached.load(Ordering::Relaxed) {
                    self.reached.store(true, Ordering::Relaxed);
                }
                self.answered(address, call);
            }
            Some(Err(error)) if !error.retryable() => self.answered(address, call),
            Some(Err(error)) => self.failed(address, call, &format_args!("{error:#}")),
            None => self.failed(address, call, &format_args!("no answer in time")),
        }
    }

    fn answered(&self, address: impl FnOnce() -> String, call: Call) {
        if self.away_since.load(Ordering::Relaxed) != 0 {
            if self.more_fails(call) {
                return;
            }
            self.failed_at.iter().for_each(|failed| failed.store(0, Ordering::Relaxed));
            let since = Time(self.away_since.swap(0, Ordering::Relaxed));
            if since != Time(0) && self.reached.load(Ordering::Relaxed) {
                let away = since.until(clock::now());
                tracing::info!(store = address(), ?away, "the store answers again");
            }
        }
    }

    /// Whether a call that asks more of the store has failed lately, and none was answered since.
    fn more_fails(&self, call: Call) -> bool {
        let now = clock::now();
        self.failed_at[call as usize + 1..].iter().any(|failed| {
            let failed = Time(failed.load(Ordering::Relaxed));
            failed != Time(0) && now < failed.after(FAILURE_COUNTS)
        })
    }

    fn failed(
        &self,
        address: impl FnOnce() -> String,
        call: Call,
        error: &std::fmt::Arguments<'_>,
    ) {
        let now = clock::now().0.max(1);
        self.failed_at[call as usize].store(now, Ordering::Relaxed);
        let first = self.away_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() && self.has_answered() {
            tracing::warn!(store = address(), %error, "the store does not answer");
        }
    }

    /// Whether the store has ever answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// How long the store has not answered; `None` if the last call succeeded, or the last
    /// that takes a place where those fail.
    pub(crate) fn away_for(&self) -> Option<Duration> {
        let since = Time(self.away_since.load(Ordering::Relaxed));
        (since != Time(0)).then(|| since.until(clock::now()))
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use super::*;
    use crate::clock::simulated;
    use crate::error::{Error, ErrorKind};

    const OK: Option<&Result<()>> = Some(&Ok(()));

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "a test")
    }

    /// Records an outcome at this second. Returns for how many seconds the store has been away.
    fn note(of: &Availability, at: u64, call: Call, outcome: Option<&Result<()>>) -> Option<u64> {
        let noted = || {
            of.note(String::new, call, outcome);
            of.away_for().map(|away| away.as_secs())
        };
        simulated::at(Time(0).after(Duration::from_secs(at)), 0, noted).0
    }

    #[test]
    fn a_call_that_asks_less_ends_an_outage_only_after_a_while() {
        for failure in [Some(Err(error(ErrorKind::Unavailable))), None] {
            let store = Availability::default();
            assert_eq!(note(&store, 0, Call::Look, OK), None);
            assert_eq!(note(&store, 1, Call::Take, failure.as_ref()), Some(0));
            assert_eq!(note(&store, 5, Call::Look, OK), Some(4));
            assert_eq!(note(&store, 9, Call::Release, OK), Some(8));
            assert_eq!(note(&store, 10, Call::Keep, OK), Some(9));
            assert_eq!(note(&store, 11, Call::Look, OK), None);
        }
    }

    #[test]
    fn a_call_that_asks_as_much_or_more_ends_an_outage() {
        for (failed, answered) in [
            (Call::Look, Call::Look),
            (Call::Look, Call::Release),
            (Call::Release, Call::Release),
            (Call::Release, Call::Keep),
            (Call::Keep, Call::Keep),
            (Call::Keep, Call::Take),
            (Call::Take, Call::Take),
        ] {
            let store = Availability::default();
            assert_eq!(note(&store, 1, failed, None), Some(0), "{failed:?}");
            assert_eq!(note(&store, 3, failed, None), Some(2), "{failed:?}");
            assert_eq!(note(&store, 4, answered, OK), None, "{failed:?}, {answered:?}");
        }
    }

    /// Its failures say nothing of the next one.
    #[test]
    fn an_outage_that_is_over_is_forgotten() {
        let store = Availability::default();
        note(&store, 1, Call::Take, None);
        assert_eq!(note(&store, 2, Call::Take, OK), None);
        assert_eq!(note(&store, 3, Call::Look, None), Some(0));
        assert_eq!(note(&store, 4, Call::Look, OK), None);
    }

    /// It may come from the wrong server.
    #[test]
    fn a_refusal_ends_an_outage_and_is_nothing_to_wait_for() {
        let store = Availability::default();
        note(&store, 1, Call::Take, None);
        assert_eq!(note(&store, 2, Call::Take, Some(&Err(error(ErrorKind::Denied)))), None);
        assert!(!store.has_answered());
        note(&store, 3, Call::Look, OK);
        assert!(store.has_answered());
    }
}
