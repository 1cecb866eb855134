//! The releases on one node, which continue whether or not their callers wait. The number in
//! progress is bounded, and so is the number waiting: a place that the node is not told of expires
//! there.

use super::fault::late;
use super::node::Health;
use crate::clock;
use crate::error::{Error, Result};
use crate::names::Name;
use crate::store::{Async, Store, TicketId};
use crate::sync::Mutex;
use futures_util::FutureExt;
use holdline_kernel::{Backoff, Time};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The most concurrent requests, in addition to the worker's one.
const UNDER_WAY: usize = 64;
/// The most places that wait for the worker.
const WAITING: usize = 4096;
/// The time limit of one request.
const LATE: Duration = Duration::from_secs(5);
/// How long a place waits for its node at most.
const KEPT: Duration = Duration::from_secs(60);

/// The places to be released on one node.
#[derive(Debug)]
pub(super) struct Leaving {
    store: Arc<dyn Store>,
    health: Arc<Health>,
    under_way: Arc<Semaphore>,
    queue: Mutex<Queue>,
    /// Notified when a request under way has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    places: VecDeque<Place>,
    /// The tickets of those places.
    known: HashSet<TicketId>,
    /// The tickets that requests under way are about, in addition to the worker's.
    begun: Vec<TicketId>,
    /// Whether a worker runs.
    working: bool,
}

#[derive(Clone, Debug)]
struct Place {
    line: Name,
    id: TicketId,
    until: Time,
}

impl Leaving {
    pub(super) fn new(store: Arc<dyn Store>, health: Arc<Health>) -> Self {
        let under_way = Arc::new(Semaphore::new(UNDER_WAY));
        let (queue, ended) = (Mutex::default(), Notify::new());
        Leaving { store, health, under_way, queue, ended }
    }

    /// Releases a place. If that takes longer, it continues in a task of its own, because a dropped
    /// request may not have been sent yet. Without a runtime (in the simulation, which sends at
    /// once) it is a normal call.
    pub(super) fn leave(self: &Arc<Self>, line: &Name, id: TicketId) -> Async<'static, bool> {
        let line = line.clone();
        let Ok(runtime) = Handle::try_current() else {
            let store = Arc::clone(&self.store);
            return Box::pin(async move { store.leave(&line, id).await });
        };
        if let Ok(permit) = Arc::clone(&self.under_way).try_acquire_owned() {
            return self.begin(&runtime, line, id, permit);
        }
        let waits = Waits { leaving: Arc::clone(self), place: Some((line, id)) };
        Box::pin(waits.run(runtime))
    }

    fn begin(
        self: &Arc<Self>,
        runtime: &Handle,
        line: Name,
        id: TicketId,
        permit: OwnedSemaphorePermit,
    ) -> Async<'static, bool> {
        let (this, store, sent) = (Arc::clone(self), Arc::clone(&self.store), clock::now());
        let mut leaving = Box::pin(async move {
            let left = clock::within(sent.after(LATE), store.leave(&line, id)).await;
            let left = left.unwrap_or_else(|| Err(late()));
            this.health.ended(sent, left.as_ref().err());
            if left.as_ref().is_err_and(Error::retryable) {
                this.later(&line, id);
            }
            drop(permit);
            left
        });
        // Polled here first, so that it is ahead of this caller's next request to the node.
        if let Some(left) = leaving.as_mut().now_or_never() {
            return Box::pin(std::future::ready(left));
        }
        let begun = Begun::new(self, id);
        let task = runtime.spawn(async move {
            let left = leaving.await;
            drop(begun);
            left
        });
        Box::pin(async move { task.await.unwrap_or_else(|_| Err(late())) })
    }

    /// Releases a place in the background, retrying for a while.
    pub(super) fn later(self: &Arc<Self>, line: &Name, id: TicketId) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut queue = self.queue.lock();
        if queue.known.insert(id) {
            let until = clock::now().after(KEPT);
            queue.places.push_back(Place { line: line.clone(), id, until });
            if queue.places.len() > WAITING
                && let Some(oldest) = queue.places.pop_front()
            {
                queue.known.remove(&oldest.id);
            }
        }
        if !queue.working {
            queue.working = true;
            drop(queue); // a runtime that is ending drops the task at once
            let leaving = Arc::clone(self);
            runtime.spawn(Worker { leaving, place: None, done: false }.run());
        }
    }

    /// Whether a place of this ticket is still to be released.
    pub(super) fn has(&self, id: TicketId) -> bool {
        let queue = self.queue.lock();
        queue.known.contains(&id) || queue.begun.contains(&id)
    }

    /// Waits for the requests under way about this ticket. Returns whether none is to be repeated.
    pub(super) async fn are_done(&self, id: TicketId) -> bool {
        loop {
            let ended = self.ended.notified();
            {
                let queue = self.queue.lock();
                if !queue.begun.contains(&id) {
                    return !queue.known.contains(&id);
                }
            }
            ended.await;
        }
    }

    /// The place to release next. If there is none, the worker is done.
    fn next(&self) -> Option<Place> {
        let mut queue = self.queue.lock();
        let now = clock::now();
        while let Some(place) = queue.places.pop_front() {
            if now < place.until {
                return Some(place);
            }
            queue.known.remove(&place.id);
        }
        (queue.places, queue.known) = Default::default(); // with their memory
        queue.working = false;
        None
    }
}

