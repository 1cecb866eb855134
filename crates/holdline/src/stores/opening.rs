//! The opening of a store that connects, with an error that says what listens at its address
//! instead.

use crate::clock;
use crate::error::{Error, Result};
use std::time::Duration;

/// The time after which a slow opening probes what listens at the address.
const PROBE_AFTER: Duration = Duration::from_millis(700);

/// Opens a store within the limit, or returns `silent`. If it cannot be reached, the error is what
/// `foreign` finds out about the address, if it does in time.
///
/// # Cancel safety
///
/// Dropping the future closes what was opened.
pub(crate) async fn open<T, F: Future<Output = Option<Error>>>(
    limit: Duration,
    opening: impl Future<Output = Result<T>> + Unpin,
    silent: Error,
    foreign: impl Fn() -> F,
) -> Result<T> {
    let end = clock::now().after(limit);
    let slow = async {
        clock::pause(PROBE_AFTER.min(limit / 2)).await;
        foreign().await
    };
    let error = tokio::select! {
        opened = opening => match opened {
            Err(error) if error.retryable() => error,
            opened => return opened,
        },
        Some(error) = slow => return Err(error),
        () = clock::sleep_until(end) => silent,
    };
    Err(clock::within(end, foreign()).await.flatten().unwrap_or(error))
}
