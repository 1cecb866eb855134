//! Fault injection: a store wrapper that fails on command, for the suite and for tests of programs
//! that use locks.

use crate::clock;
use holdline::Client;
use holdline::Name;
use holdline::store::{
    Async, AsyncStore, Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store,
    Subscription, Ticket, TicketId,
};
use holdline::{Error, ErrorKind, Result};
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// One of a store's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Store::enter`].
    Enter,
    /// [`Store::leave`].
    Leave,
    /// [`Store::watch`].
    Watch,
    /// [`Store::snapshot`].
    Snapshot,
    /// [`Store::list`].
    List,
    /// [`Store::evict`].
    Evict,
}

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost: nothing is done, and the call fails with kind
    /// [`Unavailable`](ErrorKind::Unavailable).
    FailBefore,
    /// The reply is lost: the request is carried out, and the call fails in the same way.
    FailAfter,
    /// The request is lost, and the call never returns.
    HangBefore,
    /// The reply is lost, and the call never returns.
    HangAfter,
    /// The request takes this much longer.
    Delay(Duration),
    /// The reply takes this much longer.
    DelayReply(Duration),
    /// The call fails; the request is carried out later, by [`Chaos::deliver`].
    Late,
    /// The call yields this many times before and after the request, which adds as many points
    /// where the caller can be cancelled.
    Stutter(u32),
}

/// A wrapper around a store that injects faults on command, and counts calls. Clones and background
/// handles share the faults and the counts.
#[derive(Clone)]
pub struct Chaos {
    inner: Arc<dyn Store>,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    rules: Mutex<Vec<Rule>>,
    loads: [Load; 6],
    late: Mutex<Vec<Late>>,
    loss_hint: OnceLock<LossHint>,
}

/// The call counts of one operation.
#[derive(Default)]
struct Load {
    all: AtomicUsize,
    under_way: AtomicUsize,
    most_at_once: AtomicUsize,
}

/// The count of one call in progress, until it has ended or was dropped.
struct UnderWay<'a>(&'a Load);

impl<'a> UnderWay<'a> {
    fn new(load: &'a Load) -> Self {
        load.all.fetch_add(1, Ordering::Relaxed);
        let now = load.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        load.most_at_once.fetch_max(now, Ordering::Relaxed);
        UnderWay(load)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

type Late = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
struct Rule {
    op: Op,
    skip: u32,
    times: u32,
    fault: Fault,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chaos {
    /// Wraps a store, without faults so far.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Chaos { inner, plan: Arc::default() }
    }

    /// A new client of the wrapped store.
    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// Makes every call of `op` fail in this way, until this is changed.
    pub fn always(&self, op: Op, fault: Fault) {
        self.calls(op, 0, u32::MAX, fault);
    }

    /// Makes `times` calls of `op` fail in this way, after the next `skip` calls.
    pub fn calls(&self, op: Op, skip: u32, times: u32, fault: Fault) {
        locked(&self.plan.rules).push(Rule { op, skip, times, fault });
    }

    /// Removes all faults. Hanging calls stay hanging.
    pub fn heal(&self) {
        locked(&self.plan.rules).clear();
    }

    /// The number of calls of `op` so far.
    pub fn count(&self, op: Op) -> usize {
        self.load(op).all.load(Ordering::Relaxed)
    }

    /// The number of calls of `op` that have not ended yet.
    pub fn under_way(&self, op: Op) -> usize {
        self.load(op).under_way.load(Ordering::Relaxed)
    }

    /// The highest number of concurrent calls of `op`.
    pub fn most_at_once(&self, op: Op) -> usize {
        self.load(op).most_at_once.load(Ordering::Relaxed)
    }

    fn load(&self, op: Op) -> &Load {
        &self.plan.loads[op as usize]
    }

    /// Carries out all [late](Fault::Late) requests, and returns their number.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the requests that were not carried out yet.
    pub async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut *locked(&self.plan.late));
        let count = late.len();
        for request in late {
            request.await;
        }
        count
    }

