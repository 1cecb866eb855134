//! What a blocking guard holds, and its release when the guard is dropped.

use super::wait;
use crate::error::Result;
use crate::sync::contained;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use tokio::runtime::Handle;

/// A value with a release that reports its result: a guard, a leadership, a membership.
pub(super) trait Release {
    /// Releases it. Dropping the future does so in the background.
    fn release(self) -> impl Future<Output = Result<()>>;
}

/// A held value. Dropping it waits for the release, for as long as a release that reports its
/// result; but not on a thread of a Tokio runtime, where it goes on in the background.
pub(super) struct Held<R: Release>(Option<R>);

impl<R: Release> Held<R> {
    pub(super) fn new(value: R) -> Self {
        Held(Some(value))
    }

    /// Takes the value out.
    pub(super) fn take(mut self) -> R {
        self.0.take().expect("it is taken out only at the end")
    }
}

impl<R: Release> Deref for Held<R> {
    type Target = R;
    fn deref(&self) -> &R {
        self.0.as_ref().expect("it is taken out only at the end")
    }
}

impl<R: Release> Drop for Held<R> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        let release = value.release();
        if Handle::try_current().is_err_and(|error| error.is_missing_context()) {
            contained(|| drop(wait(release)));
        }
    }
}

impl<R: Release + fmt::Debug> fmt::Debug for Held<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
