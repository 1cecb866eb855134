//! A lazily opened store: a node of a quorum that was unreachable when the quorum was opened.
//!
//! Each handle has one attempt at a time, in a task on its caller's runtime: that of another handle
//! may not be driven. If its own is not, it begins another when the time of the first is over.
//! Between attempts are growing pauses. A call waits for the first attempt to
//! end, as long as its caller likes; between attempts it fails at once, with the error of the last
//! one.

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Opens the store.
pub(crate) type Opener = Arc<dyn Fn() -> Async<'static, Arc<dyn Store>> + Send + Sync>;

/// A store that is opened on first use.
pub(crate) struct Lazy {
    shared: Arc<Shared>,
    mine: Arc<Mine>,
}

/// The state of one handle.
#[derive(Default)]
struct Mine {
    /// The store, as this handle uses it.
    store: OnceLock<Arc<dyn Store>>,
    /// Until when an attempt is in progress, or 0. The runtime that it runs on may not be driven.
    opening: AtomicU64,
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
        if let Some(store) = self.mine.store.get() {
            return Ok(Arc::clone(store));
        }
        let mut ended = self.shared.ended.subscribe();
        if self.begin()? {
            // The sender lives as long as this handle.
            let _ = ended.changed().await;
        }
        let state = self.shared.state.lock();
        match &state.opened {
            Some(opened) => {
                Ok(Arc::clone(self.mine.store.get_or_init(|| opened.background_handle())))
            }
            None => Err(state.why()),
        }
    }

    /// Makes sure that an attempt is in progress, unless the store is open or it is too soon.
    fn begin(&self) -> Result<bool> {
        let state = self.shared.state.lock();
        if state.opened.is_some() {
            return Ok(false);
        }
        let now = clock::now();
        if now.0 < self.mine.opening.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let Ok(runtime) = Handle::try_current() else { return Err(state.why()) };
        if now < state.next {
            return Err(state.why());
        }
        let until = now.after(ATTEMPT).0;
        self.mine.opening.store(until, Ordering::Relaxed);
        drop(state);
        let (shared, mine) = (Arc::clone(&self.shared), Arc::clone(&self.mine));
        runtime.spawn(Attempt { shared, mine, until, outcome: None }.run());
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
    mine: Arc<Mine>,
    until: u64,
    outcome: Option<Result<Arc<dyn Store>>>,
}

impl Attempt {
    async fn run(mut self) {
        self.outcome = Some(self.shared.open().await);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let backoff =
            Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2)).jitter(50);
        let mut unusable = None;
        let mut state = self.shared.state.lock();
        // Unless another attempt was begun since. It changes under the mutex only.
        if self.mine.opening.load(Ordering::Relaxed) == self.until {
            self.mine.opening.store(0, Ordering::Relaxed);
        }
        match self.outcome.take() {
            Some(Ok(_)) if state.opened.is_some() => {} // another handle was first
            Some(Ok(store)) => {
                if let Some(loss_hint) = state.loss_hint.take() {
                    store.on_loss_hint(loss_hint);
                }
                // This handle's runtime is the one that the store was opened on.
                let _ = self.mine.store.set(Arc::clone(&store));
                state.opened = Some(store);
            }
            Some(Err(error)) => {
                let pause = backoff.pause(state.failures, fastrand::u64(..));
                state.next = clock::now().after(pause);
                state.failures = state.failures.saturating_add(1);
                let last = state.error.replace((error.kind(), format!("{error:#}")));
                // Once for each error, not for each attempt.
                unusable = Some(error).filter(|it| !it.retryable() && last != state.error);
            }
            None => {}
        }
        drop(state);
        self.shared.ended.send_replace(());
        if let Some(error) = unusable {
            let node = &self.shared.address;
            tracing::warn!(node, %error, "a node of a quorum cannot be used");
        }
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
        self.mine.store.get().map_or(self.shared.capabilities, |store| store.capabilities())
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

