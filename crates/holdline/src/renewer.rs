//! The renewer: one background thread that renews every held lock, and completes the releases that
//! dropped futures and guards leave behind.
//!
//! It is a thread and not a task, because a task depends on the program's executor: an executor
//! that is blocked for longer than a lease would lose every lock. It uses the store's [background
//! handle](crate::store::Store::background_handle), so a congested connection of the program does
//! not delay renewals. All locks of the process share one schedule; a held lock costs one entry
//! there, and neither a timer nor a task.

use crate::availability::Call;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::handles::StoreHandles;
use crate::held_lock::HeldLock;
use crate::names::Name;
use crate::store::{Store, TicketId};
use crate::sync::{Mutex, contained};
use crate::thread;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use holdline_kernel::{Backoff, Lease, Next, Time};
use std::any::Any;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// A place to be released in the background. Its client counts it until it is released or its lease
/// is over.
pub(crate) struct PendingRelease {
    handles: Arc<StoreHandles>,
    line: Name,
    id: TicketId,
    /// When the place has expired in any case.
    until: Time,
    /// A value to be dropped after the release: what must not happen before.
    pub(crate) then: Option<Box<dyn Any + Send>>,
    done: bool,
}

impl PendingRelease {
    /// The release of a lock that was held.
    pub(crate) fn of(held: &HeldLock) -> Self {
        PendingRelease::new(&held.handles, &held.line, held.ticket().id, held.longest_lease())
    }

    /// The release of a place that expires after this time from now in any case.
    pub(crate) fn new(
        handles: &Arc<StoreHandles>,
        line: &Name,
        id: TicketId,
        lease: Duration,
    ) -> Self {
        handles.undone.add();
        let until = clock::now().after(lease).after(Lease::drift_of(lease));
        PendingRelease {
            handles: Arc::clone(handles),
            line: line.clone(),
            id,
            until,
            then: None,
            done: false,
        }
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        let then = self.then.take();
        // A panic ended the task that drove it, unless it is done: it starts again while the place
        // may exist.
        if self.done || clock::now() >= self.until {
            contained(|| drop(then)); // it wakes the next task
            self.handles.undone.remove();
            return;
        }
        let (handles, line) = (Arc::clone(&self.handles), self.line.clone());
        release_later(PendingRelease {
            handles,
            line,
            id: self.id,
            until: self.until,
            then,
            done: false,
        });
    }
}

/// When a lock is due, and its address, which distinguishes locks that are due at the same time.
type Due = (Time, usize);

fn due_at(due: Time, held: &Arc<HeldLock>) -> Due {
    (due, Arc::as_ptr(held).addr())
}

struct Plan {
    entries: BTreeMap<Due, Arc<HeldLock>>,
    /// Tickets with a store's hint that they may be gone, not looked up yet. They are looked up
    /// together: a lost session gives a hint about each of its locks.
    hints: Vec<TicketId>,
    /// Hinted tickets that were unknown here: a store may find a place gone before the reply that
    /// gave it has reached the caller.
    early: VecDeque<TicketId>,
    /// When the renewer wakes by itself. An earlier entry wakes it at once.
    planned: Time,
    /// Places to be released, not begun yet.
    leaves: Vec<PendingRelease>,
    /// Whether a test wants a panic.
    #[cfg(feature = "testing")]
    panics: bool,
}

struct Renewer {
    plan: Mutex<Plan>,
    nudge: Notify,
}

/// The most hints about unknown tickets that are kept, for locks that will soon be registered.
const EARLY: usize = 256;
/// The most renewals, and releases, that are begun before other work is handled.
const FEW: usize = 20;
/// How much earlier a renewal is sent to go with others. Below a quarter of the shortest lease.
const TOGETHER: Duration = Duration::from_millis(20);
/// The time limit of one release request.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// The pause after a panic, so that a recurring panic does not keep a processor busy.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// One piece of the renewer's work.
enum Job {
    Renew(Arc<HeldLock>),
    Lapse(Arc<HeldLock>),
    Finish(PendingRelease),
}

static RENEWER: Renewer = Renewer::new();

/// Makes sure that the renewer's thread runs. Called before any request that it must follow up, by
/// renewing or releasing.
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) if the system is short of threads or file
/// descriptors; the next call tries again.
pub(crate) fn start() -> Result<()> {
    runtime().map(|_| ())
}

