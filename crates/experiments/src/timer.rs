//! A timer that is accurate to some tens of microseconds. The runtime's timer ticks once a
//! millisecond, so a lock meant to be held for 1 ms would be held for up to 2.

use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The current time in nanoseconds since the machine was started, on a clock shared by all
/// processes.
pub(crate) fn now() -> u64 {
    holdline::clock::now().0
}

/// A waiting future, ordered so that the earliest is on top of the heap.
struct Sleeper {
    due: u64,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

#[derive(Default)]
struct Timer {
    sleepers: Mutex<BinaryHeap<Sleeper>>,
    earlier: Condvar,
}

/// The name of the timer's thread.
pub(crate) const THREAD: &str = "bench-timer";

fn timer() -> &'static Timer {
    static TIMER: OnceLock<&'static Timer> = OnceLock::new();
    TIMER.get_or_init(|| {
        let timer: &'static Timer = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        thread.spawn(|| timer.run()).expect("the timer's thread can be started");
        timer
    })
}

impl Timer {
    fn run(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let at = now();
            while sleepers.peek().is_some_and(|first| first.due <= at) {
                if let Some(first) = sleepers.pop() {
                    let _ = first.wake.send(()); // it may have been dropped
                }
            }
            let next = sleepers.peek().map(|first| first.due.saturating_sub(at));
            let pause = Duration::from_nanos(next.unwrap_or(1_000_000_000));
            let waited = self.earlier.wait_timeout(sleepers, pause);
            sleepers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Waits until this time.
pub(crate) async fn until(due: u64) {
    if due <= now() {
        return;
    }
    let (wake, woken) = oneshot::channel();
    let timer = timer();
    let is_first = {
        let mut sleepers = timer.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = sleepers.peek().is_none_or(|first| due < first.due);
        sleepers.push(Sleeper { due, wake });
        is_first
    };
    if is_first {
        timer.earlier.notify_one();
    }
    let _ = woken.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn sleepers_wake_in_order_and_not_before_their_time() {
        let start = now();
        let (late, soon) = (start + 20_000_000, start + 5_000_000);
        let (late, soon) = tokio::join!(
            async {
                until(late).await;
                now() - start
            },
            async {
                until(soon).await;
                now() - start
            }
        );
        assert!(soon >= 5_000_000 && late >= 20_000_000, "{soon} {late}");
    }
}
