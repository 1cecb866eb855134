//! A mutex that ignores poisoning, and a call that contains panics.
//!
//! The data that this crate's mutexes guard is consistent wherever code under them can panic, or is
//! repaired by the next user; and a panic elsewhere must not spread to all users of the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, PoisonError, TryLockError};

/// Calls a caller's code, or wakes its task by a waker of its executor. If that panics, the panic
/// is reported by its hook and ends here: other callers depend on the task that runs this.
pub fn contained(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
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