fn runtime() -> Result<&'static Handle> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    let started = || thread::start("holdline-renewer", || RENEWER.go_on_for_ever());
    thread::made_once(&RUNTIME, started)
}

/// Does other brief work about held locks on the renewer's thread.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = runtime().expect("it runs since before the lock was requested");
    drop(runtime.spawn(work));
}

/// Registers a lock for renewal, and for its deadline.
pub(crate) fn register(held: &Arc<HeldLock>) {
    let mut plan = RENEWER.plan.lock();
    let id = held.ticket().id;
    let early = plan.early.iter().position(|doubted| *doubted == id);
    if early.and_then(|at| plan.early.remove(at)).is_some() {
        held.verify(held.since);
    }
    let due = held.first_due();
    held.set_due(due);
    plan.entries.insert(due_at(due, held), Arc::clone(held));
    let early = due < plan.planned;
    drop(plan);
    if early {
        RENEWER.nudge.notify_one();
    }
}

/// Stops renewing a lock.
pub(crate) fn unregister(held: &Arc<HeldLock>) {
    let mut plan = RENEWER.plan.lock();
    let due = held.set_due(Time::NEVER);
    plan.entries.remove(&due_at(due, held));
}

/// Releases a place in the background, retrying until it is released or expired.
pub(crate) fn release_later(leave: PendingRelease) {
    RENEWER.plan.lock().leaves.push(leave);
    RENEWER.nudge.notify_one();
}

/// Asks the store at once whether it still has this ticket.
pub(crate) fn verify(id: TicketId) {
    RENEWER.plan.lock().hints.push(id);
    RENEWER.nudge.notify_one();
}

/// Makes the renewer panic, as a bug in it would.
#[cfg(feature = "testing")]
pub(crate) fn panic_soon() {
    RENEWER.plan.lock().panics = true;
    RENEWER.nudge.notify_one();
}

impl Renewer {
    const fn new() -> Self {
        let plan = Plan {
            entries: BTreeMap::new(),
            hints: Vec::new(),
            early: VecDeque::new(),
            planned: Time::NEVER,
            leaves: Vec::new(),
            #[cfg(feature = "testing")]
            panics: false,
        };
        Renewer { plan: Mutex::new(plan), nudge: Notify::const_new() }
    }

    /// Runs for ever. After a panic, marks all locks as lost and runs again; the next run completes
    /// the pending releases.
    async fn go_on_for_ever(&'static self) {
        loop {
            let _ = AssertUnwindSafe(self.run()).catch_unwind().await;
            // A subscriber or a waker may panic as well; all holders must be notified all the same.
            contained(|| {
                tracing::error!("the thread that renews locks has panicked; all locks are lost");
            });
            while let Some((_, held)) = { self.plan.lock().entries.pop_first() } {
                contained(|| held.lose_unrenewed());
            }
            clock::pause(AFTER_PANIC).await;
        }
    }

