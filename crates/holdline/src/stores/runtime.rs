//! The background runtime of a kind of store, for sessions and connections that must go on while
//! the program is busy.

use crate::error::Result;
use crate::thread;
use std::future::{Future, pending};
use std::sync::OnceLock;
use tokio::runtime::Handle;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use tokio::task::AbortHandle;
use tokio::task::JoinHandle;

/// The runtime of all stores of one kind in this process, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Background {
    kind: &'static str,
    handle: OnceLock<Handle>,
}

impl Background {
    pub(crate) const fn new(kind: &'static str) -> Self {
        Background { kind, handle: OnceLock::new() }
    }

    /// Starts the runtime unless it is running. A store calls this when it is opened, so that
    /// opening reports the error.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the thread cannot be started; the next
    /// call tries again.
    pub(crate) fn start(&'static self) -> Result<()> {
        let start = || thread::start(&format!("holdline-{}", self.kind), pending::<()>);
        thread::made_once(&self.handle, start).map(drop)
    }

    /// Runs a task on the runtime, which must have been started.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.get().expect("it was started when the store was opened").spawn(task)
    }
}

/// A task that is aborted when this is dropped.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
