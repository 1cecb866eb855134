//! A lazily opened store: a node of a quorum that was unreachable when the quorum was opened.
//!
//! One attempt runs at a time, in a task of its own, with growing pauses between attempts. A call
//! waits for the current attempt, as long as its caller likes; between attempts it fails at once,
//! with the error of the last one.

use super::fault::late;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    Async, AsyncStore, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Store, Ticket,
    TicketId,
};
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Opens the store.
pub(crate) type Opener = Arc<dyn Fn() -> Async<'static, Arc<dyn Store>> + Send + Sync>;

/// A store that is opened on first use.
pub(crate) struct Lazy {
    shared: Arc<Shared>,
    /// The store, as this handle uses it.
    mine: Arc<OnceLock<Arc<dyn Store>>>,
}

/// The state that a store and its background handles share.
struct Shared {
    address: String,
    /// The capabilities assumed before it is open. The store is refused if they are wrong.
    capabilities: Capabilities,
    opener: Opener,
    state: Mutex<State>,
    /// Changes at the end of every attempt.
    ended: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    opened: Option<Arc<dyn Store>>,
    loss_hint: Option<LossHint>,
    opening: bool,
    failures: u32,
    /// When the next attempt is due, and why the last one failed.
    next: Time,
    error: Option<(ErrorKind, String)>,
}

/// The time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(5);

impl Lazy {
    /// Creates a store with this address for messages, which shows no secret.
    pub(crate) fn new(address: String, capabilities: Capabilities, opener: Opener) -> Self {
        let (state, ended) = (Mutex::default(), watch::Sender::new(()));
        let shared = Arc::new(Shared { address, capabilities, opener, state, ended });
        Lazy { shared, mine: Arc::default() }
    }

    /// The store, once it is open.
    async fn store(&self) -> Result<Arc<dyn Store>> {
        if let Some(store) = self.mine.get() {
            return Ok(Arc::clone(store));
        }
        let mut ended = self.shared.ended.subscribe();
        if self.begin()? {
            // The sender lives as long as this handle.
            let _ = ended.changed().await;
        }
        let state = self.shared.state.lock();
        match &state.opened {
            Some(opened) => Ok(Arc::clone(self.mine.get_or_init(|| opened.background_handle()))),
            None => Err(state.why()),
        }
    }

    /// Makes sure that an attempt is in progress, unless the store is open or it is too soon.
    fn begin(&self) -> Result<bool> {
        let mut state = self.shared.state.lock();
        if state.opened.is_some() || state.opening {
            return Ok(state.opening);
        }
        let Ok(runtime) = Handle::try_current() else { return Err(state.why()) };
        if clock::now() < state.next {
            return Err(state.why());
        }
        state.opening = true;
        drop(state);
        let attempt = Attempt { shared: Arc::clone(&self.shared), outcome: None };
        runtime.spawn(attempt.run(Arc::clone(&self.mine)));
        Ok(true)
    }
}

impl State {
    fn why(&self) -> Error {
        let known = self.error.clone();
        let (kind, message) =
            known.unwrap_or_else(|| (ErrorKind::Unavailable, "it was not reached yet".to_owned()));
        Error::new(kind, message)
    }
}

impl Shared {
    async fn open(&self) -> Result<Arc<dyn Store>> {
        let opening = clock::within(clock::now().after(ATTEMPT), (self.opener)()).await;
        let store = opening.unwrap_or_else(|| Err(late()))?;
        let (taken, found) = (self.capabilities, store.capabilities());
        if (taken.fencing_tokens, taken.token_ranges) != (found.fencing_tokens, found.token_ranges)
        {
            return Err(super::unfit(&self.address, found.fencing_tokens));
        }
        Ok(store)
    }
}

/// An attempt in progress. It also ends with the runtime that it runs on.
struct Attempt {
    shared: Arc<Shared>,
    outcome: Option<Result<Arc<dyn Store>>>,
}

impl Attempt {
    async fn run(mut self, mine: Arc<OnceLock<Arc<dyn Store>>>) {
        let outcome = self.shared.open().await;
        if let Ok(store) = &outcome {
            // This handle's runtime is the one that the store was opened on.
            let _ = mine.set(Arc::clone(store));
        }
        self.outcome = Some(outcome);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let backoff =
            Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2)).jitter(50);
        let mut state = self.shared.state.lock();
        state.opening = false;
        match self.outcome.take() {
            Some(Ok(store)) => {
                if let Some(loss_hint) = state.loss_hint.take() {
                    store.on_loss_hint(loss_hint);
                }
                state.opened = Some(store);
            }
            Some(Err(error)) => {
                let pause = backoff.pause(state.failures, fastrand::u64(..));
                state.next = clock::now().after(pause);
                state.failures = state.failures.saturating_add(1);
                if !error.retryable() {
                    let node = &self.shared.address;
                    tracing::warn!(node, %error, "a node of a quorum cannot be used");
                }
                state.error = Some((error.kind(), format!("{error:#}")));
            }
            None => {}
        }
        drop(state);
        self.shared.ended.send_replace(());
    }
}

impl AsyncStore for Lazy {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        self.store().await?.enter(line, ticket, note, how).await
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        self.store().await?.leave(line, id).await
    }

    async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        self.store().await?.watch(line, id).await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.store().await?.snapshot(line).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.store().await?.list(prefix).await
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        self.store().await?.evict(line, id, note).await
    }

    fn capabilities(&self) -> Capabilities {
        self.mine.get().map_or(self.shared.capabilities, |store| store.capabilities())
    }

    fn background_handle(&self) -> Self {
        Lazy { shared: Arc::clone(&self.shared), mine: Arc::default() }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let mut state = self.shared.state.lock();
        match &state.opened {
            Some(opened) => opened.on_loss_hint(loss_hint),
            None => state.loss_hint = Some(loss_hint),
        }
    }

    fn address(&self) -> String {
        self.shared.address.clone()
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.address)
    }
}