    async fn run(&'static self) {
        // A panic of a store fails one call, and must not end the renewer.
        let begin = |job| AssertUnwindSafe(work(job)).catch_unwind();
        let mut work = FuturesUnordered::new();
        let (mut due, mut leaves) = (VecDeque::new(), VecDeque::new());
        loop {
            let Agenda { losses, next } = self.collect(&mut due, &mut leaves);
            work.extend(losses.into_iter().map(|held| begin(Job::Lapse(held))));
            // In small groups: while the store works on one group the next is begun, and the first
            // are complete, and their memory freed, before the last.
            let few = due.drain(..due.len().min(FEW)).filter(|held| !held.is_over());
            work.extend(few.map(|held| begin(Job::Renew(held))));
            // The same for releases, so that a burst of them does not delay renewals.
            let few = leaves.drain(..leaves.len().min(FEW));
            work.extend(few.map(|leave| begin(Job::Finish(leave))));
            tokio::select! {
                () = self.nudge.notified() => {}
                Some(_) = work.next(), if !work.is_empty() => {}
                () = clock::sleep_until(next), if next != Time::NEVER => {}
                () = tokio::task::yield_now(), if !due.is_empty() || !leaves.is_empty() => {}
            }
            let all_done = |cx: &mut Context<'_>| {
                while let Poll::Ready(Some(_)) = work.poll_next_unpin(cx) {}
                Poll::Ready(())
            };
            poll_fn(all_done).await;
        }
    }

    /// Adds new renewals and releases, and takes other pending work.
    fn collect(
        &self,
        renewals: &mut VecDeque<Arc<HeldLock>>,
        leaves: &mut VecDeque<PendingRelease>,
    ) -> Agenda {
        let now = clock::now();
        let mut losses = Vec::new();
        // Once in a pass: one that is renewed very often is due again in a moment.
        let mut again_due = Vec::new();
        let mut plan = self.plan.lock();
        #[cfg(feature = "testing")]
        assert!(!std::mem::take(&mut plan.panics), "a test wanted this");
        plan.take_hints(now);
        // Locks that will be due in a moment go along: a store may renew many in one call.
        let moment = if plan.first() <= now { now.after(TOGETHER) } else { now };
        while let Some(first) = plan.entries.first_entry().filter(|first| first.key().0 <= moment) {
            let at = first.key().0.max(now);
            if at > now && first.get().until() <= at {
                break; // a loss, which must not come early
            }
            let held = first.remove();
            if held.is_over() {
                held.set_due(Time::NEVER);
                continue;
            }
            let (next, again) = held.next(at);
            if next == Next::Lose {
                losses.push(held);
                continue;
            }
            if next == Next::Renew {
                renewals.push_back(Arc::clone(&held));
            }
            again_due.push((due_at(again, &held), held));
        }
        plan.entries.extend(again_due);
        plan.planned = plan.first();
        leaves.extend(plan.leaves.drain(..));
        Agenda { losses, next: plan.planned }
    }
}

impl Plan {
    /// When the first lock is due.
    fn first(&self) -> Time {
        self.entries.first_key_value().map_or(Time::NEVER, |((due, _), _)| *due)
    }

    /// Makes the hinted locks due, in one pass.
    fn take_hints(&mut self, now: Time) {
        if self.hints.is_empty() {
            return;
        }
        let mut hints: HashSet<TicketId> = self.hints.drain(..).collect();
        let held = self.entries.values();
        let found: Vec<_> =
            held.filter(|held| hints.remove(&held.ticket().id)).map(Arc::clone).collect();
        for held in found {
            held.verify(now);
            let due = held.set_due(now);
            self.entries.remove(&due_at(due, &held));
            self.entries.insert(due_at(now, &held), held);
        }
        self.early.extend(hints);
        let surplus = self.early.len().saturating_sub(EARLY);
        self.early.drain(..surplus);
    }
}

/// The locks whose deadlines have passed, and when to look again.
struct Agenda {
    losses: Vec<Arc<HeldLock>>,
    next: Time,
}

async fn work(job: Job) {
    match job {
        Job::Renew(held) => renew(held).await,
        Job::Lapse(held) => lapse(held).await,
        Job::Finish(leave) => finish(leave).await,
    }
}

/// Handles a deadline that passed without a renewal: notifies the holder, then leaves the line. Not
/// at once: the margin is the holder's time to stop its work, and no other ticket may be admitted
/// before it is over. By then the lease is over too, unless a renewal succeeded unconfirmed.
async fn lapse(held: Arc<HeldLock>) {
    if held.lose() {
        clock::sleep_until(held.lapses()).await;
        finish(PendingRelease::of(&held)).await;
    }
}

async fn finish(mut leave: PendingRelease) {
    let backoff =
        Backoff::exponential(Duration::from_millis(20), Duration::from_secs(2)).jitter(50);
    let mut told = false;
    for attempt in 0.. {
        // A panic, say of a subscriber, is a failure as any other: it must not recur at once.
        let left = AssertUnwindSafe(has_left(&leave, &mut told)).catch_unwind().await;
        if left.unwrap_or(false) {
            break;
        }
        let now = clock::now();
        if now >= leave.until {
            tracing::warn!(name = %leave.line, "left the line to its lease");
            break;
        }
        let pause = backoff.pause(attempt, fastrand::u64(..));
        clock::pause(pause.min(now.until(leave.until))).await;
    }
    leave.done = true;
}

