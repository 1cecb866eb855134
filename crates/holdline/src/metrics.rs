//! What can be observed from outside: the names of metrics and the values they get.
//!
//! They are documented in the crate's front page, for users.

use holdline_kernel::Time;
use metrics::{counter, gauge, histogram};

/// Counts one acquisition as waiting for as long as it lives.
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
    // Each with its label in the code: one that is chosen here would be built anew each time.
    if ok {
        counter!("holdline_renewals_total", "outcome" => "ok").increment(1);
    } else {
        counter!("holdline_renewals_total", "outcome" => "failed").increment(1);
    }
}

pub(crate) fn handed_over() {
    counter!("holdline_handoffs_total").increment(1);
}
