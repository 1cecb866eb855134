//! The renewer: one background thread that renews every held lock, and finishes what a dropped
//! future or guard left undone.
//!
//! It is a thread, and not a task, because a task shares its fate with the program's executor: one
//! that is blocked for longer than a lease would lose every lock. It uses the store's
//! [background handle](crate::store::Store::background_handle), so that a jammed connection of the
//! program does not jam renewals either. All locks of the process share one schedule; a held lock
//! costs an entry there, and neither a timer nor a task.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::handles::StoreHandles;
use crate::held_lock::HeldLock;
use crate::names::Name;
use crate::store::TicketId;
use crate::sync::Mutex;
use crate::thread;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use holdline_kernel::{Backoff, Lease, Next, Time};
use std::any::Any;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// A place to give up in the background. Its client counts it until it is given up, or its lease is
/// over.
pub(crate) struct PendingRelease {
    handles: Arc<StoreHandles>,
    line: Name,
    id: TicketId,
    /// After this the place has lapsed anyway.
    until: Time,
    /// Dropped when it is done: what must not happen before.
    pub(crate) then: Option<Box<dyn Any + Send>>,
    done: bool,
}

impl PendingRelease {
    /// For the place of a lock that was held.
    pub(crate) fn of(held: &HeldLock) -> Self {
        PendingRelease::new(&held.handles, &held.line, held.ticket().id, held.longest_lease())
    }

    /// For a place that has lapsed after this time, from now, unless it is given up before.
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
        if self.done {
            drop(then);
            self.handles.undone.remove();
            return;
        }
        // What drives it has ended by a panic: it goes on from the beginning.
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

/// When a lock is due, and its address, which tells apart locks that are due at once.
type Due = (Time, usize);

fn due_at(due: Time, held: &Arc<HeldLock>) -> Due {
    (due, Arc::as_ptr(held).addr())
}

struct Plan {
    entries: BTreeMap<Due, Arc<HeldLock>>,
    /// Tickets of which a store said that they may be gone, not looked for yet. They are looked
    /// for all at once: a lost session gives a hint about each of its locks.
    hints: Vec<TicketId>,
    /// Tickets with a hint that were not known here: a store may find out that a place is gone
    /// while the answer that gave it is still on its way to the caller.
    early: VecDeque<TicketId>,
    /// The time at which the renewer wakes by itself. Adding something earlier wakes it.
    planned: Time,
    /// Places to be given up, not begun yet.
    leaves: Vec<PendingRelease>,
    /// A test wants a panic.
    #[cfg(feature = "testing")]
    doomed: bool,
}

struct Renewer {
    plan: Mutex<Plan>,
    nudge: Notify,
}

/// The number of hints about unknown tickets that are kept, for locks that are about to be known.
const EARLY: usize = 256;
/// The number of renewals, and of places to give up, that are begun before all else is seen to.
const FEW: usize = 20;
/// How much earlier a renewal is begun if others are due. Below a quarter of the shortest lease.
const TOGETHER: Duration = Duration::from_millis(20);
/// The time for one request to give a place up.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// The pause after a panic, so that one that comes back each time does not keep a processor busy.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// One piece of the renewer's work.
enum Job {
    Renew(Arc<HeldLock>),
    Lapse(Arc<HeldLock>),
    Finish(PendingRelease),
}

static RENEWER: Renewer = Renewer {
    plan: Mutex::new(Plan {
        entries: BTreeMap::new(),
        hints: Vec::new(),
        early: VecDeque::new(),
        planned: Time::NEVER,
        leaves: Vec::new(),
        #[cfg(feature = "testing")]
        doomed: false,
    }),
    nudge: Notify::const_new(),
};

/// Makes sure that the renewer's thread runs. To be called before anything is asked for that it
/// must renew, or give up.
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) if the system gives no thread or no descriptors;
/// the next call tries again.
pub(crate) fn start() -> Result<()> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    let started = || thread::start("holdline-renewer", || RENEWER.go_on_for_ever());
    thread::made_once(&RUNTIME, started).map(|_| ())
}

/// Begins to renew a lock, and to watch its deadline.
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

/// Gives a place up in the background, trying until it is done or has lapsed.
pub(crate) fn release_later(leave: PendingRelease) {
    RENEWER.plan.lock().leaves.push(leave);
    RENEWER.nudge.notify_one();
}

/// Asks the store at once whether it still has this ticket.
pub(crate) fn verify(id: TicketId) {
    RENEWER.plan.lock().hints.push(id);
    RENEWER.nudge.notify_one();
}

/// Makes the renewer panic, as a defect in it would.
#[cfg(feature = "testing")]
pub(crate) fn doom() {
    RENEWER.plan.lock().doomed = true;
    RENEWER.nudge.notify_one();
}

