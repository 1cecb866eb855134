//! One node of a quorum, as one handle sees it: its store, its health, and the places on it that
//! are still to be released.
//!
//! A node that did not answer in time is silent. While a majority of the others answers, it is left
//! out of the rounds, and only probed in the background: one probe at a time, with growing pauses.
//! An answer ends the silence, even a refusal or a late one; so does an error that comes quickly.

use super::leaving::Leaving;
use super::round::Answer;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::names::Name;
use crate::store::{Async, Store, TicketId};
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time, Vote};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// One node of a quorum.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) store: Arc<dyn Store>,
    pub(super) health: Arc<Health>,
    /// Limits the concurrent requests for places that are missing there.
    pub(super) repairs: Arc<Semaphore>,
    leaving: Arc<Leaving>,
}

/// The health of a node: whether it answers.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when it has been silent.
    since: Option<Time>,
    probing: bool,
    probes: u32,
    /// When the next probe is due.
    next: Time,
}

/// The most concurrent requests for missing places.
const REPAIRS: usize = 256;
/// The time limit of a probe.
const PROBE: Duration = Duration::from_secs(5);
/// An error within this time counts as an answer: asking such a node costs little.
const SOON: Duration = Duration::from_millis(200);

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Records the outcome of a call that began at `sent`.
    pub(super) fn ended(&self, sent: Time, error: Option<&Error>) {
        let answered = error.is_none_or(|error| !error.retryable());
        if answered || sent.until(clock::now()) < SOON {
            self.heard();
        } else {
            self.silent();
        }
    }

    fn heard(&self) {
        let mut state = self.state();
        *state = State { probing: state.probing, ..State::default() };
    }

    /// Records that the node did not answer in time.
    pub(super) fn silent(&self) {
        // Without a runtime nothing can probe it in the background.
        if Handle::try_current().is_ok() {
            self.state().since.get_or_insert_with(clock::now);
        }
    }
}

impl Node {
    pub(super) fn new(store: Arc<dyn Store>, silent: bool) -> Self {
        let health = Arc::new(Health::default());
        if silent {
            health.silent();
        }
        let leaving = Arc::new(Leaving::new(Arc::clone(&store), Arc::clone(&health)));
        Node { store, health, repairs: Arc::new(Semaphore::new(REPAIRS)), leaving }
    }

    /// A handle of the same node for another thread.
    pub(super) fn background_handle(&self) -> Self {
        Node::new(self.store.background_handle(), self.is_silent())
    }

    pub(super) fn is_silent(&self) -> bool {
        self.health.state().since.is_some()
    }

    /// The error of a request that is not sent because the node is silent.
    pub(super) fn left_out(&self) -> Error {
        let now = clock::now();
        let since = self.health.state().since.unwrap_or(now).until(now);
        let message = format!("it has not answered for {:.1} s", since.as_secs_f32());
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Probes in the background whether the node answers again, unless a probe is in progress. The
    /// probe changes nothing.
    pub(super) fn probe(&self, line: &Name) {
        let Ok(runtime) = Handle::try_current() else { return };
        let now = clock::now();
        let mut state = self.health.state();
        if state.since.is_none() || state.probing || now < state.next {
            return;
        }
        let backoff =
            Backoff::exponential(Duration::from_millis(20), Duration::from_secs(1)).jitter(50);
        let pause = backoff.pause(state.probes, fastrand::u64(..));
        let first = state.probes == 0;
        state.probes = state.probes.saturating_add(1);
        state.probing = true;
        drop(state);
        let (store, line, probe) =
            (Arc::clone(&self.store), line.clone(), Probe(Arc::clone(&self.health), pause));
        runtime.spawn(async move {
            match clock::within(now.after(PROBE), store.snapshot(&line)).await {
                Some(answer) => probe.0.ended(now, answer.as_ref().err()),
                None if first => {
                    tracing::warn!(node = store.address(), "a node of the quorum is silent");
                }
                None => {}
            }
        });
    }

    /// Releases a place there. The request completes whether or not its caller waits for the
    /// answer.
    pub(super) fn leave(&self, line: &Name, id: TicketId) -> Async<'static, Answer<bool>> {
        let there = self.leaving.leave(line, id);
        Box::pin(async move {
            let there = there.await?;
            Ok((if there { Vote::Yes } else { Vote::No }, there))
        })
    }

    /// Whether a place of this ticket is yet to be released there. What the same ticket got
    /// meanwhile would go with it.
    pub(super) fn is_leaving(&self, id: TicketId) -> bool {
        self.leaving.has(id)
    }

    /// Waits for the requests to release this ticket's place that are under way. Returns whether
    /// none is left to repeat.
    pub(super) async fn has_left(&self, id: TicketId) -> bool {
        self.leaving.are_done(id).await
    }

    /// Releases a place there as soon as the node answers.
    pub(super) fn leave_later(&self, line: &Name, id: TicketId) {
        self.leaving.later(line, id);
    }
}

/// A probe in progress. It also ends with the runtime that it runs on.
struct Probe(Arc<Health>, Duration);

impl Drop for Probe {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.probing = false;
        state.next = clock::now().after(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::quorum::lazy::away;

    const HOUR: Duration = Duration::from_secs(3600);

    fn node(silent: bool) -> (Node, Name) {
        (Node::new(Arc::new(away("a test")), silent), Name::new("x").expect("fine"))
    }

    #[tokio::test]
    async fn an_answer_or_an_error_that_comes_soon_ends_the_silence() {
        let error = |kind| Error::new(kind, "a test");
        let (away, denied) = (error(ErrorKind::Unavailable), error(ErrorKind::Denied));
        let now = clock::now();
        let long_ago = Time(0); // when the machine was started
        for (sent, outcome, silent) in [
            (long_ago, None, false),
            (long_ago, Some(&denied), false),
            (long_ago, Some(&away), true),
            (now.after(HOUR), Some(&away), false),
        ] {
            for before in [false, true] {
                let (node, _) = node(before);
                node.health.ended(sent, outcome);
                assert_eq!(node.is_silent(), silent, "{outcome:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_node_is_probed_only_if_it_is_silent_and_that_is_due() {
        let (heard, line) = node(false);
        heard.probe(&line);
        assert!(!heard.health.state().probing);
        let (silent, _) = node(true);
        silent.probe(&line);
        assert!(silent.health.state().probing, "the task has begun");
        assert_eq!(silent.health.state().probes, 1);
        silent.probe(&line);
        assert_eq!(silent.health.state().probes, 1, "one at a time");
        // It ends without an answer.
        let pause = Duration::from_secs(10);
        drop(Probe(Arc::clone(&silent.health), pause));
        silent.probe(&line);
        assert!(!silent.health.state().probing, "too soon");
        assert!(silent.health.state().next > clock::now().after(pause / 2));
        silent.health.state().next = clock::now();
        silent.probe(&line);
        assert_eq!(silent.health.state().probes, 2);
        // It ends with one.
        silent.health.heard();
        let state = silent.health.state();
        assert!(state.probing && state.probes == 0 && state.since.is_none());
    }

    #[tokio::test]
    async fn a_handle_of_a_silent_node_is_silent_too_until_it_hears_by_itself() {
        let (node, _) = node(true);
        let handle = node.background_handle();
        assert!(handle.is_silent());
        node.health.heard();
        assert!(handle.is_silent() && !node.background_handle().is_silent());
    }
}
