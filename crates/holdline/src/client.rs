//! The client: a store, and the state that a process shares around it.

use crate::availability::Call;
use crate::changes::Changes;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::handles::StoreHandles;
use crate::local_queue::LocalQueues;
use crate::loss::Evicted;
use crate::metrics::{LockMetrics, Outcome, Recipe, Waiting};
use crate::names::Name;
use crate::options::{Bounds, kept};
use crate::owner_info::OwnerInfo;
use crate::renewer;
use crate::request::{AcquireRequest, Handoff};
use crate::store::{self, Capabilities, Lines, Seq, Store, TicketId};
use crate::sync::Mutex;
use holdline_kernel::{Time, WaitMode};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tracing::{Instrument, Span, field};

/// A client of a store, from which locks are made. Cheap to clone. All clones, and all locks made
/// from them, share one local queue for each name and the guards of re-entrant owners; another
/// client of the same store shares neither. So open a store once in a process.
///
/// Created by [`open`](crate::open()) from a URL, or by [`Client::new`] from a store.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    bounds: Bounds,
    named_metrics: bool,
}

/// The shortest interval of [`Client::inspect_until`] during an outage of the store.
const OUTAGE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A slot for the guard of one re-entrant owner and one name.
pub(crate) type Reentry = Arc<tokio::sync::Mutex<Weak<Guard>>>;

struct Inner {
    handles: Arc<StoreHandles>,
    local_queues: Arc<LocalQueues>,
    reentries: Mutex<HashMap<(Name, u128), Reentry>>,
}

/// The current state of a lock: its holders and waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's name.
    pub name: Name,
    /// The total weight that can hold the lock at once (1 for a mutex); 0 if the lock is not in
    /// use.
    pub capacity: u32,
    /// The holders, in the order in which they were admitted.
    pub holders: Vec<Participant>,
    /// The waiters, next first.
    pub waiters: Vec<Participant>,
    /// The most recent places removed by force within the last minute, or on ZooKeeper for as long
    /// as the lock's node exists; oldest first. Some stores keep none: PostgreSQL's `row` and
    /// `advisory`, and ShedLock's table.
    pub evictions: Vec<Evicted>,
}

/// A holder of a lock, or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// The ticket's id, for [`Client::force_unlock`].
    pub id: TicketId,
    /// The fencing token of a holder, or the token that a waiter will get.
    pub token: u64,
    /// The share of the capacity that it takes.
    pub weight: u32,
    /// The time until its lease expires, unless it is renewed.
    pub expires_in: Duration,
    /// The participant's own description of itself.
    pub note: OwnerInfo,
}

