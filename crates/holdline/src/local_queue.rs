//! The local queue: the line inside the process.
//!
//! Tasks of one client that want the same name queue here, by the rule by which tickets queue in
//! the store: a task passes when the weight ahead of it, plus its own, fits the capacity. Only then
//! is its ticket sent. So of 64 tasks that want a mutex, one at a time talks to the store, and the
//! others cost it nothing; 64 readers do not wait for one another. If the store keeps a queue and
//! notifies, the next task of a mutex passes as soon as the release of the one before it has begun.
//!
//! With local handoff, a holder passes the lock to the next task here, unseen by the store. The
//! ticket has reserved a token for each such holder, so tokens still rise. The number and time of
//! handoffs are bounded, so that other processes get their turn, and a lock that no task comes for
//! is released in the background.

use crate::availability::OUTAGE_CHECK;
use crate::clock;
use crate::driver;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::handles::StoreHandles;
use crate::held_lock::{HeldLock, LocalPlace};
use crate::names::Name;
use crate::renewer;
use crate::request::{AcquireRequest, Handoff, Terms};
use crate::store::{Refusal, Seq, refuse};
use crate::sync::Mutex;
use holdline_kernel::{Time, WaitMode};
use std::collections::HashMap;
use std::mem;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long a lock that was passed on waits for the next task, whose future may no longer be
/// polled: as long as the store keeps the place of a waiter that does not ask.
const PATIENCE: Duration = Duration::from_secs(3);

/// The queues of one client, by name. A queue exists while a task uses it.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues(Mutex<HashMap<Name, Entry>>);

#[derive(Debug)]
struct Entry {
    queue: Arc<LocalQueue>,
    capacity: u32,
    users: u32,
}

#[derive(Debug)]
struct LocalQueue {
    /// The admission rule as Tokio's semaphore implements it: fair, weighted, and cancel-safe.
    permits: Semaphore,
    /// The number of tasks that have passed, and ask the store for a lock or for its release.
    asking: AtomicU32,
    /// The number of tasks that have given up, before their limits, because the store did not
    /// answer.
    gave_up: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// A lock that its holder has passed on. It is released when dropped, if the next task needs a
    /// different lock or there is none.
    handed: Option<Box<HandedOver>>,
    /// Whether [`release_unclaimed`] runs for this queue.
    watched: bool,
}

#[derive(Debug)]
struct HandedOver {
    guard: Guard,
    budget: Budget,
    since: Time,
}

/// What is left of a ticket's handoffs, and their terms.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: u32,
    until: Time,
    terms: Terms,
}

