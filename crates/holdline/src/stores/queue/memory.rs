//! The store `memory:`: the kernel's line behind a mutex, in one process. For tests, and for
//! programs that choose their store by configuration.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, EVICTION_TIME, EVICTIONS_KEPT, Enter, Eviction, Lines, LossHint,
    Notifier, QueueEntry, QueueSnapshot, Seq, Standing, Store, Subscription, Ticket, TicketId,
    refuse,
};
use crate::stores::queue;
use crate::stores::waiters::Waiters;
use crate::sync::Mutex;
use holdline_kernel::{Head, Line, MemoryPlaces, Place, Time};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A store in this process's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    inner: Arc<Inner>,
}

/// The stores with a name that are in use.
static BY_NAME: Mutex<Option<HashMap<String, Weak<Inner>>>> = Mutex::new(None);

struct Inner {
    name: String,
    lines: Mutex<HashMap<Name, LineState>>,
    waiters: Waiters,
    /// The highest token of any removed line, so that tokens rise even if the clock does not.
    last: Mutex<u64>,
    evictions: Mutex<Evictions>,
    observers: Observers,
}

/// The observers' subscriptions.
#[derive(Default)]
struct Observers {
    /// Whether there are any, so that the list is not locked when it is empty.
    any: AtomicBool,
    /// The notifiers are kept by the subscriptions.
    list: Mutex<Vec<(Lines, Weak<Notifier>)>>,
}

impl Observers {
    fn add(&self, lines: &Lines, notifier: &Arc<Notifier>) {
        let mut list = self.list.lock();
        list.push((lines.clone(), Arc::downgrade(notifier)));
        self.any.store(true, Ordering::Release);
    }

    /// Notifies the observers of a line, and forgets those that have ended.
    fn tell(&self, line: &Name) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let (mut list, mut told) = (self.list.lock(), Vec::new());
        list.retain(|(lines, notifier)| {
            let notifier = notifier.upgrade();
            let exists = notifier.is_some();
            told.extend(notifier.filter(|_| lines.contain(line)));
            exists
        });
        self.any.store(!list.is_empty(), Ordering::Release);
        drop(list); // a waker may poll or drop its task on the spot
        for notifier in told {
            notifier.changed();
        }
    }
}

/// The evictions of all lines, oldest first.
#[derive(Default)]
struct Evictions(VecDeque<(Time, Name, Eviction)>);

/// The most evictions that are kept, of all lines together.
const MAX_EVICTIONS: usize = 1024;

impl Evictions {
    fn add(&mut self, now: Time, line: &Name, eviction: Eviction) {
        let old = |at: &Time| at.until(now) > EVICTION_TIME;
        while self.0.front().is_some_and(|(at, ..)| old(at)) || self.0.len() >= MAX_EVICTIONS {
            self.0.pop_front();
        }
        let of_line = self.0.iter().filter(|(_, name, _)| name == line).count();
        if of_line >= EVICTIONS_KEPT
            && let Some(oldest) = self.0.iter().position(|(_, name, _)| name == line)
        {
            self.0.remove(oldest);
        }
        self.0.push_back((now, line.clone(), eviction));
    }

    fn of(&self, now: Time, line: &Name) -> Vec<Eviction> {
        let fresh = |at: &Time| at.until(now) <= EVICTION_TIME;
        let of_line = self.0.iter().filter(|(at, name, _)| name == line && fresh(at));
        of_line.map(|(.., eviction)| eviction.clone()).collect()
    }
}

/// One line: its head and its places.
#[derive(Default)]
struct LineState {
    head: Head,
    places: MemoryPlaces<Arc<str>>,
}

impl Memory {
    /// Creates a new, unshared store.
    pub fn new() -> Self {
        Memory::named(String::new())
    }

    fn named(name: String) -> Self {
        let inner = Inner {
            name,
            lines: Mutex::default(),
            waiters: Waiters::default(),
            last: Mutex::new(0),
            evictions: Mutex::default(),
            observers: Observers::default(),
        };
        Memory { inner: Arc::new(inner) }
    }

    /// Returns the store of this name, shared within the process for as long as it is used.
    pub fn shared(name: &str) -> Self {
        let mut by_name = BY_NAME.lock();
        let by_name = by_name.get_or_insert_default();
        if let Some(inner) = by_name.get(name).and_then(Weak::upgrade) {
            return Memory { inner };
        }
        let memory = Memory::named(name.to_owned());
        by_name.retain(|_, inner| inner.strong_count() > 0);
        by_name.insert(name.to_owned(), Arc::downgrade(&memory.inner));
        memory
    }

