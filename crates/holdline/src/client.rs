//! A store together with what a process needs around it.

use crate::changes::Changes;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::handles::StoreHandles;
use crate::local_queue::LocalQueues;
use crate::loss::Evicted;
use crate::metrics::{LockMetrics, Recipe, Waiting};
use crate::names::Name;
use crate::options::{Bounds, kept};
use crate::owner_info::OwnerInfo;
use crate::renewer;
use crate::request::{AcquireRequest, Handoff};
use crate::store::{Capabilities, Lines, Seq, Store, TicketId};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tracing::Instrument;

/// A connection to a store, from which locks are made. Cheap to clone; all clones, and all locks
/// made from them, share the queue inside the process.
///
/// Made by [`open`](crate::open()) from a URL, or by [`Client::new`] from a store.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    bounds: Bounds,
    named_metrics: bool,
}

/// The shortest interval of [`Client::inspect_until`] during an outage of the store.
const OUTAGE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What one owner of re-entrant locks holds by one name.
pub(crate) type Reentry = Arc<tokio::sync::Mutex<Weak<Guard>>>;

struct Inner {
    handles: Arc<StoreHandles>,
    local_queues: Arc<LocalQueues>,
    reentries: Mutex<HashMap<(Name, u128), Reentry>>,
}

/// A lock as it is now: its holders and waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: Name,
    /// How much weight is admitted at once (1 for a mutex); 0 if nobody uses it.
    pub capacity: u32,
    /// Its holders, in the order in which they were admitted.
    pub holders: Vec<Participant>,
    /// Its waiters, next first.
    pub waiters: Vec<Participant>,
    /// Places that were removed by force in the last minute, oldest first: the last few of them.
    pub evictions: Vec<Evicted>,
}

/// A holder of a lock, or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// What to call it when breaking its lock.
    pub id: TicketId,
    /// Its fencing token, if it holds; the token that it will get, if it waits.
    pub token: u64,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// How long until it lapses, unless it is heard of.
    pub expires_in: Duration,
    /// What it says about itself.
    pub note: OwnerInfo,
}

