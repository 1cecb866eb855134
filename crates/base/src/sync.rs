//! A mutex that ignores poisoning, and a call that contains panics.
//!
//! The data that this crate's mutexes guard is consistent wherever code under them can panic, or is
//! repaired by the next user; and a panic elsewhere must not spread to all users of the lock.

use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

/// Calls a caller's code, or wakes its task by a waker of its executor. If that panics, the panic
/// is reported by its hook and ends here: other callers depend on the task that runs this.
pub fn contained(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Polls a future with a waker at which panics end, as in [`contained`]: others wake it, perhaps
/// under a mutex that a panic would poison.
///
/// # Cancel safety
///
/// As that of the future.
pub fn contain_wakers<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Contained { future, kept: None }
}

pin_project! {
    // Not an `async` function, for the reason given at `clock::Within`.
    struct Contained<F> {
        #[pin]
        future: F,
        // The last waker, and the one made from it.
        kept: Option<(Waker, Waker)>,
    }
}

impl<F: Future> Future for Contained<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let parts = self.project();
        let same = parts.kept.take_if(|(theirs, _)| theirs.will_wake(cx.waker()));
        let (_, ours) = parts.kept.insert(same.unwrap_or_else(|| {
            let theirs = cx.waker().clone();
            (theirs.clone(), Arc::new(ContainedWaker(theirs)).into())
        }));
        parts.future.poll(&mut Context::from_waker(ours))
    }
}

/// A waker at which panics end.
struct ContainedWaker(Waker);

impl Wake for ContainedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        contained(|| self.0.wake_by_ref());
    }
}

/// [`std::sync::Mutex`] without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex around this value.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Locks the mutex, waiting for other threads.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use tokio::sync::Notify;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it should");
        }
    }

    #[test]
    fn a_waker_that_panics_harms_nobody_who_calls_it() {
        let (notify, waker) = (Notify::new(), Arc::new(Panics).into());
        let mut waits = pin!(contain_wakers(notify.notified()));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending() && poll().is_pending());
        notify.notify_one();
        assert!(poll().is_ready());
    }
}