    /// Runs one operation on a line, removes the line if it is empty afterwards, and then wakes the
    /// tickets that are next.
    fn on<T>(&self, name: &Name, work: impl FnOnce(&mut LineOf<'_>) -> Result<T, Infallible>) -> T {
        let inner = &*self.inner;
        let mut lines = self.inner.lines.lock();
        if !lines.contains_key(name) {
            lines.insert(name.clone(), LineState::default());
        }
        let state = lines.get_mut(name).expect("it was put there just now");
        if state.head.count == 0 {
            state.head.last = *inner.last.lock();
        }
        let mut woken = Vec::new();
        let mut wake = |place: &Place<Arc<str>>| woken.push(place.id);
        let mut line = Line {
            head: &mut state.head,
            places: &mut state.places,
            now: clock::now(),
            stamp: clock::wall_micros(),
            wake: &mut wake as &mut dyn FnMut(&Place<Arc<str>>),
        };
        let Ok(done) = work(&mut line);
        if state.head.count == 0 {
            let mut last = inner.last.lock();
            *last = (*last).max(state.head.last);
            lines.remove(name);
        }
        drop(lines);
        for id in woken {
            inner.waiters.wake(id);
        }
        done
    }
}

type LineOf<'a> = Line<'a, MemoryPlaces<Arc<str>>, &'a mut dyn FnMut(&Place<Arc<str>>)>;

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl AsyncStore for Memory {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let standing = self.on(line, |on| on.enter(ticket, how, Arc::clone(note)));
        let standing = standing.map_err(|refusal| refuse(line, ticket, refusal))?;
        self.inner.observers.tell(line);
        Ok(standing)
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let left = self.on(line, |on| on.leave(id));
        self.inner.observers.tell(line);
        Ok(left)
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        self.inner.waiters.wait(id).await;
        Ok(None)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let view = self.on(line, |on| on.expire().map(|()| snapshot_of(on)));
        Ok(QueueSnapshot { evictions: self.inner.evictions.lock().of(clock::now(), line), ..view })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let now = clock::now();
        let lines = self.inner.lines.lock();
        let mut names: Vec<Name> = lines
            .iter()
            .filter(|(name, state)| {
                name.as_str().starts_with(prefix)
                    && state.places.iter().any(|place| place.expires > now)
            })
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        Ok(names)
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        // In one step with the removal, so that the reason is available when the loss is seen.
        let token = self.on(line, |on| {
            let token = on.evict(id)?;
            if token.is_some() {
                self.inner.evictions.lock().add(on.now, line, Eviction { id, note: note.into() });
            }
            Ok(token)
        });
        if token.is_some() {
            self.inner.observers.tell(line);
            self.inner.waiters.evicted(id);
        }
        Ok(token)
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        let (notifier, subscription) = Subscription::new();
        let notifier = Arc::new(notifier);
        self.inner.observers.add(lines, &notifier);
        notifier.begin();
        subscription.keep(notifier)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { crash_release: true, ..queue::CAPABILITIES } // a crash takes the store along
    }

    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        self.inner.waiters.loss.set(loss_hint);
    }

    fn address(&self) -> String {
        format!("memory:{}", self.inner.name)
    }
}

fn snapshot_of(line: &mut LineOf<'_>) -> QueueSnapshot {
    let (now, front) = (line.now, line.head.front);
    let places = line.places.iter().map(|place| QueueEntry {
        id: place.id,
        seq: place.seq,
        weight: place.weight,
        admitted: place.seq < front,
        expires_in: now.until(place.expires),
        note: Arc::clone(&place.data),
    });
    let places: Vec<_> = places.collect();
    let capacity = if places.is_empty() { 0 } else { line.head.capacity };
    QueueSnapshot { capacity, places, evictions: Vec::new() }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory:{}", self.name)
    }
}

/// Opens the store for the part of a URL after `memory:`.
pub(crate) fn open(rest: &str) -> Result<Arc<dyn Store>> {
    if rest.contains(['/', '?', '#']) {
        // It is not shown, because it may be another store's URL, with a password.
        let message = "the URL of a memory store is refused: it has only a name, as in \
                       memory:tests, and no /, ? or #";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(Arc::new(if rest.is_empty() { Memory::new() } else { Memory::shared(rest) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::waiters::tests::assert_dropped_on_waking;
    use futures_util::FutureExt;
    use std::time::Duration;

    fn ticket(id: u128) -> Ticket {
        let lease = Duration::from_secs(600);
        let (id, weight, capacity) = (TicketId(id), 1, 1);
        let (wait_lease, token_count, min_token) = (lease, 1, 0);
        Ticket { id, weight, capacity, lease, wait_lease, token_count, min_token }
    }

    /// A task that uses the store when it is dropped.
    struct Uses(Arc<dyn Store>);

    impl Drop for Uses {
        fn drop(&mut self) {
            enter(&*self.0, "y", 9);
        }
    }

    fn enter(store: &dyn Store, name: &str, id: u128) -> Standing {
        let name = Name::new(name).expect("a name");
        let entered = store.enter(&name, &ticket(id), &"".into(), Enter::Queue).now_or_never();
        entered.expect("it does not wait").expect("works")
    }

    #[test]
    fn a_waker_may_drop_its_task_on_the_spot() {
        let (store, line) = (open("").expect("opens"), Name::new("x").expect("a name"));
        for id in [1, 2] {
            enter(&*store, "x", id);
        }
        let leaves = || {
            let (store, line) = (Arc::clone(&store), line.clone());
            move || drop(store.leave(&line, TicketId(1)).now_or_never())
        };
        let (uses, name) = (Uses(Arc::clone(&store)), line.clone());
        let waits = async move { uses.0.watch(&name, TicketId(2)).await };
        assert_dropped_on_waking(waits, leaves());
        let (uses, changes) =
            (Uses(Arc::clone(&store)), store.subscribe(&Lines::Named(line.clone())));
        changes.changed().now_or_never().expect("the subscription has begun");
        let observes = async move {
            let _uses = uses;
            changes.changed().await;
        };
        assert_dropped_on_waking(observes, leaves());
    }

    #[test]
    fn a_url_that_is_no_name_is_refused_and_not_shown() {
        for rest in ["//me:s3cret@host", "/me:s3cret", "a?password=s3cret", "s3cret#"] {
            let error = open(rest).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error:#}").contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_name_is_forgotten_with_its_store() {
        let kept = Memory::shared("forgotten-kept");
        for number in 0..100 {
            drop(Memory::shared(&format!("forgotten-{number}")));
        }
        let names = BY_NAME.lock();
        let names = names.as_ref().expect("there was one").keys();
        assert!(names.filter(|name| name.starts_with("forgotten-")).count() <= 2);
        drop(kept);
    }
}
