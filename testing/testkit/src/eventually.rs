//! Waiting for events, for longer than any working step takes on a busy machine.

use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The poll interval.
const LOOK: Duration = Duration::from_millis(10);

/// Blocks until `look` returns a value.
///
/// # Panics
///
/// If there is none within a minute.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "{what}: not within {LIMIT:?}");
        std::thread::sleep(LOOK);
    }
}

/// Blocks until the check holds.
///
/// # Panics
///
/// If it does not within a minute.
pub fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    wait_for(what, || check().then_some(()));
}

/// Polls until the check holds.
///
/// # Panics
///
/// If it does not within a minute.
#[cfg(feature = "links")]
pub async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !check().await {
        assert!(Instant::now() < limit, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Awaits a future that must complete.
///
/// # Panics
///
/// If it does not within a minute.
#[cfg(feature = "links")]
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}"))
}

/// Acquires a lock, retrying errors of a busy machine, or of servers without a leader.
///
/// # Panics
///
/// If it fails with a permanent error.
#[cfg(feature = "library")]
pub async fn persist(lock: holdline::Mutex) -> holdline::Guard {
    loop {
        match lock.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.retryable(), "{error}"),
        }
    }
}

/// Releases a held lock. A busy machine may not answer in time: then it is released later, in the
/// background.
///
/// # Panics
///
/// If it was not held.
#[cfg(feature = "library")]
pub async fn released(guard: holdline::Guard) {
    if let Err(error) = guard.unlock().await {
        assert!(error.retryable(), "{error}");
    }
}
