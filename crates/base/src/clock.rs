//! The clocks. No other module reads a clock.
//!
//! Leases are measured by the boot-time clock. Unlike [`std::time::Instant`] on Linux, it keeps
//! running while the machine is suspended, so a laptop that slept past a lease knows so when it
//! resumes. The wall clock only stamps fencing tokens and messages; nothing that a lock depends on
//! compares the wall clocks of two machines.

use holdline_kernel::Time;
use pin_project_lite::pin_project;
use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The current time on a monotonic clock, which counts suspended time if the system has such a
/// clock.
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

/// The wall clock's time, in microseconds since 1970.
pub fn wall_micros() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(moment) = simulated::moment() {
        return moment.wall_micros;
    }
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Sleeps until this instant of [`now`]'s clock. The runtime's timers may stop while the machine is
/// suspended, so the clock is checked at least once a second.
///
/// # Cancel safety
///
/// Dropping the future changes nothing.
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
///
/// # Cancel safety
///
/// As that of the future.
pub fn within<F: Future>(limit: Time, future: F) -> impl Future<Output = Option<F::Output>> {
    let over = async move {
        match limit {
            Time::NEVER => pending().await,
            at => sleep_until(at).await,
        }
    };
    Within { future, over }
}

pin_project! {
    /// A future with a time limit. An `async` function would have room for its future twice, as an
    /// argument and as what it awaits; and so would each function around it.
    struct Within<F, O> {
        #[pin]
        future: F,
        #[pin]
        over: O,
    }
}

impl<F: Future, O: Future<Output = ()>> Future for Within<F, O> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let parts = self.project();
        if let Poll::Ready(output) = parts.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        parts.over.poll(cx).map(|()| None)
    }
}

/// Runs a future for this long, counted from this call. `None` if the time ran out first.
pub fn timeout<F: Future>(time: Duration, future: F) -> impl Future<Output = Option<F::Output>> {
    within(now().after(time), future)
}

/// Sleeps for this long.
///
/// # Cancel safety
///
/// Dropping the future changes nothing.
pub async fn pause(time: Duration) {
    sleep_until(now().after(time)).await;
}

/// Simulated clocks. A simulation polls a store's futures itself, on one thread, and sets the time
/// of each poll, so the code under test is the store's own, including its time limits.
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
        /// The earliest deadline of a sleeping future.
        wake: Time,
    }

    thread_local! {
        static MOMENT: Cell<Option<Moment>> = const { Cell::new(None) };
    }

    pub(super) fn moment() -> Option<Moment> {
        MOMENT.get()
    }

    /// Runs `work`, which polls futures, with this thread's clocks set to this instant. Also
    /// returns when the first sleeping future must be polled again.
    ///
    /// A future must always be polled inside this function, or always outside of it.
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
