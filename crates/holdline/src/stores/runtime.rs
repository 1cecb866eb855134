//! The background runtime of a kind of store, whose sessions or connections must go on while the
//! program is busy; and work that goes on when its caller has given up.

use crate::error::Result;
use crate::thread;
use std::future::{Future, pending};
use std::sync::OnceLock;
#[cfg(feature = "postgres")]
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio::runtime::Handle;
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

    /// Starts the runtime, unless it runs. A store calls this when it is opened, so that opening
    /// reports the error.
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

/// Work that goes on in the background when this is dropped.
#[cfg(feature = "postgres")]
pub(crate) struct Finished<F: Future<Output: Send> + Send + 'static> {
    work: Option<Pin<Box<F>>>,
    runtime: &'static Background,
}

#[cfg(feature = "postgres")]
impl<F: Future<Output: Send> + Send + 'static> Finished<F> {
    pub(crate) fn new(runtime: &'static Background, work: F) -> Self {
        Finished { work: Some(Box::pin(work)), runtime }
    }
}

#[cfg(feature = "postgres")]
impl<F: Future<Output: Send> + Send + 'static> Future for Finished<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

#[cfg(feature = "postgres")]
impl<F: Future<Output: Send> + Send + 'static> Drop for Finished<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}