impl LocalQueues {
    /// Acquires a lock: first in the local queue, then in the store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves no lasting place, here or in the store.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        handles: &Arc<StoreHandles>,
        request: &AcquireRequest,
        handoff: Option<Handoff>,
    ) -> Result<Option<Guard>> {
        let waiter = self.enter(request)?;
        if !waiter.pass(handles, request).await? {
            return Ok(None);
        }
        let mut permit =
            LocalPermit { weight: request.weight, waiter, budget: None, releasing: false };
        let terms = handoff.map(|_| request.terms());
        if let Some(handed) = permit.waiter.handed_over()
            && terms.is_some_and(|terms| terms == handed.budget.terms)
            && handed.guard.is_valid()
        {
            let (held, token) = handed.guard.into_parts();
            request.metrics.handed_over();
            permit.budget = Some(handed.budget);
            let token = Seq(token.0 + 1);
            held.keep_local_place(Box::new(permit));
            return Ok(Some(Guard::new(held, token)));
        }
        let asked = {
            let _asking = Asking::new(&permit.waiter.queue);
            driver::acquire(handles, request).await.inspect_err(|error| {
                if error.retryable() && clock::now() < request.limit {
                    permit.waiter.queue.gave_up.fetch_add(1, Ordering::Relaxed);
                }
            })?
        };
        let Some(held) = asked else { return Ok(None) };
        // Its time begins now: while the ticket waited, others had the lock.
        permit.budget = handoff.map(|bounds| Budget {
            left: bounds.most - 1,
            until: clock::now().after(bounds.time),
            terms: request.terms(),
        });
        let token = held.seq;
        held.keep_local_place(Box::new(permit));
        Ok(Some(Guard::new(held, token)))
    }

    fn enter(self: &Arc<Self>, request: &AcquireRequest) -> Result<LocalWaiter> {
        if request.weight == 0 || request.weight > request.capacity {
            let message = format!(
                "lock \"{}\" was asked for {} of {} permits; ask for at least 1 and at most all",
                request.line, request.weight, request.capacity
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut map = self.0.lock();
        let entry = map.entry(request.line.clone()).or_insert_with(|| {
            let permits = Semaphore::new(permits_for(request.capacity) as usize);
            let (asking, gave_up) = (AtomicU32::new(0), AtomicU32::new(0));
            let queue = Arc::new(LocalQueue { permits, asking, gave_up, state: Mutex::default() });
            Entry { queue, capacity: request.capacity, users: 0 }
        });
        if entry.capacity != request.capacity {
            let ticket = request.ticket()?;
            return Err(refuse(&request.line, &ticket, Refusal::Capacity { line: entry.capacity }));
        }
        entry.users += 1;
        let queue = Arc::clone(&entry.queue);
        queue.state.lock().waiting += 1;
        Ok(LocalWaiter {
            local_queues: Arc::clone(self),
            queue,
            line: request.line.clone(),
            waiting: true,
        })
    }
}

/// The number of semaphore permits for a weight or capacity of a line.
fn permits_for(weight: u32) -> u32 {
    bounded(weight, Semaphore::MAX_PERMITS)
}

/// The same for a semaphore of at most `most` permits. On 32-bit machines that is less than the
/// capacity of a read-write lock; a heavier weight then takes all permits. So some tasks wait here
/// that could already ask the store, but no task asks that would have to wait.
fn bounded(weight: u32, most: usize) -> u32 {
    u32::try_from(most).map_or(weight, |most| weight.min(most))
}

/// A task's use of a local queue, from entering it to leaving it.
#[derive(Debug)]
struct LocalWaiter {
    local_queues: Arc<LocalQueues>,
    queue: Arc<LocalQueue>,
    line: Name,
    waiting: bool,
}

impl LocalWaiter {
    /// Waits for its turn. Returns whether it came in time; the permits are then the caller's, to
    /// be returned by a [`LocalPermit`]. An error if the store is away, and so nobody knows whether
    /// the lock is held.
    async fn pass(&self, handles: &StoreHandles, request: &AcquireRequest) -> Result<bool> {
        let permits = &self.queue.permits;
        let silence = || handles.silence(&self.line);
        let not_passed = || self.outage(handles).map_or(Ok(false), |_| Err(silence()));
        if request.mode == WaitMode::Try {
            let permit = permits.try_acquire_many(permits_for(request.weight));
            return permit
                .map(SemaphorePermit::forget)
                .map_or_else(|_| not_passed(), |()| Ok(true));
        }
        // The tasks behind one that asks share its outage, and do not wait out one each. If the
        // store has never answered, they give up with it.
        let given_up = || self.queue.gave_up.load(Ordering::Relaxed);
        let before = given_up();
        let began = clock::now();
        // An outage that began earlier may be over, if no task has asked the store since.
        let away = || {
            let outage = self.outage(handles).filter(|_| handles.availability.has_answered());
            outage.map(|away| away.min(began.until(clock::now())))
        };
        let mut permit = pin!(permits.acquire_many(permits_for(request.weight)));
        loop {
            let rest = request.outage.saturating_sub(away().unwrap_or_default());
            let check = clock::now().after(rest.max(OUTAGE_CHECK)).min(request.limit);
            // The semaphore is never closed.
            if let Some(Ok(permit)) = clock::within(check, permit.as_mut()).await {
                if given_up() != before && !handles.availability.has_answered() {
                    return Err(silence());
                }
                permit.forget();
                return Ok(true);
            }
            if clock::now() >= request.limit {
                return not_passed();
            }
            if away().is_some_and(|away| away >= request.outage) {
                return Err(silence());
            }
        }
    }

    /// How long the store has been away, if a task ahead asks it.
    fn outage(&self, handles: &StoreHandles) -> Option<Duration> {
        let asks = self.queue.asking.load(Ordering::Relaxed) > 0;
        handles.availability.away_for().filter(|_| asks)
    }

    /// Ends the wait, and takes the lock that the last holder may have passed on.
    fn handed_over(&mut self) -> Option<Box<HandedOver>> {
        self.waiting = false;
        let mut state = self.queue.state.lock();
        state.waiting -= 1;
        state.handed.take()
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        let unclaimed = if mem::take(&mut self.waiting) {
            let mut state = self.queue.state.lock();
            state.waiting -= 1;
            if state.waiting == 0 { state.handed.take() } else { None }
        } else {
            None
        };
        drop(unclaimed); // releases the lock, outside of the queue's mutex
        let mut map = self.local_queues.0.lock();
        if let Some(entry) = map.get_mut(&self.line) {
            entry.users -= 1;
            if entry.users == 0 {
                map.remove(&self.line);
            }
        }
    }
}

/// A task that asks the store, counted until this is dropped.
struct Asking<'a>(&'a LocalQueue);

