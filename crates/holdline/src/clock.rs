//! The only place that reads a clock.
//!
//! Leases are judged by the boot-time clock: unlike [`std::time::Instant`] on Linux it goes on
//! while the machine is suspended, so a laptop that slept past its lease knows so when it wakes.
//! The wall clock only ever stamps fencing tokens and tells people when something was; no decision
//! compares the wall clocks of two machines.

use holdline_kernel::Time;
use std::future::{Future, pending};
use std::time::Duration;

/// Now, on a monotonic clock that counts suspended time where the system has one.
pub fn now() -> Time {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    Time(u64::try_from(at.tv_sec).unwrap_or(0) * 1_000_000_000 + at.tv_nsec.unsigned_abs())
}

/// Microseconds since 1970 by the wall clock.
pub fn wall_micros() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Sleeps until an instant of [`now`]'s clock. The runtime's timers may stop while the machine is
/// suspended, so it looks again at least once a second.
pub(crate) async fn sleep_until(at: Time) {
    loop {
        let left = now().until(at);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}

/// The instant `wait` from now, on the standard library's clock.
pub(crate) fn instant_in(wait: Duration) -> std::time::Instant {
    std::time::Instant::now() + wait
}

/// Runs a future until it is done or the time is up.
pub(crate) async fn within<F: Future>(limit: Time, future: F) -> Option<F::Output> {
    let over = async {
        match limit {
            Time::NEVER => pending().await,
            at => sleep_until(at).await,
        }
    };
    tokio::select! {
        biased;
        output = future => Some(output),
        () = over => None,
    }
}

/// Waits.
pub(crate) async fn pause(time: Duration) {
    sleep_until(now().after(time)).await;
}
