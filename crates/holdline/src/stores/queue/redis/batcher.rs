//! The batcher: combines operations on several lines into one call.
//!
//! Starting a script costs the server more than what the script does to a line, and a request costs
//! both sides more than its bytes. So while a few calls are in flight, further operations are
//! queued until the tasks that can run now have run, or until a batch is full, and are then sent as
//! one call (`batch.lua`). A batch never waits for a reply or a timer, so it adds no latency that
//! depends on the network. A full batch is sent at once, so that the server works on it while the
//! next one fills.
//!
//! Each caller has its own reply: errors and timeouts of one operation do not affect the others. If
//! the server refuses a batch as a whole, its operations are sent one by one. Nothing is batched in
//! a cluster, where lines are on different servers.

use super::encode::{HOW, WANTS, millis};
use super::scripts::{BATCH, ENTER, LEAVE};
use crate::clock::{self, within};
use crate::sync::{Mutex, contained};
use futures_util::future::join_all;
use holdline_redis_client::{Config, Connection, Fault, Kind, Script, broken, says};
use redis::{Cmd, ErrorKind, RedisError, Value};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// One operation on one line.
pub(super) struct Step {
    pub(super) key: String,
    pub(super) operation: Operation,
}

pub(super) enum Operation {
    /// The packed numbers, the letter in `batch.lua` for the way to enter, and the ticket's id,
    /// channel and note.
    Enter { wants: [u8; WANTS], way: u8, tail: Vec<u8> },
    /// The ticket's id, and how long it is barred, in microseconds.
    Leave { id: [u8; 32], bar: Option<u64> },
}

/// The batcher of one connection.
pub(super) struct Batcher {
    pub(super) connection: Connection,
    /// How long an idle line is kept, in milliseconds.
    idle: u64,
    timeout: Duration,
    batching: AtomicBool,
    under_way: AtomicUsize,
    queue: Mutex<Queue>,
    /// Permits for batches in flight.
    permits: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// The runtimes on each of which a task has been spawned that will empty it. Any of them may
    /// not be driven any more, so an operation relies on that of its own runtime only.
    flushed_by: Vec<runtime::Id>,
    /// The length at which abandoned operations are removed from it.
    sweep_at: usize,
}

struct Waiting {
    step: Arc<Step>,
    reply: oneshot::Sender<Result<Value, Fault>>,
}

impl Waiting {
    /// Answers the caller. A panic of its waker ends here: the others are still to be answered.
    fn answer(self, answer: Result<Value, Fault>) {
        contained(|| drop(self.reply.send(answer)));
    }
}

/// The number of calls in flight from which further operations are batched.
const UNBATCHED: usize = 2;
/// The most operations in one batch. More would cost a little less each, but the server would be
/// idle while the batch fills, and serve nothing else while it runs.
const MAX_STEPS: usize = 20;
/// The most batches in flight; further operations wait in the queue.
const MAX_BATCHES: usize = 256;
/// The least length of the queue at which abandoned operations are removed from it.
const SWEEP_LENGTH: usize = 1024;

impl Step {
    fn script(&self) -> &'static Script {
        match self.operation {
            Operation::Enter { .. } => &ENTER,
            Operation::Leave { .. } => &LEAVE,
        }
    }

    /// Its letter in `batch.lua`.
    fn letter(&self) -> u8 {
        match self.operation {
            Operation::Enter { way, .. } => way,
            Operation::Leave { bar: None, .. } => b'l',
            Operation::Leave { bar: Some(_), .. } => b'b',
        }
    }

    /// The numbers of its ticket except the last, which is the way to enter; empty if it needs
    /// none.
    fn numbers(&self) -> &[u8] {
        match &self.operation {
            Operation::Enter { wants, .. } => &wants[..HOW],
            Operation::Leave { .. } => &[],
        }
    }

    /// Its approximate size in bytes on the wire.
    fn size(&self) -> usize {
        let rest = match &self.operation {
            Operation::Enter { tail, .. } => tail.len() + 96,
            Operation::Leave { .. } => 96,
        };
        self.key.len() + rest + 16
    }

    /// Adds the arguments of a call for it alone.
    fn arguments(&self, command: &mut Cmd, idle: u64, reply_order_channel: &str) {
        match &self.operation {
            Operation::Enter { wants, tail, .. } => {
                command.arg(&wants[..]).arg(&tail[..]);
            }
            Operation::Leave { id, bar } => {
                command.arg(&id[..]).arg(idle).arg(reply_order_channel);
                if let Some(bar) = bar {
                    command.arg(*bar);
                }
            }
        }
    }

    /// Adds its arguments in a batch.
    fn batch_arguments(&self, command: &mut Cmd) {
        match &self.operation {
            Operation::Enter { wants, way, tail } => {
                command.arg(&tail[..]);
                if *way == b'k' {
                    command.arg(&wants[HOW..]);
                }
            }
            Operation::Leave { id, bar } => {
                command.arg(&id[..]);
                if let Some(bar) = bar {
                    command.arg(*bar);
                }
            }
        }
    }
}

