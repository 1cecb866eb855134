//! A store wrapper that counts calls.

use holdline::store::{
    AsyncStore, Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store,
    Subscription, Ticket, TicketId,
};
use holdline::{Name, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Passes all calls on and counts them. The background handle counts separately, in bursts.
#[derive(Debug)]
pub(crate) struct CountingStore {
    inner: Arc<dyn Store>,
    counts: Arc<Counts>,
    renewer: bool,
}

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Round trips: enter and leave, by callers and by the renewer.
    calls: AtomicU64,
    bursts: Mutex<Vec<Burst>>,
    /// The number of renewals of all locks, which also ends a burst.
    whole: usize,
}

/// Renewals in close succession.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    pub(crate) renewals: usize,
}

/// A pause this long between two renewals ends a burst.
const PAUSE: Duration = Duration::from_millis(50);

impl Counts {
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn bursts(&self) -> MutexGuard<'_, Vec<Burst>> {
        self.bursts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, first: Instant, last: Instant) {
        let mut bursts = self.bursts();
        match bursts.last_mut() {
            Some(burst)
                if burst.renewals < self.whole
                    && first.saturating_duration_since(burst.last) < PAUSE =>
            {
                burst.first = burst.first.min(first);
                burst.last = burst.last.max(last);
                burst.renewals += 1;
            }
            _ => bursts.push(Burst { first, last, renewals: 1 }),
        }
    }
}

impl CountingStore {
    /// Wraps this store, for this many locks.
    pub(crate) fn new(inner: Arc<dyn Store>, whole: usize) -> (Arc<Self>, Arc<Counts>) {
        let counts = Arc::new(Counts { whole, ..Counts::default() });
        (Arc::new(CountingStore { inner, counts: Arc::clone(&counts), renewer: false }), counts)
    }
}

impl AsyncStore for CountingStore {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        if !self.renewer {
            return self.inner.enter(line, ticket, note, how).await;
        }
        let first = Instant::now();
        let standing = self.inner.enter(line, ticket, note, how).await;
        self.counts.renewed(first, Instant::now());
        standing
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.leave(line, id).await
    }

    async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        self.inner.watch(line, id).await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.inner.snapshot(line).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.inner.list(prefix).await
    }

    async fn evict(&self, line: &Name, id: TicketId, reason: &str) -> Result<Option<Seq>> {
        self.inner.evict(line, id, reason).await
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        self.inner.subscribe(lines)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn background_handle(&self) -> Self {
        let (inner, counts) = (self.inner.background_handle(), Arc::clone(&self.counts));
        CountingStore { inner, counts, renewer: true }
    }

    /// The wrapped store has its alarm from the client that opened it.
    fn on_loss_hint(&self, _alarm: LossHint) {}

    fn address(&self) -> String {
        self.inner.address()
    }
}
