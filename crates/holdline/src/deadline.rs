//! The deadline of a held lock: renewals put it off, and every look says whether it has passed.
//! Once a look has said so it stays passed, also for a renewal that was in time, and whose thread
//! was stopped between looking at the clock and putting the deadline off.

use holdline_kernel::Time;
use std::sync::atomic::{AtomicU64, Ordering};

/// A time, of which the lowest bit, a nanosecond, says that it was seen to have passed.
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

    /// Whether it has passed, now or at an earlier look.
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

    /// Puts it off from one time to another, unless it was seen to have passed or is another by
    /// now. Returns whether it did.
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
        // A renewal has looked at the clock in time, and is stopped.
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
