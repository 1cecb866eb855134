//! Where calls that come at the same time are put together into one.
//!
//! Running a script costs the server more than what the script does to a line, and a request costs
//! both sides more than its bytes. So while a few calls are under way, those that come next wait
//! until the tasks that can run now have run, or until they are as many as one call may deal with,
//! and then go as one call that deals with many lines (`batch.lua`). Nobody waits for an answer
//! or a timer to fill it: a link of any length costs a call what it would cost alone. And a full
//! one goes at once, so that the server works on it while the next is being filled.
//!
//! Each caller has its own answer: what one line refuses, or how long one caller waits, is nothing
//! to the others. A call that the server does not take as a whole is made one by one. In a cluster
//! lines are on different servers, and where replicas are to confirm a lock, each has its
//! own answer from them: there nothing is put together.

use super::config::{Config, Kind};
use super::connection::{BATCH, Connection, ENTER, LEAVE, Script};
use super::errors::{Fault, says};
use crate::clock::{self, within};
use crate::sync::Mutex;
use futures_util::future::join_all;
use redis::{Cmd, RedisError, Value};
use std::io::ErrorKind::ConnectionReset;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// What is to be done to one line.
pub(super) struct Step {
    pub(super) key: String,
    pub(super) verb: Verb,
}

pub(super) enum Verb {
    /// Numbers, packed; and the ticket's id, channel and note.
    Enter { wants: [u8; 64], tail: Vec<u8> },
    /// For how many milliseconds an idle line is kept, and for how many microseconds the ticket is
    /// barred.
    Leave { id: [u8; 32], rest: u64, bar: Option<u64> },
}

/// Calls of one connection.
pub(super) struct Batcher {
    pub(super) connection: Connection,
    timeout: Duration,
    together: AtomicBool,
    under_way: AtomicUsize,
    queue: Mutex<Queue>,
    /// For how many more calls of several steps there is room.
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Somebody is going to empty it.
    seen_to: bool,
    /// When it is so long, those in it are looked for who have given up.
    sweep_at: usize,
}

struct Waiting {
    step: Arc<Step>,
    reply: oneshot::Sender<Result<Value, Fault>>,
}

/// So many calls go alone; more go together.
const ALONE: usize = 2;
/// So many steps make one call at most. More would cost a little less each, but the server would do
/// nothing while they come together, and nothing else while it deals with them.
const MOST: usize = 20;
/// So many calls of several steps are under way at most; what comes then waits in the queue.
const ROOM: usize = 256;
/// When the queue is so long, those in it are looked for who have given up.
const LONG: usize = 1024;

impl Step {
    fn script(&self) -> &'static Script {
        match self.verb {
            Verb::Enter { .. } => &ENTER,
            Verb::Leave { .. } => &LEAVE,
        }
    }

    /// The letter that `batch.lua` knows it by.
    fn letter(&self) -> u8 {
        match self.verb {
            Verb::Enter { .. } => b'e',
            Verb::Leave { bar: None, .. } => b'l',
            Verb::Leave { bar: Some(_), .. } => b'b',
        }
    }

    /// About how long it is on the wire.
    fn size(&self) -> usize {
        let rest = match &self.verb {
            Verb::Enter { tail, .. } => tail.len() + 96,
            Verb::Leave { .. } => 96,
        };
        self.key.len() + rest + 16
    }

    fn arguments(&self, command: &mut Cmd, reply_order_channel: Option<&str>) {
        match &self.verb {
            Verb::Enter { wants, tail } => {
                command.arg(&wants[..]).arg(&tail[..]);
            }
            Verb::Leave { id, rest, bar } => {
                command.arg(&id[..]).arg(*rest);
                if let Some(reply_order_channel) = reply_order_channel {
                    command.arg(reply_order_channel);
                }
                if let Some(bar) = bar {
                    command.arg(*bar);
                }
            }
        }
    }
}

