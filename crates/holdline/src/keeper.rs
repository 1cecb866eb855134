//! The keeper: one background thread that renews every held lock, and finishes what a dropped
//! future or guard left undone.
//!
//! It is a thread, and not a task, because a task shares its fate with the program's executor: one
//! that is blocked for longer than a lease would lose every lock. It uses the store's
//! [twin](crate::store::Store::twin), so that a jammed connection of the program does not jam
//! renewals either. All locks of the process share one schedule; a held lock costs an entry there,
//! and neither a timer nor a task.

use crate::clock;
use crate::held::Held;
use crate::names::Name;
use crate::observe;
use crate::store::{Pair, TicketId};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use holdline_kernel::{Next, Schedule, Time};
use std::any::Any;
use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// A place to give up in the background. Its client counts it until it is dropped.
pub(crate) struct Leave {
    pair: Arc<Pair>,
    line: Name,
    id: TicketId,
    /// After this the place has lapsed anyway.
    until: Time,
    /// Dropped when it is done: what must not happen before.
    pub(crate) then: Option<Box<dyn Any + Send>>,
}

impl Leave {
    pub(crate) fn new(pair: &Arc<Pair>, line: &Name, id: TicketId, until: Time) -> Self {
        pair.undone.send_modify(|undone| *undone += 1);
        Leave { pair: Arc::clone(pair), line: line.clone(), id, until, then: None }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        drop(self.then.take());
        self.pair.undone.send_modify(|undone| *undone -= 1);
    }
}

/// A held lock, and when to see to it. Ordered by time; the address tells apart what is due at
/// once.
struct Entry {
    due: Time,
    held: Arc<Held>,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |entry: &Self| (entry.due, Arc::as_ptr(&entry.held).addr());
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

struct Plan {
    entries: BTreeSet<Entry>,
    /// Tickets that were doubted before their locks were known here: a store may find out that a
    /// place is gone while the answer that gave it is still on its way to the caller.
    early: VecDeque<TicketId>,
    /// When the keeper will look next by itself. Whoever adds something earlier wakes it.
    planned: Time,
}

struct Keeper {
    plan: Mutex<Plan>,
    nudge: Notify,
    jobs: mpsc::UnboundedSender<Leave>,
}

/// So many doubts about tickets that are not known here are kept in mind.
const EARLY: usize = 256;
/// So many renewals are begun before all else is seen to.
const FEW: usize = 20;

/// What the keeper does beside other things.
enum Job {
    Renew(Arc<Held>),
    Lapse(Arc<Held>),
    Finish(Leave),
}

fn keeper() -> &'static Keeper {
    static KEEPER: OnceLock<&'static Keeper> = OnceLock::new();
    KEEPER.get_or_init(|| {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let plan = Plan { entries: BTreeSet::new(), early: VecDeque::new(), planned: Time::NEVER };
        let keeper: &'static Keeper =
            Box::leak(Box::new(Keeper { plan: Mutex::new(plan), nudge: Notify::new(), jobs }));
        std::thread::Builder::new()
            .name("holdline-keeper".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the system gives the keeper a runtime");
                runtime.block_on(keeper.run(inbox));
            })
            .expect("the system gives the keeper a thread");
        keeper
    })
}

/// Begins to renew a lock, and to watch its deadline.
pub(crate) fn keep(held: &Arc<Held>) {
    let keeper = keeper();
    let mut plan = keeper.plan();
    let id = held.ticket().id;
    let early = plan.early.iter().position(|doubted| *doubted == id);
    let (_, due) = held.next(held.since);
    let due = match early.and_then(|at| plan.early.remove(at)) {
        Some(_) => {
            held.doubt(held.since);
            held.since
        }
        None => due,
    };
    held.set_due(due);
    plan.entries.insert(Entry { due, held: Arc::clone(held) });
    let early = due < plan.planned;
    drop(plan);
    if early {
        keeper.nudge.notify_one();
    }
}

/// Stops renewing a lock.
pub(crate) fn forget(held: &Arc<Held>) {
    let mut plan = keeper().plan();
    let due = held.set_due(Time::NEVER);
    plan.entries.remove(&Entry { due, held: Arc::clone(held) });
}

/// Gives a place up in the background, trying until it is done or has lapsed.
pub(crate) fn leave(leave: Leave) {
    // The keeper never ends.
    let _ = keeper().jobs.send(leave);
}

