//! The clocks. This is the only module that reads one.
//!
//! Leases are measured by the boot-time clock: unlike [`std::time::Instant`] on Linux it goes on
//! while the machine is suspended, so a laptop that was suspended past its lease knows so when it
//! resumes. The wall clock only stamps fencing tokens and messages; no decision compares the wall
//! clocks of two machines.

use holdline_kernel::Time;
use std::future::{Future, pending};
use std::time::Duration;

/// Now, on a monotonic clock that counts suspended time where the system has one.
pub fn now() -> Time {
    #[cfg(feature = "simulation")]
    if let Some(moment) = simulated::moment() {
        return moment.now;
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    Time(u64::try_from(at.tv_sec).unwrap_or(0) * 1_000_000_000 + at.tv_nsec.unsigned_abs())
}

/// Microseconds since 1970 by the wall clock.
pub fn wall_micros() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(moment) = simulated::moment() {
        return moment.wall_micros;
    }
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Sleeps until an instant of [`now`]'s clock. The runtime's timers may stop while the machine is
/// suspended, so the clock is checked at least once a second.
pub async fn sleep_until(at: Time) {
    #[cfg(feature = "simulation")]
    if simulated::moment().is_some() {
        return simulated::sleep_until(at).await;
    }
    loop {
        let left = now().until(at);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}

/// The instant `wait` from now, on the standard library's clock.
pub fn instant_in(wait: Duration) -> std::time::Instant {
    std::time::Instant::now() + wait
}

/// Runs a future with a time limit. `None` if the limit came first.
pub async fn within<F: Future>(limit: Time, future: F) -> Option<F::Output> {
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

/// Runs a future for this long. `None` if the time came first.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    within(now().after(time), future).await
}

/// Sleeps for this long.
pub async fn pause(time: Duration) {
    sleep_until(now().after(time)).await;
}

/// Simulated clocks. A simulation polls a store's futures itself, on one thread, and sets the time
/// for each poll, so that the code under test is the store's own, down to its time limits.
#[cfg(feature = "simulation")]
pub mod simulated {
    use super::Time;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::Poll;

    #[derive(Clone, Copy)]
    pub(super) struct Moment {
        pub(super) now: Time,
        pub(super) wall_micros: u64,
        /// The earliest deadline of a future that sleeps.
        wake: Time,
    }

    thread_local! {
        static MOMENT: Cell<Option<Moment>> = const { Cell::new(None) };
    }

    pub(super) fn moment() -> Option<Moment> {
        MOMENT.get()
    }

    /// Runs `work`, which polls futures, with the clocks of this thread set to this instant.
    /// Returns also when the first of the sleeping futures is to be polled again.
    ///
    /// A future must always be polled inside this function, or never.
    pub fn at<T>(now: Time, wall_micros: u64, work: impl FnOnce() -> T) -> (T, Time) {
        let before = MOMENT.replace(Some(Moment { now, wall_micros, wake: Time::NEVER }));
        let done = work();
        let wake = MOMENT.replace(before).map_or(Time::NEVER, |moment| moment.wake);
        (done, wake)
    }

    /// Needs no waker: the simulation polls again at the returned time.
    pub(super) async fn sleep_until(at: Time) {
        poll_fn(|_| match MOMENT.get() {
            Some(moment) if moment.now < at => {
                MOMENT.set(Some(Moment { wake: moment.wake.min(at), ..moment }));
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }
}
