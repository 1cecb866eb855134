//! Waiting for what must come, for longer than anything that is not broken takes on a busy machine.

use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(40);

/// Looks until it is so.
///
/// # Panics
///
/// If it is not within 40 s.
pub async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !check().await {
        assert!(Instant::now() < limit, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for what must come.
///
/// # Panics
///
/// If it does not come within 40 s.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}"))
}

/// Locks, however often that fails on a machine that is busy, or with servers that have no leader.
///
/// # Panics
///
/// If it fails with what is not worth another try.
#[cfg(feature = "library")]
pub async fn persist(lock: holdline::Mutex) -> holdline::Guard {
    loop {
        match lock.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.retryable(), "{error}"),
        }
    }
}
