//! The metrics: their names and values.
//!
//! The crate's front page documents them for users.

use holdline_kernel::Time;
use metrics::{counter, gauge, histogram};

/// A waiting acquisition, counted from creation to drop.
pub(crate) struct Waiting(Time);

impl Waiting {
    pub(crate) fn new(now: Time) -> Self {
        gauge!("holdline_waiting").increment(1.0);
        Waiting(now)
    }

    pub(crate) fn granted(&self, now: Time) {
        histogram!("holdline_acquire_seconds").record(self.0.until(now).as_secs_f64());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        gauge!("holdline_waiting").decrement(1.0);
    }
}

pub(crate) fn held(by: f64) {
    gauge!("holdline_held").increment(by);
}

pub(crate) fn released(now: Time, since: Time) {
    histogram!("holdline_hold_seconds").record(since.until(now).as_secs_f64());
}

pub(crate) fn lost(now: Time, since: Time) {
    counter!("holdline_losses_total").increment(1);
    released(now, since);
}

pub(crate) fn renewed(ok: bool) {
    // Two calls with constant labels: a label chosen at run time would be allocated each time.
    if ok {
        counter!("holdline_renewals_total", "outcome" => "ok").increment(1);
    } else {
        counter!("holdline_renewals_total", "outcome" => "failed").increment(1);
    }
}

pub(crate) fn handed_over() {
    counter!("holdline_handoffs_total").increment(1);
}