impl Client {
    /// A client of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        store.on_loss_hint(Arc::new(renewer::verify));
        let handles = Arc::new(StoreHandles::new(store));
        let inner = Inner { handles, local_queues: Arc::default(), reentries: Mutex::default() };
        Client { inner: Arc::new(inner), bounds: Bounds::default(), named_metrics: false }
    }

    /// The same client, with another bound for calls that do not wait for a lock:
    /// [`try_lock`](crate::Mutex::try_lock), [`inspect`](Client::inspect), [`list`](Client::list)
    /// and [`force_unlock`](Client::force_unlock) end within this time, retries included, with an
    /// error if the store has not answered by then. Default: 1.8 s.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.bounds.response_timeout = timeout;
        self
    }

    /// The same client, with a bound for outages. A store that has answered this client once and
    /// then falls silent is waited for: acquisitions keep asking, with growing pauses, until the
    /// store is back or their own limit is over, take their places again, and observers go on.
    /// After an outage of this length they end with an error of kind
    /// [`Unavailable`](ErrorKind::Unavailable). Default: no bound.
    ///
    /// A store that has *never* answered is reported after a few tries, whatever the bound.
    pub fn outage(mut self, bound: Duration) -> Self {
        self.bounds.outage = bound;
        self
    }

    /// The same client, with the locks' names as the label `name` of their metrics. Only for few
    /// names: a series is kept for each.
    pub fn named_metrics(mut self) -> Self {
        self.named_metrics = true;
        self
    }

    pub(crate) fn lock_metrics(&self, recipe: Recipe, name: &Name) -> LockMetrics {
        let name = self.named_metrics.then(|| name.clone());
        LockMetrics::new(&self.inner.handles.metrics, recipe, name)
    }

    /// How long the store has not answered; `None` while it does.
    pub fn unavailable_for(&self) -> Option<Duration> {
        self.inner.handles.availability.away_for()
    }

    /// Whether the store has ever answered this client, or a clone of it. One that never did may
    /// not exist, or not be a store: acquisitions give it up after a few tries.
    pub fn has_answered(&self) -> bool {
        self.inner.handles.availability.has_answered()
    }

    /// Notes that the store has answered.
    pub(crate) fn note_answered(&self) {
        self.inner.handles.note(Some(&Ok(())));
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Whether what is waiting goes on in spite of a failed call.
    fn outlasts(&self) -> bool {
        let availability = &self.inner.handles.availability;
        let away = availability.away_for().unwrap_or_default();
        availability.has_answered() && away < self.bounds.outage
    }

    /// The answer to a call that does not wait for a lock, or an error in time.
    async fn answer<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let timeout = self.bounds.response_timeout;
        let outcome = clock::within(clock::now().after(timeout), call).await;
        self.inner.handles.note(outcome.as_ref());
        outcome.unwrap_or_else(|| {
            let message = format!(
                "{} did not answer within {timeout:?}; check that it runs and can be reached",
                self.address()
            );
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.handles.store
    }

    /// What the store promises.
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// The store's address, without secrets.
    pub fn address(&self) -> String {
        self.store().address()
    }

    /// The holders and waiters of a lock; none if nobody uses it.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for an invalid name. Other kinds mean that the store did not
    /// give the answer within the [`response_timeout`](Client::response_timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = Name::new(name)?;
        let view = self.answer(self.store().snapshot(&name)).await?;
        let party = |place: &crate::store::QueueEntry| Participant {
            id: place.id,
            token: place.seq.0,
            weight: place.weight,
            expires_in: place.expires_in,
            note: OwnerInfo::read(&place.note),
        };
        let capacity = view.capacity;
        let (holders, waiters) =
            (view.holders().map(party).collect(), view.waiters().map(party).collect());
        let evictions = view
            .evictions
            .iter()
            .map(|eviction| Evicted::read(eviction.id, &eviction.note))
            .collect();
        Ok(LockInfo { name, capacity, holders, waiters, evictions })
    }

    /// The changes of these locks: when to look at them again, by [`inspect`](Client::inspect) or
    /// [`list`](Client::list). No store sends a message more for those who lock, and those that
    /// could tell only at such a price (Redis, PostgreSQL, MySQL, a quorum) are polled.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> holdline::Result<()> {
    /// # use holdline::{Mutex, store::Lines};
    /// # let client = holdline::open("memory:").await?;
    /// # let _guard = Mutex::new(&client, "reports/daily").lock().await?;
    /// let mut changes = client.changes(Lines::Prefix("reports/".to_owned()));
    /// while client.list("reports/").await?.is_empty() {
    ///     changes.next(std::time::Duration::from_secs(1)).await;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn changes(&self, lines: Lines) -> Changes {
        Changes::new(Arc::clone(self.store()), lines)
    }

    /// Inspects a lock whenever it has changed, or at intervals where the store tells of no
    /// changes, until `found` returns what the caller looks for. An outage of the store is ridden
    /// out, for as long as the bound allows.
    pub(crate) async fn inspect_until<T>(
        &self,
        name: &str,
        (every, changes): (Duration, &mut Option<Changes>),
        mut found: impl FnMut(LockInfo) -> Option<T>,
    ) -> Result<T> {
        loop {
            match self.inspect(name).await {
                Err(error) if error.retryable() && self.outlasts() => {
                    clock::pause(every.max(OUTAGE_POLL_INTERVAL)).await;
                }
                info => {
                    let info = info?;
                    let lines = Lines::Named(info.name.clone());
                    if let Some(found) = found(info) {
                        return Ok(found);
                    }
                    changes.get_or_insert_with(|| self.changes(lines)).next(every).await;
                }
            }
        }
    }

    /// The names, beginning with `prefix`, of locks that somebody holds or waits for: `""` for all.
    /// Errors as [`inspect`](Client::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.answer(self.store().list(prefix)).await
    }

    /// Takes a lock away from one holder (or waiter), named by the id that
    /// [`inspect`](Client::inspect) shows, so that nobody else's lock is ever broken by accident.
    ///
    /// Its guard is told, at the latest at its next renewal, also by whom (host and process) and
    /// for which `reason`: see [`Loss::Broken`](crate::Loss::Broken). The token returned is higher
    /// than the victim's and no higher than the next holder's: present it to whatever the lock
    /// guards, and the victim is fenced even before the next holder comes. `None` means that nobody
    /// stands there by that id any more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> holdline::Result<()> {
    /// # let client = holdline::open("memory:").await?;
    /// # let guard = holdline::Mutex::new(&client, "nightly-report").lock().await?;
    /// let info = client.inspect("nightly-report").await?;
    /// for holder in &info.holders {
    ///     client.force_unlock("nightly-report", holder.id, "its host burns").await?;
    /// }
    /// guard.lost().await; // the holder is told, and why:
    /// assert!(guard.loss().await.unwrap().to_string().contains("its host burns"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Client::inspect), and [`Invalid`](ErrorKind::Invalid) if the reason is too
    /// long. After an error of another kind the lock may have been broken: ask again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock broken or not.
    pub async fn force_unlock(
        &self,
        name: impl AsRef<str>,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<u64>> {
        let name = Name::new(name)?;
        let note = kept(&OwnerInfo::eviction(reason), &name)?;
        let token = self.answer(self.store().evict(&name, id, &note)).await?;
        if let Some(Seq(token)) = token {
            tracing::warn!(%name, token, reason, "lock broken by force");
        }
        Ok(token.map(|seq| seq.0))
    }

    /// Waits until every lock of this client that was dropped, and every acquisition that was
    /// abandoned, has really been given up in the store, or, if the store could not be asked, until
    /// its lease is over. Of use before a process ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn settle(&self) {
        self.inner.handles.undone.none_left().await;
    }

    /// The number of places that are still to be given up.
    #[cfg(feature = "testing")]
    pub(crate) fn undone(&self) -> usize {
        self.inner.handles.undone.places()
    }

    /// The one way to acquire, which every recipe takes.
    pub(crate) async fn acquire(
        &self,
        request: AcquireRequest,
        handoff: Option<Handoff>,
    ) -> Result<Option<Guard>> {
        // Nobody gets a lock that could not be renewed, or given up.
        renewer::start()?;
        let waiting = Waiting::new(&request.metrics, clock::now());
        let span =
            tracing::debug_span!("acquire", name = %request.line, token = tracing::field::Empty);
        let guard = async {
            let guard =
                self.inner.local_queues.acquire(&self.inner.handles, &request, handoff).await?;
            if let Some(guard) = &guard {
                tracing::Span::current().record("token", guard.token());
                waiting.granted(clock::now());
            }
            Ok(guard)
        };
        guard.instrument(span).await
    }

    /// The entry of this owner and name, and nobody else's.
    pub(crate) fn reentry(&self, name: &Name, owner: u128) -> Reentry {
        let mut map = self.inner.reentries.lock();
        // Entries that nobody uses any more go before new ones come.
        if map.len() >= 64 && map.len().is_power_of_two() {
            map.retain(|_, entry| Arc::strong_count(entry) > 1 || in_use(entry));
        }
        Arc::clone(map.entry((name.clone(), owner)).or_default())
    }
}

fn in_use(entry: &Reentry) -> bool {
    entry.try_lock().is_ok_and(|guard| guard.strong_count() > 0)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.address()).finish_non_exhaustive()
    }
}
