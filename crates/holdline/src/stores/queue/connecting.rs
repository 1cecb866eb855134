//! The making of connections to an SQL server: one at a time, with pauses after failures.

use super::sql::{Fault, answered};
use crate::clock;
use crate::stores::runtime::Background;
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The pauses after failed attempts to connect.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(10), Duration::from_millis(250)).jitter(50);

/// The attempts to connect of a store. All calls that want a connection wait for the one that is
/// under way and share its outcome, so that calls which give up early do not each leave a handshake
/// unfinished. A task makes it, so a caller that drops its future, or keeps it without polling it,
/// as in a `select!` whose other branch goes on, delays nobody.
#[derive(Default)]
pub(super) struct Connecting {
    last: Mutex<Option<watch::Receiver<Option<Outcome>>>>,
    failures: Arc<Mutex<Failures>>,
}

type Outcome = Result<(), Fault>;

impl Connecting {
    /// Awaits the attempt under way, or makes one within this time, after a pause if the one before
    /// it failed.
    pub(super) async fn attempt<F>(
        &self,
        runtime: &'static Background,
        time: Duration,
        connect: impl FnOnce() -> F,
    ) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut outcome = {
            let mut last = self.last.lock();
            // It has no outcome yet, and its task still exists.
            let under_way = last.take_if(|it| it.borrow().is_none() && it.has_changed().is_ok());
            let outcome = under_way.unwrap_or_else(|| {
                let (tell, outcome) = watch::channel(None);
                let attempt = paused(Arc::clone(&self.failures), time, connect());
                runtime.spawn(async move { tell.send_replace(Some(attempt.await)) });
                outcome
            });
            last.insert(outcome).clone()
        };
        let panicked = || Err(Fault::Unsent("the attempt to connect was ended".to_owned()));
        let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|it| it.clone());
        outcome.unwrap_or_else(panicked)
    }
}

async fn paused(
    failures: Arc<Mutex<Failures>>,
    time: Duration,
    connect: impl Future<Output = Outcome>,
) -> Outcome {
    let next = failures.lock().next;
    clock::sleep_until(next).await;
    let outcome = answered(clock::now().after(time), connect).await.map_err(Fault::unsent);
    let mut failures = failures.lock();
    if outcome.is_ok() {
        *failures = Failures::default();
    } else {
        failures.add(PAUSES);
    }
    outcome
}

/// The number of failures in a row, and when the next attempt may be made.
#[derive(Default)]
pub(super) struct Failures {
    count: u32,
    pub(super) next: Time,
}

impl Failures {
    pub(super) fn add(&mut self, pauses: Backoff) {
        self.next = clock::now().after(pauses.pause(self.count, fastrand::u64(..)));
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Semaphore;

    static BACKGROUND: Background = Background::new("connecting-test");
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_attempt_is_made_once_for_those_that_wait_and_by_none_of_them() {
        BACKGROUND.start().expect("there are threads");
        let (connecting, ends) = (Connecting::default(), Arc::new(Semaphore::new(0)));
        let count = Arc::new(AtomicU32::new(0));
        let connect = || {
            let (ends, count) = (Arc::clone(&ends), Arc::clone(&count));
            async move {
                let _end = ends.acquire().await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let attempt = || connecting.attempt(&BACKGROUND, LONG, connect);
        let mut kept = Box::pin(attempt());
        assert!(kept.as_mut().now_or_never().is_none());
        assert!(attempt().now_or_never().is_none(), "it is dropped");
        let mut polled = Box::pin(attempt());
        assert!(polled.as_mut().now_or_never().is_none());
        ends.add_permits(1);
        polled.await.expect("it succeeds");
        kept.await.expect("it has succeeded");
        assert_eq!(count.load(Ordering::Relaxed), 1);
        attempt().await.expect("it succeeds, too");
        assert_eq!(count.load(Ordering::Relaxed), 2, "the first one was over");
        let panics = || async { panic!("as it should") };
        let ended = connecting.attempt(&BACKGROUND, LONG, panics).await;
        assert!(matches!(ended, Err(Fault::Unsent(_))), "{ended:?}");
    }

    #[tokio::test]
    async fn nothing_was_sent_if_connecting_fails_and_the_next_attempt_pauses() {
        BACKGROUND.start().expect("there are threads");
        let connecting = Connecting::default();
        let fails = || async { Err(Fault::Broken("it was closed".to_owned())) };
        let ended = connecting.attempt(&BACKGROUND, LONG, fails).await;
        assert!(matches!(ended, Err(Fault::Unsent(_))), "{ended:?}");
        let next = connecting.failures.lock().next;
        let began = connecting.attempt(&BACKGROUND, LONG, || async { Ok(()) });
        began.await.expect("it succeeds");
        assert!(clock::now() >= next);
        assert_eq!(connecting.failures.lock().next, Time::default());
    }
}
