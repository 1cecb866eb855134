//! The library's clock, and waiting on the runtime's.

pub(crate) use holdline::clock::{now, wall_micros};
use holdline_kernel::Time;
use std::future::Future;
use std::time::Duration;

/// Sleeps for this long.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Runs a future with a time limit. `None` if the limit came first.
pub(crate) async fn within<F: Future>(limit: Time, future: F) -> Option<F::Output> {
    tokio::time::timeout(now().until(limit), future).await.ok()
}