/// Tries once to release a place, and warns of the first error that no retry helps. Returns whether
/// it is released.
async fn has_left(leave: &PendingRelease, told: &mut bool) -> bool {
    let Err(error) = try_to_leave(leave).await else { return true };
    // The place still exists until its lease is over, and permissions may be restored.
    let lasting = !error.retryable() && error.kind() != ErrorKind::Unknown;
    if lasting && !mem::replace(told, true) {
        tracing::warn!(name = %leave.line, %error, "could not leave the line");
    }
    false
}

/// Sends one release request, when it is its turn.
async fn try_to_leave(leave: &PendingRelease) -> Result<()> {
    let handles = &*leave.handles;
    let _turn = handles.undone.turn().await;
    let call = AssertUnwindSafe(async { handles.background.leave(&leave.line, leave.id).await });
    let limit = clock::now().after(LEAVE_TIME);
    let outcome = clock::within(limit, call.catch_unwind()).await;
    let outcome = outcome.map(|outcome| {
        outcome.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the store panicked; report it"))
        })
    });
    handles.note(Call::Release, outcome.as_ref());
    match outcome {
        Some(outcome) => outcome.map(|_| ()),
        None => Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time")),
    }
}

/// Renews a lock once, as [`HeldLock::renew`] does. `None` if the store does not answer in time.
pub(crate) async fn ask(
    held: &HeldLock,
    store: &dyn Store,
    lease: Option<Lease>,
    limit: Time,
) -> Option<Result<()>> {
    let changes = held.changes();
    let outcome = clock::within(limit, held.renew(store, lease)).await;
    held.handles.note(Call::Keep, outcome.as_ref());
    if held.changes() != changes {
        verify(held.ticket().id); // the next renewal sends what this one may have undone
    }
    outcome
}

