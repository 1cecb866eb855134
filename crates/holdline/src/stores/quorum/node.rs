//! One node of a quorum, as one handle sees it: its store, its health, and the places on it that
//! are still to be released.
//!
//! A node that did not answer in time is silent. While a majority of the others answers, it is left
//! out of the rounds, and only probed in the background: one probe at a time, with growing pauses.
//! An answer that comes quickly, even a refusal, ends the silence.

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

/// One node of a quorum.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) store: Arc<dyn Store>,
    pub(super) health: Arc<Health>,
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
        Node { store, health, leaving }
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