impl Batcher {
    pub(super) fn new(
        config: Arc<Config>,
        idle: Duration,
        reply_order_channel: String,
    ) -> Arc<Self> {
        Arc::new(Batcher {
            idle: millis(idle),
            timeout: config.timeout,
            batching: AtomicBool::new(config.kind != Kind::Cluster),
            under_way: AtomicUsize::new(0),
            queue: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_BATCHES)),
            connection: Connection::new(config, reply_order_channel),
        })
    }

    /// Runs one operation, alone or in a batch, within the time limit; or twice that, if it is
    /// queued.
    pub(super) async fn ask(self: &Arc<Self>, step: &Arc<Step>) -> Result<Value, Fault> {
        let call = UnderWay::new(self);
        if call.others < UNBATCHED || !self.batching.load(Ordering::Relaxed) {
            // Boxed, to keep the futures of batched operations small: there may be very many.
            return Box::pin(self.alone(step)).await;
        }
        let (reply, answer) = oneshot::channel();
        self.enqueue(Waiting { step: Arc::clone(step), reply });
        // The queue and the call have limits, but the task that sends it may be on a runtime that
        // is not driven any more. An error means that the task is gone, with its runtime.
        match within(clock::now().after(self.timeout * 2), answer).await {
            Some(answer) => answer.unwrap_or_else(|_| Err(broken(false))),
            None => Err(Fault::Silence),
        }
    }

    async fn alone(&self, step: &Step) -> Result<Value, Fault> {
        let fill = |command: &mut Cmd| {
            command.arg(1).arg(&step.key);
            step.arguments(command, self.idle, self.connection.reply_order_channel());
        };
        self.connection.run(step.script(), step.size(), &fill).await
    }

    /// Queues an operation. A full batch is sent at once; any other is sent when the tasks that can
    /// run now have run, and may have added to it. While no permit is free the queue grows, by one
    /// entry for each waiting caller.
    fn enqueue(self: &Arc<Self>, one: Waiting) {
        let mut queue = self.queue.lock();
        queue.waiting.push(one);
        if queue.waiting.len() >= queue.sweep_at.max(SWEEP_LENGTH) {
            queue.waiting.retain(|one| !one.reply.is_closed());
            queue.sweep_at = queue.waiting.len() * 2;
        }
        if queue.waiting.len() == MAX_STEPS
            && let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned()
        {
            let full = mem::take(&mut queue.waiting);
            drop(queue);
            tokio::spawn(Arc::clone(self).send(full, permit));
            return;
        }
        let runtime = Handle::current().id();
        if !queue.flushed_by.contains(&runtime) {
            queue.flushed_by.push(runtime);
            drop(queue);
            let guard = FlushGuard(Some(Arc::clone(self)), runtime);
            tokio::spawn(Arc::clone(self).flush(guard));
        }
    }

    /// Sends the queued operations as permits become free. If none does within the time limit, they
    /// fail.
    async fn flush(self: Arc<Self>, guard: FlushGuard) {
        tokio::task::yield_now().await;
        loop {
            let limit = clock::now().after(self.timeout);
            let permit = Arc::clone(&self.permits).acquire_owned();
            let Some(Ok(permit)) = within(limit, permit).await else {
                let queue = mem::take(&mut *self.queue.lock());
                guard.done();
                return fail(queue.waiting, &Fault::Silence);
            };
            let (some, last) = self.queue.lock().take();
            if last {
                guard.done();
                return self.send(some, permit).await;
            }
            tokio::spawn(Arc::clone(&self).send(some, permit));
        }
    }

    async fn send(self: Arc<Self>, mut waiting: Vec<Waiting>, _permit: OwnedSemaphorePermit) {
        waiting.retain(|one| !one.reply.is_closed());
        if waiting.len() < 2 {
            return self.one_by_one(waiting).await;
        }
        let fill = |command: &mut Cmd| {
            fill(command, &waiting, self.idle, self.connection.reply_order_channel());
        };
        match self.connection.run(&BATCH, size(&waiting), &fill).await {
            Ok(Value::Array(answers)) if answers.len() == waiting.len() => {
                for (one, answer) in waiting.into_iter().zip(answers) {
                    one.answer(answer.extract_error().map_err(Fault::from));
                }
            }
            // The batch was refused, so nothing was done. Operations sent alone may succeed.
            Err(Fault::Refused(error)) => {
                if says(&error, "CROSSSLOT") {
                    self.batching.store(false, Ordering::Relaxed);
                }
                self.one_by_one(waiting).await;
            }
            // A reply of the wrong form may be that to another call, and so may later ones.
            Ok(_) => {
                self.connection.close_current();
                fail(waiting, &no_reply_for_each());
            }
            Err(fault) => fail(waiting, &fault),
        }
    }

    async fn one_by_one(&self, waiting: Vec<Waiting>) {
        let calls = waiting.into_iter().map(|one| async move {
            let answer = self.alone(&one.step).await;
            one.answer(answer);
        });
        join_all(calls).await;
    }
}