impl Batcher {
    pub(super) fn new(config: Arc<Config>, reply_order_channel: String) -> Arc<Self> {
        Arc::new(Batcher {
            timeout: config.timeout,
            together: AtomicBool::new(config.kind != Kind::Cluster && config.ack.is_none()),
            under_way: AtomicUsize::new(0),
            queue: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM)),
            connection: Connection::new(config, reply_order_channel),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Does one thing to one line, alone or together with others, within the time limit.
    pub(super) async fn ask(self: &Arc<Self>, step: &Arc<Step>) -> Result<Value, Fault> {
        let call = UnderWay::new(self);
        if call.others < ALONE || !self.together.load(Ordering::Relaxed) {
            // In a box, as what goes with others is to be small: there may be very many.
            return Box::pin(self.alone(step)).await;
        }
        let (reply, answer) = oneshot::channel();
        self.put(Waiting { step: Arc::clone(step), reply });
        let limit = clock::now().after(self.timeout);
        match within(limit, answer).await {
            Some(Ok(answer)) => answer,
            // Whoever was to ask is gone, with its runtime.
            Some(Err(_)) => {
                Err(Fault::Broken(RedisError::from(std::io::Error::from(ConnectionReset)), false))
            }
            None => Err(Fault::Silence),
        }
    }

    async fn alone(&self, step: &Step) -> Result<Value, Fault> {
        let fill = |command: &mut Cmd| {
            command.arg(1).arg(&step.key);
            step.arguments(command, Some(self.connection.reply_order_channel()));
        };
        self.connection.run(step.script(), step.size(), &fill).await
    }

    /// Puts it in the queue. A full one is sent; any other is to be sent once all that can run now
    /// has run, and has perhaps added to it. Where there is no room for a call, the queue grows
    /// until there is, by those who wait for their answers.
    fn put(self: &Arc<Self>, one: Waiting) {
        let mut queue = self.queue();
        queue.waiting.push(one);
        if queue.waiting.len() >= queue.sweep_at.max(LONG) {
            queue.waiting.retain(|one| !one.reply.is_closed());
            queue.sweep_at = queue.waiting.len() * 2;
        }
        if queue.waiting.len() == MOST
            && let Ok(room) = Arc::clone(&self.room).try_acquire_owned()
        {
            let full = mem::take(&mut queue.waiting);
            drop(queue);
            tokio::spawn(Arc::clone(self).send(full, room));
        } else if !mem::replace(&mut queue.seen_to, true) {
            drop(queue);
            let duty = Duty(Some(Arc::clone(self)));
            tokio::spawn(Arc::clone(self).empty(duty));
        }
    }

    /// Sends what is in the queue, as there is room.
    async fn empty(self: Arc<Self>, duty: Duty) {
        tokio::task::yield_now().await;
        loop {
            // It is never closed.
            let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return };
            let (some, last) = self.queue().take();
            if last {
                duty.done();
                return self.send(some, room).await;
            }
            tokio::spawn(Arc::clone(&self).send(some, room));
        }
    }

    async fn send(self: Arc<Self>, mut waiting: Vec<Waiting>, _room: OwnedSemaphorePermit) {
        waiting.retain(|one| !one.reply.is_closed());
        if waiting.len() < 2 {
            return self.one_by_one(waiting).await;
        }
        let fill =
            |command: &mut Cmd| fill(command, &waiting, self.connection.reply_order_channel());
        match self.connection.run(&BATCH, size(&waiting), &fill).await {
            Ok(Value::Array(answers)) if answers.len() == waiting.len() => {
                for (one, answer) in waiting.into_iter().zip(answers) {
                    let answer = answer.extract_error().map_err(Fault::from);
                    if answer.as_ref().is_err_and(Fault::breaks) {
                        self.connection.distrust();
                    }
                    let _ = one.reply.send(answer);
                }
            }
            // It was not taken, so nothing was done. A line by itself may be.
            Err(Fault::Refused(error)) => {
                if says(&error, "CROSSSLOT") {
                    self.together.store(false, Ordering::Relaxed);
                }
                self.one_by_one(waiting).await;
            }
            Ok(answer) => {
                // Which makes no sense to anybody; and nor may what comes after it.
                self.connection.distrust();
                for one in waiting {
                    let _ = one.reply.send(Ok(answer.clone()));
                }
            }
            Err(fault) => {
                for one in waiting {
                    let _ = one.reply.send(Err(fault.copy()));
                }
            }
        }
    }

    async fn one_by_one(&self, waiting: Vec<Waiting>) {
        let calls = waiting.into_iter().map(|one| async move {
            let _ = one.reply.send(self.alone(&one.step).await);
        });
        join_all(calls).await;
    }
}

fn size(waiting: &[Waiting]) -> usize {
    waiting.iter().map(|one| one.step.size()).sum::<usize>() + 64
}

fn fill(command: &mut Cmd, waiting: &[Waiting], reply_order_channel: &str) {
    let letters: Vec<u8> = waiting.iter().map(|one| one.step.letter()).collect();
    command.arg(waiting.len());
    for one in waiting {
        command.arg(&one.step.key);
    }
    command.arg(letters).arg(reply_order_channel);
    for one in waiting {
        one.step.arguments(command, None);
    }
}

impl Queue {
    /// Takes as many as one call may deal with; and says whether they were the last, after which
    /// nobody sees to the queue.
    fn take(&mut self) -> (Vec<Waiting>, bool) {
        let most = self.waiting.len().min(MOST);
        let rest = self.waiting.split_off(most);
        let some = mem::replace(&mut self.waiting, rest);
        let last = self.waiting.is_empty();
        if last {
            *self = Queue::default();
        }
        (some, last)
    }
}

/// A call under way, and how many others there were when it began.
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

/// The duty to empty the queue. If its runtime ends first, those in the queue are told.
struct Duty(Option<Arc<Batcher>>);

impl Duty {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if let Some(batcher) = self.0.take() {
            let queue = mem::take(&mut *batcher.queue());
            drop(queue);
        }
    }
}