impl Client {
    /// Creates a client of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        store.on_loss_hint(Arc::new(renewer::verify));
        let handles = Arc::new(StoreHandles::new(store));
        let inner = Inner { handles, local_queues: Arc::default(), reentries: Mutex::default() };
        Client { inner: Arc::new(inner), bounds: Bounds::default(), named_metrics: false }
    }

    /// Sets the time limit of calls that do not wait for a lock. Default: 1.8 s.
    ///
    /// [`try_lock`](crate::Mutex::try_lock), [`inspect`](Client::inspect), [`list`](Client::list)
    /// and [`force_unlock`](Client::force_unlock) end within this time, retries included, with an
    /// error if the store has not answered by then.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.bounds.response_timeout = timeout;
        self
    }

    /// Sets how long an outage of the store is waited out. Default: without limit.
    ///
    /// If a store that has answered this client once stops answering, acquisitions keep retrying,
    /// with growing pauses, until the store is back or their own time limit passes; then they take
    /// their places in the queue again. Observers keep retrying too. After an outage of this length
    /// they all fail with an error of kind [`Unavailable`](ErrorKind::Unavailable).
    ///
    /// A store that has *never* answered is reported after a few attempts, whatever the limit.
    pub fn outage(mut self, bound: Duration) -> Self {
        self.bounds.outage = bound;
        self
    }

    /// Adds the lock's name to its metrics, as the label `name`. Use it only with few names: every
    /// name is a time series of its own.
    pub fn named_metrics(mut self) -> Self {
        self.named_metrics = true;
        self
    }

    pub(crate) fn lock_metrics(&self, recipe: Recipe, name: &Name) -> LockMetrics {
        let name = self.named_metrics.then(|| name.clone());
        LockMetrics::new(&self.inner.handles.metrics, recipe, name)
    }

    /// How long the store has been unavailable; `None` if it answered the last call. After an
    /// acquisition has failed, answers to other calls count only when none has failed for 10 s: a
    /// store on a full disk, or a replica, may answer those. The same goes for a renewal that has
    /// failed, and answers to calls that neither take nor keep a lock.
    pub fn unavailable_for(&self) -> Option<Duration> {
        self.inner.handles.availability.away_for()
    }

    /// Whether the store has ever answered this client, or a clone of it. A store that never has
    /// may not exist, or may not be a store at all; acquisitions give up on it after a few
    /// attempts.
    pub fn has_answered(&self) -> bool {
        self.inner.handles.availability.has_answered()
    }

    /// Notes that the store has answered.
    pub(crate) fn note_answered(&self) {
        self.inner.handles.note(Call::Look, Some(&Ok(())));
    }

    /// The error for a store that did not answer in time about a lock.
    pub(crate) fn silence(&self, name: &Name) -> Error {
        self.inner.handles.silence(name)
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Whether an observer goes on after a look that failed. Its outage is that of its own looks,
    /// as an acquisition's is that of its own requests: changes may have failed for longer.
    fn outlasts(&self, away_since: &mut Option<Time>) -> bool {
        let since = away_since.get_or_insert_with(clock::now);
        self.has_answered() && since.until(clock::now()) < self.bounds.outage
    }

    /// Awaits a call that does not wait for a lock, within the response timeout.
    async fn answer<T>(&self, call: Call, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let timeout = self.bounds.response_timeout;
        let outcome = clock::within(clock::now().after(timeout), answer).await;
        self.inner.handles.note(call, outcome.as_ref());
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

    /// The store's capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// Checks that the store has locks of this capacity: 1 for mutexes, the number of permits for
    /// semaphores, [`READ_WRITE`](store::READ_WRITE) for read-write locks.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) if it has not.
    pub fn check_capacity(&self, capacity: u32) -> Result<()> {
        store::check_capacity(&**self.store(), capacity)
    }

    /// The store's address, without secrets.
    pub fn address(&self) -> String {
        self.store().address()
    }

    /// Returns the holders and waiters of a lock; none if the lock is not in use.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for an invalid name. Other kinds mean that the store gave no
    /// answer within the [`response_timeout`](Client::response_timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = Name::new(name)?;
        let view = self.answer(Call::Look, self.store().snapshot(&name)).await?;
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

    /// Watches locks for changes: [`Changes::next`] says when to call [`inspect`](Client::inspect)
    /// or [`list`](Client::list) again.
    ///
    /// Watching costs the users of the locks nothing: no store sends an extra message for it.
    /// Stores that could not notify without one (Redis, PostgreSQL, MySQL, a quorum) are polled.
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

    /// Inspects a lock after each change, or at intervals if the store does not report changes,
    /// until `found` returns a value. Waits out an outage of the store, up to the client's limit.
    pub(crate) async fn inspect_until<T>(
        &self,
        name: &str,
        (every, changes): (Duration, &mut Option<Changes>),
        mut found: impl FnMut(LockInfo) -> Option<T>,
    ) -> Result<T> {
        let mut away_since = None;
        loop {
            match self.inspect(name).await {
                Err(error) if error.retryable() && self.outlasts(&mut away_since) => {
                    clock::pause(every.max(OUTAGE_POLL_INTERVAL)).await;
                }
                info => {
                    let info = info?;
                    away_since = None;
                    let lines = Lines::Named(info.name.clone());
                    if let Some(found) = found(info) {
                        return Ok(found);
                    }
                    changes.get_or_insert_with(|| self.changes(lines)).next(every).await;
                }
            }
        }
    }

    /// Returns the names of the locks in use (held or waited for) that begin with `prefix`; `""`
    /// for all.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Client::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.answer(Call::Look, self.store().list(prefix)).await
    }

    /// Takes a lock away from one holder or waiter. The participant is named by the id that
    /// [`inspect`](Client::inspect) returns, so that no other is ever removed by accident.
    ///
    /// The guard of the removed holder reports the loss, at its next renewal at the latest, with
    /// the host and process that broke the lock and the `reason`: see
    /// [`Loss::Broken`](crate::Loss::Broken). A removed waiter goes on waiting, in a new place at
    /// the end of the line.
    ///
    /// Returns a token that is higher than the removed holder's and no higher than the next
    /// holder's. Present it to the guarded resource to fence off the removed holder even before the
    /// next one comes. It is 0 if the store has no tokens. Returns `None` if no participant has
    /// that id any more.
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
    /// long. After an error of any other kind the lock may or may not have been broken: inspect it
    /// again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been broken.
    pub async fn force_unlock(
        &self,
        name: impl AsRef<str>,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<u64>> {
        let name = Name::new(name)?;
        let note = kept(&OwnerInfo::eviction(reason), &name)?;
        let token = self.answer(Call::Release, self.store().evict(&name, id, &note)).await?;
        if let Some(Seq(token)) = token {
            tracing::warn!(%name, token, reason, "lock broken by force");
        }
        Ok(token.map(|seq| seq.0))
    }

    /// Waits until the store has released every dropped lock and abandoned acquisition of this
    /// client or, if the store cannot be reached, until their leases are over. Call it before a
    /// process exits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn settle(&self) {
        self.inner.handles.undone.none_left().await;
    }

    /// The number of places that are still to be released.
    #[cfg(feature = "testing")]
    pub(crate) fn undone(&self) -> usize {
        self.inner.handles.undone.places()
    }

    /// Acquires a lock: the one path, which every recipe takes.
    pub(crate) async fn acquire(
        &self,
        request: AcquireRequest,
        handoff: Option<Handoff>,
    ) -> Result<Option<Guard>> {
        // A lock must not be granted if it could not be renewed or released.
        renewer::start()?;
        let mut waiting = Waiting::new(&request.metrics, clock::now());
        let (token, outcome) = (field::Empty, field::Empty);
        let span = tracing::debug_span!("acquire", name = %request.line, token, outcome);
        let guard = async {
            let queues = &self.inner.local_queues;
            let guard = queues.acquire(&self.inner.handles, &request, handoff).await;
            let outcome = match &guard {
                Ok(Some(_)) => Outcome::Acquired,
                Ok(None) if request.mode == WaitMode::Try => Outcome::Busy,
                Ok(None) => Outcome::Timeout,
                Err(_) => Outcome::Error,
            };
            let span = Span::current();
            span.record("outcome", outcome.label());
            if let Ok(Some(guard)) = &guard {
                span.record("token", guard.token());
            }
            waiting.ends(outcome, clock::now());
            guard
        };
        guard.instrument(span).await
    }

    /// The slot of this owner and name.
    pub(crate) fn reentry(&self, name: &Name, owner: u128) -> Reentry {
        let mut map = self.inner.reentries.lock();
        // Unused entries are removed before new ones are added.
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