/// A store that never opens, and says so with this error.
#[cfg(test)]
pub(super) fn away(why: &'static str) -> Lazy {
    let error = move || Error::new(ErrorKind::Unavailable, why);
    let opener: Opener = Arc::new(move || Box::pin(std::future::ready(Err(error()))));
    Lazy::new("away".to_owned(), crate::stores::queue::CAPABILITIES, opener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::queue::CAPABILITIES;
    use futures_util::FutureExt;
    use holdline_testkit::{Warnings, on_event};
    use tokio::runtime::Builder;

    /// A store that opens others, at each attempt the next of them.
    fn opening(stores: impl IntoIterator<Item = Arc<Lazy>>) -> (Lazy, Name) {
        let stores = Mutex::new(stores.into_iter().collect::<Vec<_>>().into_iter());
        let opener: Opener = Arc::new(move || {
            let next = stores.lock().next().expect("no more attempts than stores");
            Box::pin(std::future::ready(Ok(next as Arc<dyn Store>)))
        });
        (Lazy::new("lazy".to_owned(), CAPABILITIES, opener), Name::new("x").expect("fine"))
    }

    /// The error that a store gives, which is that of the one that was opened.
    async fn error(store: &Lazy, name: &Name) -> String {
        AsyncStore::snapshot(store, name).await.expect_err("it is away").to_string()
    }

    /// The pauses grow, so many calls soon fail without an attempt.
    #[tokio::test]
    async fn between_attempts_calls_fail_with_the_error_of_the_last() {
        let attempts = Arc::new(Mutex::new(0));
        let count = Arc::clone(&attempts);
        let opener: Opener = Arc::new(move || {
            *count.lock() += 1;
            let error = Error::new(ErrorKind::Denied, format!("attempt {}", count.lock()));
            Box::pin(std::future::ready(Err(error)))
        });
        let store = Lazy::new("lazy".to_owned(), CAPABILITIES, opener);
        let name = Name::new("x").expect("fine");
        let start = clock::now();
        let mut calls = 0;
        while *attempts.lock() < 3 {
            let error = AsyncStore::snapshot(&store, &name).await.expect_err("not open");
            let expected = format!("attempt {}", attempts.lock());
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Denied, expected));
            calls += 1;
            tokio::task::yield_now().await;
        }
        assert!(calls > 3, "an attempt for each call");
        // 50 and 100 ms, each shorter by half at most.
        assert!(start.until(clock::now()) >= Duration::from_millis(75));
    }

    /// It may look at the store.
    #[tokio::test]
    async fn a_subscriber_is_called_without_the_mutex() {
        let error = || Error::new(ErrorKind::Denied, "a test");
        let opener: Opener = Arc::new(move || Box::pin(std::future::ready(Err(error()))));
        let store = Lazy::new("lazy".to_owned(), CAPABILITIES, opener);
        let (shared, free) = (Arc::clone(&store.shared), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&free);
        let looks = on_event(tracing::Level::WARN, move |_| {
            noted.lock().push(shared.state.try_lock().is_some());
        });
        let _guard = tracing::subscriber::set_default(looks);
        let name = Name::new("x").expect("fine");
        AsyncStore::snapshot(&store, &name).await.expect_err("not open");
        assert_eq!(*free.lock(), [true]);
    }

    /// Say, behind a proxy whose server is away, which is asked every two seconds.
    #[tokio::test]
    async fn an_error_that_stays_the_same_is_warned_of_once() {
        let attempts = Arc::new(Mutex::new(0));
        let count = Arc::clone(&attempts);
        let opener: Opener = Arc::new(move || {
            *count.lock() += 1;
            let kind = if *count.lock() < 3 { ErrorKind::Invalid } else { ErrorKind::Denied };
            Box::pin(std::future::ready(Err(Error::new(kind, "a test"))))
        });
        let store = Lazy::new("lazy".to_owned(), CAPABILITIES, opener);
        let name = Name::new("x").expect("fine");
        let warnings = Warnings::default();
        let _guard = tracing::subscriber::set_default(warnings.subscriber());
        while *attempts.lock() < 4 {
            AsyncStore::snapshot(&store, &name).await.expect_err("not open");
            tokio::task::yield_now().await;
        }
        assert_eq!(warnings.all().len(), 2, "{:?}", warnings.all());
    }

    #[tokio::test]
    async fn a_store_of_another_kind_is_refused() {
        let mut other = away("other");
        let shared = Arc::get_mut(&mut other.shared).expect("not shared yet");
        shared.capabilities.fencing_tokens = false;
        let (store, name) = opening([Arc::new(other)]);
        let error = AsyncStore::snapshot(&store, &name).await.expect_err("it has no tokens");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(AsyncStore::capabilities(&store).fencing_tokens, "as assumed");
    }

    #[tokio::test]
    async fn the_store_has_the_callback_that_was_set_before_or_after() {
        for before in [true, false] {
            let opened = Arc::new(away("opened"));
            let (store, name) = opening([Arc::clone(&opened)]);
            if before {
                AsyncStore::on_loss_hint(&store, Arc::new(|_| ()));
            }
            assert_eq!(error(&store, &name).await, "opened");
            assert_eq!(opened.shared.state.lock().loss_hint.is_some(), before);
            if !before {
                AsyncStore::on_loss_hint(&store, Arc::new(|_| ()));
            }
            assert!(opened.shared.state.lock().loss_hint.is_some());
        }
    }

    #[test]
    fn a_handle_does_not_depend_on_an_attempt_that_is_not_driven() {
        let (store, name) = opening(["first", "second"].map(|why| Arc::new(away(why))));
        let other = AsyncStore::background_handle(&store);
        let [stalled, driven] = [(), ()]
            .map(|()| Builder::new_current_thread().enable_all().build().expect("a runtime"));
        let asked = stalled.block_on(async { error(&store, &name).now_or_never() });
        assert_eq!(asked, None, "the attempt has begun");
        let limit = Duration::from_secs(60);
        let seen = driven.block_on(clock::timeout(limit, error(&other, &name)));
        assert_eq!(seen.as_deref(), Some("first"), "in time");
        // The attempt that goes on now comes too late, and changes nothing.
        for _ in 0..2 {
            let seen = stalled.block_on(async {
                tokio::task::yield_now().await;
                error(&store, &name).await
            });
            assert_eq!(seen, "first");
        }
    }

    /// Nor does one that is used on several runtimes, longer than such an attempt may take.
    #[test]
    fn a_handle_depends_on_no_attempt_that_is_not_driven_for_long() {
        let (store, name) = opening(["first", "second"].map(|why| Arc::new(away(why))));
        let runtime = || Builder::new_current_thread().enable_time().build().expect("builds");
        let (asleep, awake) = (runtime(), runtime());
        {
            let _entered = asleep.enter();
            assert!(error(&store, &name).now_or_never().is_none(), "nobody drives the attempt");
        }
        awake.block_on(async {
            let _ = clock::timeout(ATTEMPT, error(&store, &name)).await;
            let next = clock::timeout(Duration::from_secs(30), error(&store, &name)).await;
            assert_eq!(next.as_deref(), Some("first"));
        });
        drop(asleep); // ends the first attempt, which is not the one in progress
    }
}