impl Renewer {
    /// Runs, and after a panic tells the holders of all locks that they are lost, and runs again:
    /// what was to be given up is given up by the next run.
    async fn go_on_for_ever(&'static self) {
        loop {
            let _ = AssertUnwindSafe(self.run()).catch_unwind().await;
            tracing::error!("the thread that renews locks has panicked; all locks are lost");
            while let Some((_, held)) = { self.plan.lock().entries.pop_first() } {
                // A waker may panic as well, and the others are to be told all the same.
                let _ = catch_unwind(AssertUnwindSafe(|| held.lose_unrenewed()));
            }
            clock::pause(AFTER_PANIC).await;
        }
    }

    async fn run(&'static self) {
        // A store that panics fails one call, and must not take the renewer along.
        let begin = |job| AssertUnwindSafe(work(job)).catch_unwind();
        let mut work = FuturesUnordered::new();
        let (mut due, mut leaves) = (VecDeque::new(), VecDeque::new());
        loop {
            let Agenda { losses, next } = self.collect(&mut due, &mut leaves);
            work.extend(losses.into_iter().map(|held| begin(Job::Lapse(held))));
            // A few at a time: while the store works on these the next are begun, and the first are
            // done with, and out of memory, before the last.
            let few = due.drain(..due.len().min(FEW)).filter(|held| !held.is_over());
            work.extend(few.map(|held| begin(Job::Renew(held))));
            // Also of these, so that a crowd that gives up does not keep renewals waiting.
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

    /// Adds what is to be renewed and what is to be given up, and takes what else there is to do.
    fn collect(
        &self,
        renewals: &mut VecDeque<Arc<HeldLock>>,
        leaves: &mut VecDeque<PendingRelease>,
    ) -> Agenda {
        let now = clock::now();
        let mut losses = Vec::new();
        let mut plan = self.plan.lock();
        #[cfg(feature = "testing")]
        assert!(!std::mem::take(&mut plan.doomed), "a test wanted this");
        plan.take_hints(now);
        // Together with those that are due go those that will be so in a moment, as if it had come:
        // a store may renew many by one call.
        let moment = if plan.first() <= now { now.after(TOGETHER) } else { now };
        while let Some(first) = plan.entries.first_entry().filter(|first| first.key().0 <= moment) {
            let at = first.key().0.max(now);
            if at > now && first.get().until() <= at {
                break; // not a renewal but a loss, which is not before its time
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
            plan.entries.insert(due_at(again, &held), Arc::clone(&held));
            if next == Next::Renew {
                renewals.push_back(held);
            }
        }
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

    /// Makes the locks due of which hints say that they may be gone: one pass for all hints.
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

/// The locks whose deadlines have passed, and when the renewer is to look again.
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

/// The deadline has passed without a renewal: tell the holder, then tidy up behind it. Not at once:
/// the margin is the holder's, to stop its work in, and nobody is to be let in before it is over.
/// By then the lease is over as well, unless a renewal came through unconfirmed.
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
        match try_to_leave(&leave).await {
            Ok(()) => break,
            // Also then the place is there until its lease is over; and rights may come back.
            Err(error) if !error.retryable() && !told => {
                tracing::warn!(name = %leave.line, %error, "could not leave the line");
                told = true;
            }
            Err(_) => {}
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

/// Asks the store once, when it is this one's turn.
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
    handles.note(outcome.as_ref());
    match outcome {
        Some(outcome) => outcome.map(|_| ()),
        None => Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time")),
    }
}

async fn renew(held: Arc<HeldLock>) {
    let interval = held.until().0.saturating_sub(clock::now().0);
    let limit = Duration::from_nanos(interval).min(held.ticket().lease / 4);
    let outcome = clock::timeout(limit, held.renew(&*held.handles.background, None)).await;
    held.handles.note(outcome.as_ref());
    held.metrics.renewed(matches!(outcome, Some(Ok(()))));
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

    /// A store may find out that a place is gone while the answer that gave it is on its way.
    #[tokio::test]
    async fn a_hint_that_comes_before_its_lock_is_looked_into() {
        start().expect("there is a thread");
        let id = TicketId(0xea71);
        verify(id);
        while !RENEWER.plan.lock().early.contains(&id) {
            clock::pause(Duration::from_millis(1)).await;
        }
        let lease = Lease { length: Duration::from_secs(3600), margin: Duration::ZERO };
        let held = Arc::new(asked_for(Duration::ZERO, id, lease));
        register(&held);
        let told = clock::timeout(Duration::from_secs(30), held.gone()).await;
        assert!(told.is_some(), "nobody asked the store, which does not have it");
    }
}