/// Asks the store at once whether it still has this ticket.
pub(crate) fn doubt(id: TicketId) {
    let keeper = keeper();
    let now = clock::now();
    let mut plan = keeper.plan();
    let found = plan.entries.iter().find(|entry| entry.held.ticket().id == id);
    if let Some(held) = found.map(|entry| Arc::clone(&entry.held)) {
        held.doubt(now);
        let due = held.set_due(now);
        plan.entries.remove(&Entry { due, held: Arc::clone(&held) });
        plan.entries.insert(Entry { due: now, held });
        keeper.nudge.notify_one();
    } else {
        plan.early.push_back(id);
        if plan.early.len() > EARLY {
            plan.early.pop_front();
        }
    }
}

impl Keeper {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&'static self, mut inbox: mpsc::UnboundedReceiver<Leave>) {
        // A store that panics fails one call, and must not take the keeper along.
        let begin = |job| AssertUnwindSafe(work(job)).catch_unwind();
        let mut work = FuturesUnordered::new();
        let mut due = VecDeque::new();
        loop {
            let (losses, next) = self.collect(&mut due);
            work.extend(losses.into_iter().map(|held| begin(Job::Lapse(held))));
            // A few at a time: while the store works on these the next are begun, and the first are
            // done with, and out of memory, before the last.
            let few = due.drain(..due.len().min(FEW)).filter(|held| !held.is_over());
            work.extend(few.map(|held| begin(Job::Renew(held))));
            tokio::select! {
                () = self.nudge.notified() => {}
                Some(leave) = inbox.recv() => work.push(begin(Job::Finish(leave))),
                Some(_) = work.next(), if !work.is_empty() => {}
                () = clock::sleep_until(next), if next != Time::NEVER => {}
                () = tokio::task::yield_now(), if !due.is_empty() => {}
            }
            let all_done = |cx: &mut Context<'_>| {
                while let Poll::Ready(Some(_)) = work.poll_next_unpin(cx) {}
                Poll::Ready(())
            };
            poll_fn(all_done).await;
        }
    }

    /// Adds what is to be renewed; and says what is lost, and when something will be due.
    fn collect(&self, renewals: &mut VecDeque<Arc<Held>>) -> (Vec<Arc<Held>>, Time) {
        let now = clock::now();
        let mut losses = Vec::new();
        let mut plan = self.plan();
        while plan.entries.first().is_some_and(|first| first.due <= now) {
            let Some(Entry { held, .. }) = plan.entries.pop_first() else { break };
            if held.is_over() {
                held.set_due(Time::NEVER);
                continue;
            }
            let (next, again) = held.next(now);
            if next == Next::Lose {
                losses.push(held);
                continue;
            }
            plan.entries.insert(Entry { due: again, held: Arc::clone(&held) });
            if next == Next::Renew {
                renewals.push_back(held);
            }
        }
        plan.planned = plan.entries.first().map_or(Time::NEVER, |first| first.due);
        (losses, plan.planned)
    }
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
async fn lapse(held: Arc<Held>) {
    if held.lose() {
        clock::sleep_until(held.lapses()).await;
        let ticket = held.ticket();
        let until = clock::now().after(ticket.lease);
        finish(Leave::new(&held.pair, &held.line, ticket.id, until)).await;
    }
}

async fn finish(leave: Leave) {
    let backoff =
        Schedule::exponential(Duration::from_millis(20), Duration::from_secs(2)).jitter(50);
    let limit = Duration::from_secs(2);
    for attempt in 0.. {
        let call = leave.pair.twin.leave(&leave.line, leave.id);
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(_)) => break,
            Ok(Err(error)) if !error.retryable() => {
                tracing::warn!(name = %leave.line, %error, "could not leave the line");
                break;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        if clock::now() >= leave.until {
            tracing::warn!(name = %leave.line, "left the line to its lease");
            break;
        }
        tokio::time::sleep(backoff.pause(attempt, fastrand::u64(..))).await;
    }
}

async fn renew(held: Arc<Held>) {
    let beat = held.until().0.saturating_sub(clock::now().0);
    let limit = Duration::from_nanos(beat).min(held.ticket().lease / 4);
    let outcome = tokio::time::timeout(limit, held.renew(&*held.pair.twin, None)).await;
    observe::renewed(matches!(outcome, Ok(Ok(()))));
    match outcome {
        Ok(Ok(())) => {
            if held.is_over() {
                forget(&held);
            }
        }
        Ok(Err(error)) => {
            tracing::warn!(name = %held.line, token = held.seq.0, %error, "renewal failed");
        }
        Err(_) => {
            tracing::warn!(name = %held.line, token = held.seq.0, "renewal not answered in time");
        }
    }
}