impl<'a> Asking<'a> {
    fn new(queue: &'a LocalQueue) -> Self {
        queue.asking.fetch_add(1, Ordering::Relaxed);
        Asking(queue)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A holder's place in the local queue. Dropping it lets the next task pass.
struct LocalPermit {
    weight: u32,
    waiter: LocalWaiter,
    budget: Option<Budget>,
    /// Whether the store is asked to release its lock.
    releasing: bool,
}

impl LocalPlace for LocalPermit {
    fn hand_over(&mut self, held: &Arc<HeldLock>, token: Seq) -> bool {
        let Some(budget) = self.budget else { return false };
        let since = clock::now();
        // If the next holder died, an extended lease would keep others out for longer than its own.
        let extended = held.longest_lease() > budget.terms.lease.length;
        if budget.left == 0 || since >= budget.until || extended {
            return false;
        }
        let mut state = self.waiter.queue.state.lock();
        if state.waiting == 0 {
            return false;
        }
        let guard = Guard::new(Arc::clone(held), token);
        let budget = Budget { left: budget.left - 1, ..budget };
        state.handed = Some(Box::new(HandedOver { guard, budget, since }));
        if !mem::replace(&mut state.watched, true) {
            renewer::spawn(release_unclaimed(Arc::downgrade(&self.waiter.queue)));
        }
        true
    }

    fn releases(&mut self) {
        if !mem::replace(&mut self.releasing, true) {
            self.waiter.queue.asking.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn downgrade(&mut self, weight: u32) {
        let weight = weight.min(self.weight);
        let surplus = permits_for(self.weight) - permits_for(weight);
        self.weight = weight;
        self.waiter.queue.permits.add_permits(surplus as usize);
    }
}

impl Drop for LocalPermit {
    fn drop(&mut self) {
        if self.releasing {
            self.waiter.queue.asking.fetch_sub(1, Ordering::Relaxed);
        }
        self.waiter.queue.permits.add_permits(permits_for(self.weight) as usize);
    }
}

/// Releases a lock that was passed on in this queue and that no task has come for. Ends when it
/// finds none passed on. A queue has one such task at most, which looks every few seconds.
async fn release_unclaimed(queue: Weak<LocalQueue>) {
    let mut end = clock::now().after(PATIENCE);
    loop {
        clock::sleep_until(end).await;
        let Some(queue) = queue.upgrade() else { return };
        let mut state = queue.state.lock();
        let Some(handed) = &state.handed else {
            state.watched = false;
            return;
        };
        end = handed.since.after(PATIENCE);
        let unclaimed = if end <= clock::now() { state.handed.take() } else { None };
        drop(state);
        drop(unclaimed); // releases the lock, outside of the queue's mutex
    }
}

#[cfg(test)]
mod tests {
    use super::bounded;

    /// Weights that pass a semaphore of fewer permits together also fit the capacity.
    #[test]
    fn weights_are_bounded_where_a_semaphore_has_few_permits() {
        const FEW: usize = (1 << 29) - 1; // tokio's, on 32-bit machines
        assert_eq!(bounded(1 << 30, FEW), (1 << 29) - 1, "a writer has all of them");
        assert_eq!(bounded(1, FEW), 1, "and a reader one");
        assert_eq!(bounded(u32::MAX, u32::MAX as usize), u32::MAX);
        for (capacity, most) in (1..=12).flat_map(|capacity| (1..=12).map(move |m| (capacity, m))) {
            for (one, other) in (1..=capacity).flat_map(|a| (1..=capacity).map(move |b| (a, b))) {
                let passes = bounded(one, most) + bounded(other, most) <= bounded(capacity, most);
                assert!(
                    !passes || one + other <= capacity,
                    "{one} + {other} of {capacity}, {most}"
                );
                assert!(bounded(one, most) <= bounded(capacity, most), "alone it passes");
            }
        }
    }
}