/// A request under way about a ticket. It also ends with the runtime that it runs on.
struct Begun(Arc<Leaving>, TicketId);

impl Begun {
    fn new(leaving: &Arc<Leaving>, id: TicketId) -> Self {
        leaving.queue.lock().begun.push(id);
        Begun(Arc::clone(leaving), id)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Begun(leaving, id) = self;
        {
            let mut queue = leaving.queue.lock();
            if let Some(at) = queue.begun.iter().position(|begun| begun == id) {
                queue.begun.swap_remove(at);
            }
        }
        leaving.ended.notify_waiters();
    }
}

/// A release that waits until fewer are in progress. If its caller stops waiting, the worker takes
/// it over.
struct Waits {
    leaving: Arc<Leaving>,
    place: Option<(Name, TicketId)>,
}

impl Waits {
    async fn run(mut self, runtime: Handle) -> Result<bool> {
        let permit = Arc::clone(&self.leaving.under_way).acquire_owned().await;
        match (permit, self.place.take()) {
            (Ok(permit), Some((line, id))) => self.leaving.begin(&runtime, line, id, permit).await,
            _ => Err(late()), // it is never closed
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some((line, id)) = self.place.take() {
            self.leaving.later(&line, id);
        }
    }
}

/// The task that releases the waiting places, one by one.
struct Worker {
    leaving: Arc<Leaving>,
    /// The place that it is releasing.
    place: Option<Place>,
    /// Whether it ended normally.
    done: bool,
}

impl Worker {
    async fn run(mut self) {
        let leaving = Arc::clone(&self.leaving);
        let backoff =
            Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2)).jitter(50);
        let mut failures = 0;
        while let Some(place) = leaving.next() {
            let sent = clock::now();
            let Place { line, id, .. } = self.place.insert(place);
            let left = clock::within(sent.after(LATE), leaving.store.leave(line, *id));
            let left = left.await.unwrap_or_else(|| Err(late()));
            leaving.health.ended(sent, left.as_ref().err());
            if left.is_err_and(|error| error.retryable()) {
                self.put_back();
                clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
                failures += 1;
            } else {
                leaving.queue.lock().known.remove(id);
                self.place = None;
                failures = 0;
            }
        }
        self.done = true;
    }

    /// Lets its place wait again, ahead of the others.
    fn put_back(&mut self) {
        if let Some(place) = self.place.take() {
            self.leaving.queue.lock().places.push_front(place);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The remaining places wait for the next worker, as this one's runtime has ended.
        if !self.done {
            self.put_back();
            self.leaving.queue.lock().working = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::stores::queue::CAPABILITIES;
    use crate::stores::quorum::lazy::{Lazy, Opener, away};
    use tokio::runtime::Builder;

    fn leaving() -> (Arc<Leaving>, Name) {
        let (store, health) = (Arc::new(away("a test")), Arc::default());
        (Arc::new(Leaving::new(store, health)), Name::new("x").expect("fine"))
    }

    /// The worker has not begun: nothing here waits for it.
    #[tokio::test]
    async fn each_place_waits_once_and_of_too_many_the_oldest_is_forgotten() {
        let (leaving, line) = leaving();
        let most = WAITING as u128;
        for id in [1..=most, most..=most + 2].into_iter().flatten() {
            leaving.later(&line, TicketId(id));
        }
        let queue = leaving.queue.lock();
        let waiting: Vec<u128> = queue.places.iter().map(|place| place.id.0).collect();
        assert_eq!(waiting, (3..=most + 2).collect::<Vec<_>>());
        assert_eq!(queue.known, waiting.into_iter().map(TicketId).collect());
    }

    #[test]
    fn a_place_that_is_being_released_as_its_runtime_ends_goes_on_waiting() {
        let never: Opener = Arc::new(|| Box::pin(std::future::pending()));
        let store = Lazy::new("away".to_owned(), CAPABILITIES, never);
        let leaving = Arc::new(Leaving::new(Arc::new(store), Arc::default()));
        let line = Name::new("x").expect("fine");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let waiting = |leaving: &Leaving| leaving.queue.lock().places.len();
        runtime.block_on(async {
            leaving.later(&line, TicketId(1));
            leaving.later(&line, TicketId(2));
            while waiting(&leaving) > 1 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        assert!(leaving.has(TicketId(1)));
        assert_eq!(leaving.next().map(|place| place.id), Some(TicketId(1)), "ahead of the other");
        assert_eq!(waiting(&leaving), 1);
    }

    #[tokio::test]
    async fn a_departure_that_is_refused_is_not_repeated() {
        let attempts = Arc::new(Mutex::new(0));
        let count = Arc::clone(&attempts);
        let opener: Opener = Arc::new(move || {
            *count.lock() += 1;
            Box::pin(std::future::ready(Err(Error::new(ErrorKind::Denied, "a test"))))
        });
        let store = Lazy::new("denies".to_owned(), CAPABILITIES, opener);
        let leaving = Arc::new(Leaving::new(Arc::new(store), Arc::default()));
        leaving.later(&Name::new("x").expect("fine"), TicketId(1));
        while leaving.queue.lock().working {
            assert!(*attempts.lock() < 2, "it is repeated");
            tokio::task::yield_now().await;
        }
        assert!(!leaving.has(TicketId(1)));
    }

    /// A release that is dropped with the runtime of its caller starts a worker, which is dropped
    /// as well, and does not wait for ever.
    #[test]
    fn a_place_that_comes_as_its_runtime_ends_waits_for_the_next() {
        struct Dropped(Arc<Leaving>, Name);
        impl Drop for Dropped {
            fn drop(&mut self) {
                assert!(Handle::try_current().is_ok(), "a runtime that is ending");
                self.0.later(&self.1, TicketId(1));
            }
        }
        let (leaving, line) = leaving();
        let dropped = Dropped(Arc::clone(&leaving), line);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.spawn(async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        });
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            ended.send(()).expect("it is waited for");
        });
        ends.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(!leaving.queue.lock().working);
        assert_eq!(leaving.next().map(|place| place.id), Some(TicketId(1)));
    }

    #[tokio::test]
    async fn a_place_that_has_waited_too_long_has_expired() {
        let (leaving, line) = leaving();
        for id in 1..=3 {
            leaving.later(&line, TicketId(id));
        }
        for place in leaving.queue.lock().places.iter_mut().take(2) {
            place.until = clock::now();
        }
        assert_eq!(leaving.next().map(|place| place.id), Some(TicketId(3)));
        // Which is known until it has been released.
        assert_eq!(leaving.queue.lock().known, HashSet::from([TicketId(3)]));
        assert!(leaving.next().is_none());
        let queue = leaving.queue.lock();
        assert!(queue.known.is_empty() && !queue.working, "the worker is done");
    }

    #[tokio::test]
    async fn of_two_departures_of_a_ticket_both_are_waited_for() {
        let ((leaving, _), id) = (leaving(), TicketId(1));
        let [one, other] = [(), ()].map(|()| Begun::new(&leaving, id));
        drop(one);
        assert!(leaving.has(id));
        assert_eq!(leaving.are_done(id).now_or_never(), None);
        drop(other);
        assert!(!leaving.has(id));
        assert_eq!(leaving.are_done(id).now_or_never(), Some(true));
    }

    /// A caller that asks for a place with the same ticket waits for it, and is woken by its end.
    #[tokio::test]
    async fn a_departure_that_is_under_way_is_known_until_it_has_ended() {
        let (id, answers) = (TicketId(1), Arc::new(Notify::new()));
        let answer = Arc::clone(&answers);
        let opener: Opener = Arc::new(move || {
            let answer = Arc::clone(&answer);
            Box::pin(async move {
                answer.notified().await;
                Err(Error::new(ErrorKind::Denied, "a test"))
            })
        });
        let store = Lazy::new("slow".to_owned(), CAPABILITIES, opener);
        let leaving = Arc::new(Leaving::new(Arc::new(store), Arc::default()));
        let left = leaving.leave(&Name::new("x").expect("fine"), id);
        assert!(leaving.has(id) && !leaving.has(TicketId(2)));
        let mut done = Box::pin(leaving.are_done(id));
        assert_eq!(done.as_mut().now_or_never(), None);
        answers.notify_one();
        let limit = Duration::from_secs(60);
        assert_eq!(clock::timeout(limit, done).await, Some(true), "nothing is to be repeated");
        assert!(!leaving.has(id));
        assert!(left.await.is_err());
    }
}
