//! The opening of a store that connects, with an error that says what listens at its address
//! instead.

use crate::clock;
use crate::error::{Error, Result};
use std::time::Duration;

/// The patience with a silent server before it is probed, where a probe harms nobody.
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) fn patience(limit: Duration) -> Duration {
    Duration::from_millis(700).min(limit / 2)
}

/// Opens a store within the limit, or returns `silent`. If it cannot be reached, or is silent for
/// longer than `patience`, the error is what `foreign` finds out about the address, if it does in
/// time.
///
/// # Cancel safety
///
/// Dropping the future closes what was opened.
pub(crate) async fn open<T, F: Future<Output = Option<Error>>>(
    limit: Duration,
    patience: Duration,
    opening: impl Future<Output = Result<T>> + Unpin,
    silent: Error,
    foreign: impl Fn() -> F,
) -> Result<T> {
    let end = clock::now().after(limit);
    let slow = async {
        clock::pause(patience).await;
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
