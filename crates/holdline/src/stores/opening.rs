//! The opening of a store that connects, with an error that says which other service listens at the
//! address.

use crate::clock;
use crate::error::{Error, Result};
use std::time::Duration;

/// How long a server may stay silent before it is probed, where a probe is harmless.
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) fn patience(limit: Duration) -> Duration {
    Duration::from_millis(700).min(limit / 2)
}

/// Opens a store within the limit, or returns `silent`. If the store is unreachable, or silent for
/// longer than `patience`, the error is the one that `foreign` finds for the address, if it does so
/// in time.
///
/// # Cancel safety
///
/// Dropping the future closes everything it has opened.
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
