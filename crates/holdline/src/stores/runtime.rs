//! The background runtime of a kind of store, for sessions and connections that must go on while
//! the program is busy; and work that goes on when its callers give up or are not polled.

use crate::error::Result;
use crate::thread;
use std::future::{Future, pending};
use std::sync::OnceLock;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use {crate::sync::Mutex, tokio::sync::watch};

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

/// Work shared by several callers: a single task runs it, and every caller awaits its outcome. A
/// caller that drops its future, or keeps it without polling it, as in a `select!` whose other
/// branch goes on, delays nobody.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) struct Joint<T>(Mutex<Option<watch::Receiver<Option<T>>>>);

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl<T: Clone + Send + Sync + 'static> Joint<T> {
    pub(crate) fn new() -> Self {
        Joint(Mutex::new(None))
    }

    /// Awaits the work under way, or starts it. `None` if it panicked.
    pub(crate) async fn done<F>(
        &self,
        runtime: &'static Background,
        work: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut outcome = {
            let mut last = self.0.lock();
            // It has no outcome yet, and its task still exists.
            let under_way = last.take_if(|it| it.borrow().is_none() && it.has_changed().is_ok());
            let outcome = under_way.unwrap_or_else(|| {
                let (tell, outcome) = watch::channel(None);
                let work = work();
                runtime.spawn(async move { tell.send_replace(Some(work.await)) });
                outcome
            });
            last.insert(outcome).clone()
        };
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Semaphore;

    static BACKGROUND: Background = Background::new("joint-test");

    #[tokio::test]
    async fn work_is_done_once_for_those_that_wait_and_by_none_of_them() {
        BACKGROUND.start().expect("there are threads");
        let (joint, ends) = (Joint::new(), Arc::new(Semaphore::new(0)));
        let count = Arc::new(AtomicU32::new(0));
        let work = || {
            let (ends, count) = (Arc::clone(&ends), Arc::clone(&count));
            async move {
                let _end = ends.acquire().await;
                count.fetch_add(1, Ordering::Relaxed) + 1
            }
        };
        let mut kept = Box::pin(joint.done(&BACKGROUND, work));
        assert!(kept.as_mut().now_or_never().is_none());
        assert!(joint.done(&BACKGROUND, work).now_or_never().is_none(), "it is dropped");
        let mut polled = Box::pin(joint.done(&BACKGROUND, work));
        assert!(polled.as_mut().now_or_never().is_none());
        ends.add_permits(1);
        assert_eq!(polled.await, Some(1));
        assert_eq!(kept.await, Some(1));
        assert_eq!(joint.done(&BACKGROUND, work).await, Some(2), "that was over");
        let panics = || async { panic!("as it should") };
        assert_eq!(Joint::<u32>::new().done(&BACKGROUND, panics).await, None);
    }
}