    /// Calls the loss hint for this ticket.
    pub fn hint(&self, id: TicketId) {
        if let Some(loss_hint) = self.plan.loss_hint.get() {
            loss_hint(id);
        }
    }

    /// The fault of the next call of `op`, if there is one.
    fn fault(&self, op: Op) -> Option<Fault> {
        let mut fault = None;
        for rule in locked(&self.plan.rules).iter_mut().filter(|rule| rule.op == op) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 && fault.is_none() {
                rule.times -= 1;
                fault = Some(rule.fault);
            }
        }
        fault
    }

    /// Runs `work` with the fault of this call. `again` makes the same request for later.
    async fn call<T>(
        &self,
        op: Op,
        work: Async<'_, T>,
        again: impl FnOnce(Arc<dyn Store>) -> Late,
    ) -> Result<T> {
        let _under_way = UnderWay::new(self.load(op));
        match self.fault(op) {
            None => work.await,
            Some(Fault::FailBefore) => Err(self.cut(op)),
            Some(Fault::FailAfter) => {
                work.await?;
                Err(self.cut(op))
            }
            Some(Fault::HangBefore) => pending().await,
            Some(Fault::HangAfter) => {
                work.await?;
                pending().await
            }
            Some(Fault::Delay(time)) => {
                clock::pause(time).await;
                work.await
            }
            Some(Fault::DelayReply(time)) => {
                let reply = work.await;
                clock::pause(time).await;
                reply
            }
            Some(Fault::Late) => {
                let request = again(Arc::clone(&self.inner));
                locked(&self.plan.late).push(request);
                Err(self.cut(op))
            }
            Some(Fault::Stutter(times)) => {
                stutter(times).await;
                let done = work.await;
                stutter(times).await;
                done
            }
        }
    }

    fn cut(&self, op: Op) -> Error {
        let message = format!("{} was made to fail at {op:?}; heal it", self.inner.address());
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Yields this many times.
async fn stutter(times: u32) {
    for _ in 0..times {
        let mut first = true;
        std::future::poll_fn(|cx| {
            if std::mem::take(&mut first) {
                cx.waker().wake_by_ref();
                return std::task::Poll::Pending;
            }
            std::task::Poll::Ready(())
        })
        .await;
    }
}

/// A late read: nothing, because reads change nothing.
fn nothing(_: Arc<dyn Store>) -> Late {
    Box::pin(async {})
}

impl AsyncStore for Chaos {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let work = self.inner.enter(line, ticket, note, how);
        self.call(Op::Enter, work, move |store| {
            let (line, ticket, note) = (line.clone(), *ticket, Arc::clone(note));
            Box::pin(async move {
                let _ = store.enter(&line, &ticket, &note, how).await;
            })
        })
        .await
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let work = self.inner.leave(line, id);
        self.call(Op::Leave, work, move |store| {
            let line = line.clone();
            Box::pin(async move {
                let _ = store.leave(&line, id).await;
            })
        })
        .await
    }

    async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        self.call(Op::Watch, self.inner.watch(line, id), nothing).await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.call(Op::Snapshot, self.inner.snapshot(line), nothing).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.call(Op::List, self.inner.list(prefix), nothing).await
    }

    async fn evict(&self, line: &Name, id: TicketId, reason: &str) -> Result<Option<Seq>> {
        let work = self.inner.evict(line, id, reason);
        self.call(Op::Evict, work, move |store| {
            let (line, reason) = (line.clone(), reason.to_owned());
            Box::pin(async move {
                let _ = store.evict(&line, id, &reason).await;
            })
        })
        .await
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        self.inner.subscribe(lines)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn background_handle(&self) -> Self {
        Chaos { inner: self.inner.background_handle(), plan: Arc::clone(&self.plan) }
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.plan.loss_hint.set(Arc::clone(&loss_hint));
        self.inner.on_loss_hint(loss_hint);
    }

    fn address(&self) -> String {
        self.inner.address()
    }
}

impl fmt::Debug for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos")
            .field("inner", &self.inner)
            .field("rules", &locked(&self.plan.rules))
            .finish_non_exhaustive()
    }
}