fn fail(waiting: Vec<Waiting>, fault: &Fault) {
    for one in waiting {
        one.answer(Err(fault.copy()));
    }
}

/// The fault of operations that the server may have carried out, or may yet do.
fn no_reply_for_each() -> Fault {
    let why = "its reply to several requests is not one for each";
    RedisError::from((ErrorKind::Parse, why)).into()
}

fn size(waiting: &[Waiting]) -> usize {
    waiting.iter().map(|one| one.step.size()).sum::<usize>() + 64
}

/// The arguments of a batch: see `batch.lua`.
fn fill(command: &mut Cmd, waiting: &[Waiting], idle: u64, reply_order_channel: &str) {
    command.arg(waiting.len());
    for one in waiting {
        command.arg(&one.step.key);
    }
    let (mut letters, mut numbers) = (Vec::with_capacity(waiting.len() + 2), &[][..]);
    for (at, Waiting { step, .. }) in waiting.iter().enumerate() {
        if changes(step, &mut numbers) {
            letters.push(b'w');
        }
        if waiting[..at].iter().any(|before| before.step.key == step.key) {
            letters.push(b'a');
        }
        letters.push(step.letter());
    }
    command.arg(letters).arg(reply_order_channel).arg(idle);
    let mut numbers = &[][..];
    for Waiting { step, .. } in waiting {
        if changes(step, &mut numbers) {
            command.arg(numbers);
        }
        step.batch_arguments(command);
    }
}

/// Whether a ticket's numbers differ from those before it. Updates `numbers`.
fn changes<'a>(step: &'a Step, numbers: &mut &'a [u8]) -> bool {
    let own = step.numbers();
    let other = !own.is_empty() && own != *numbers;
    if other {
        *numbers = own;
    }
    other
}

impl Queue {
    /// Takes one batch. Also returns whether it was the last, after which the tasks that empty the
    /// queue end.
    fn take(&mut self) -> (Vec<Waiting>, bool) {
        let most = self.waiting.len().min(MAX_STEPS);
        let rest = self.waiting.split_off(most);
        let some = mem::replace(&mut self.waiting, rest);
        let last = self.waiting.is_empty();
        if last {
            *self = Queue::default();
        }
        (some, last)
    }
}

/// A call in flight, and the number of others when it began.
struct UnderWay<'a> {
    batcher: &'a Batcher,
    others: usize,
}

impl<'a> UnderWay<'a> {
    fn new(batcher: &'a Batcher) -> Self {
        UnderWay { batcher, others: batcher.under_way.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.batcher.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A guard of a task that empties the queue. If its runtime ends first, the queued operations
/// fail, unless another such task will send them.
struct FlushGuard(Option<Arc<Batcher>>, runtime::Id);

impl FlushGuard {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        if let Some(batcher) = self.0.take() {
            let mut queue = batcher.queue.lock();
            queue.flushed_by.retain(|runtime| *runtime != self.1);
            let orphaned = queue.flushed_by.is_empty().then(|| mem::take(&mut *queue));
            drop(queue);
            drop(orphaned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::waiters::tests::Panics;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn a_waker_that_panics_keeps_no_answer_from_others() {
        let (waiting, mut replies): (Vec<_>, Vec<_>) = [1, 2]
            .map(|id| {
                let (reply, receiver) = oneshot::channel();
                let operation = Operation::Leave { id: [id; 32], bar: None };
                let step = Arc::new(Step { key: "x".to_owned(), operation });
                (Waiting { step, reply }, receiver)
            })
            .into_iter()
            .unzip();
        let waker = Arc::new(Panics).into();
        assert!(pin!(&mut replies[0]).poll(&mut Context::from_waker(&waker)).is_pending());
        fail(waiting, &Fault::Silence);
        for reply in &mut replies {
            assert!(matches!(reply.try_recv(), Ok(Err(Fault::Silence))));
        }
    }
}