async fn renew(held: Arc<HeldLock>) {
    let interval = held.until().0.saturating_sub(clock::now().0);
    let limit = clock::now().after(Duration::from_nanos(interval).min(held.ticket().lease / 4));
    let outcome = ask(&held, &*held.handles.background, None, limit).await;
    held.metrics.renewed(matches!(outcome, Some(Ok(()))) && !held.was_lost());
    match outcome {
        Some(Ok(())) => {
            if held.is_over() {
                unregister(&held);
            }
        }
        Some(Err(error)) => {
            tracing::warn!(name = %held.line, token = held.seq.0, %error, "renewal failed");
        }
        None => {
            tracing::warn!(name = %held.line, token = held.seq.0, "renewal not answered in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held_lock::tests::asked_for;
    use crate::stores::memory::Memory;
    use crate::stores::quorum::lazy::{Lazy, Opener};
    use holdline_testkit::panicking_subscriber;

    const LEASE: Lease = Lease { length: Duration::from_secs(3600), margin: Duration::ZERO };

    fn is_scheduled(held: &Arc<HeldLock>) -> bool {
        RENEWER.plan.lock().entries.values().any(|entry| Arc::ptr_eq(entry, held))
    }

    /// Waits until the renewer has found a lock gone, and has no more work with it.
    async fn is_found_gone(held: &Arc<HeldLock>) {
        let gone = async {
            held.gone().await;
            while is_scheduled(held) {
                clock::pause(Duration::from_millis(1)).await;
            }
        };
        let gone = clock::timeout(Duration::from_secs(30), gone).await;
        assert!(gone.is_some(), "nobody asked the store, which does not have it");
    }

    #[tokio::test]
    async fn a_lock_is_in_the_schedule_until_it_is_unregistered() {
        start().expect("there is a thread");
        let held = Arc::new(asked_for(Duration::ZERO, TicketId(0x5ced), LEASE));
        register(&held);
        assert!(is_scheduled(&held));
        unregister(&held);
        assert!(!is_scheduled(&held));
    }

    /// It would be sent again and again without a pause.
    #[tokio::test]
    async fn a_release_that_is_refused_and_warned_of_with_a_panic_is_tried_with_pauses() {
        let denied = || Error::new(ErrorKind::Denied, "a test");
        let refuses: Opener = Arc::new(move || Box::pin(std::future::ready(Err(denied()))));
        let capabilities = Store::capabilities(&Memory::new());
        let store = Lazy::new("a test".to_owned(), capabilities, refuses);
        let handles = Arc::new(StoreHandles::new(Arc::new(store)));
        let line = Name::new("x").expect("a name");
        let first = handles.background.leave(&line, TicketId(7)).await;
        assert_eq!(first.expect_err("it is refused").kind(), ErrorKind::Denied);
        let leave = PendingRelease::new(&handles, &line, TicketId(7), Duration::from_millis(200));
        let until = leave.until;
        let _panics = tracing::subscriber::set_default(panicking_subscriber());
        let _ = AssertUnwindSafe(finish(leave)).catch_unwind().await;
        assert!(clock::now() >= until, "a panic has ended it");
        assert_eq!(handles.undone.none_left().now_or_never(), Some(()));
    }

    /// Say, of a subscriber or a recorder of metrics that panics each time.
    #[tokio::test]
    async fn a_release_that_panics_ends_with_its_lease() {
        start().expect("there is a thread");
        let held = asked_for(Duration::ZERO, TicketId(0xbad), LEASE);
        let mut leave = PendingRelease::of(&held);
        leave.until = clock::now();
        drop(leave);
        assert_eq!(held.handles.undone.none_left().now_or_never(), Some(()));
    }

    /// Renewals go together, a moment early. A deadline is not a renewal.
    #[test]
    fn a_loss_does_not_come_early_with_the_renewals_of_others() {
        let renewer = Renewer::new(); // no thread runs it
        // The clock began when the machine was started, which may be a minute ago.
        let lease = Lease { length: Duration::from_secs(30), ..LEASE };
        let due = Arc::new(asked_for(lease.length / 2, TicketId(1), lease));
        let ends =
            Arc::new(asked_for(lease.usable().saturating_sub(TOGETHER / 2), TicketId(2), lease));
        for (at, held) in [(due.first_due(), &due), (ends.until(), &ends)] {
            renewer.plan.lock().entries.insert(due_at(at, held), Arc::clone(held));
        }
        let (mut renewals, mut leaves) = (VecDeque::new(), VecDeque::new());
        let Agenda { losses, .. } = renewer.collect(&mut renewals, &mut leaves);
        assert!(losses.is_empty() || clock::now() >= ends.until(), "it is still held");
        assert!(Arc::ptr_eq(&renewals[0], &due));
    }

    /// It would be sent twice at once, and then not for twice its interval.
    #[test]
    fn a_lock_that_is_renewed_very_often_is_renewed_once_at_a_time() {
        let renewer = Renewer::new(); // no thread runs it
        let interval = TOGETHER / 4;
        let often = asked_for(Duration::ZERO, TicketId(3), LEASE);
        often.renew_every(interval);
        let often = Arc::new(often);
        std::thread::sleep(interval);
        renewer.plan.lock().entries.insert(due_at(often.first_due(), &often), often);
        let (mut renewals, mut leaves) = (VecDeque::new(), VecDeque::new());
        renewer.collect(&mut renewals, &mut leaves);
        assert_eq!((renewals.len(), renewer.plan.lock().entries.len()), (1, 1));
    }

    /// Hints about locks that will never be registered take no more and more memory.
    #[test]
    fn the_latest_hints_about_unknown_tickets_are_kept() {
        let renewer = Renewer::new(); // no thread runs it
        let mut plan = renewer.plan.lock();
        for number in 0..EARLY as u128 + 5 {
            plan.hints.push(TicketId(number));
            plan.take_hints(clock::now());
        }
        assert!(plan.early.iter().map(|id| id.0).eq(5..EARLY as u128 + 5));
    }

    #[tokio::test]
    async fn a_lock_that_is_found_gone_leaves_the_schedule() {
        start().expect("there is a thread");
        let held = Arc::new(asked_for(Duration::ZERO, TicketId(0x60e), LEASE));
        register(&held);
        verify(held.ticket().id);
        is_found_gone(&held).await;
    }

    /// A store may find a place gone before the reply that gave it has arrived.
    #[tokio::test]
    async fn a_hint_that_comes_before_its_lock_is_looked_into() {
        start().expect("there is a thread");
        let id = TicketId(0xea71);
        verify(id);
        while !RENEWER.plan.lock().early.contains(&id) {
            clock::pause(Duration::from_millis(1)).await;
        }
        let held = Arc::new(asked_for(Duration::ZERO, id, LEASE));
        register(&held);
        is_found_gone(&held).await;
    }
}
