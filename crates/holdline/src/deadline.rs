//! The deadline of a held lock. Renewals extend it, and every check says whether it has passed.
//! Once a check has found it passed, it stays passed, even for a renewal that was in time but whose
//! thread was paused between reading the clock and extending the deadline.

use holdline_kernel::Time;
use std::sync::atomic::{AtomicU64, Ordering};

/// An instant whose lowest bit (one nanosecond) says that it was found passed.
#[derive(Debug)]
pub(crate) struct Deadline(AtomicU64);

const PASSED: u64 = 1;

impl Deadline {
    pub(crate) fn new(until: Time) -> Self {
        Deadline(AtomicU64::new(until.0 & !PASSED))
    }

    pub(crate) fn until(&self) -> Time {
        Time(self.0.load(Ordering::Acquire) & !PASSED)
    }

    /// Whether the deadline has passed, now or at an earlier check.
    pub(crate) fn has_passed(&self, now: Time) -> bool {
        let mut until = self.0.load(Ordering::Acquire);
        loop {
            if until & PASSED != 0 {
                return true;
            }
            if now < Time(until) {
                return false;
            }
            let passed = until | PASSED;
            match self.0.compare_exchange(until, passed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(put_off) => until = put_off,
            }
        }
    }

    /// Extends the deadline from one instant to another, unless it was found passed or was changed
    /// meanwhile. Returns whether it was extended.
    pub(crate) fn put_off(&self, from: Time, to: Time) -> bool {
        let (from, to) = (from.0 & !PASSED, to.0 & !PASSED);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_seen_to_have_passed_is_not_put_off() {
        let deadline = Deadline::new(Time(100));
        assert!(!deadline.has_passed(Time(99)) && deadline.put_off(Time(100), Time(200)));
        // A renewal has read the clock in time, and is paused here.
        assert!(deadline.has_passed(Time(200)));
        assert!(!deadline.put_off(Time(200), Time(300)));
        assert!(deadline.has_passed(Time(0)) && deadline.until() == Time(200));
    }

    #[test]
    fn a_deadline_never_both_passes_and_is_put_off() {
        for _ in 0..2_000 {
            let deadline = Deadline::new(Time(100));
            let (passed, put_off) = std::thread::scope(|scope| {
                let passes = scope.spawn(|| deadline.has_passed(Time(150)));
                let put_off = deadline.put_off(Time(100), Time(200));
                (passes.join().expect("no panic"), put_off)
            });
            assert!(passed != put_off && passed == deadline.has_passed(Time(0)));
        }
    }

    #[test]
    fn the_end_of_time_has_not_passed() {
        assert!(!Deadline::new(Time::NEVER).has_passed(Time(1)));
    }
}
