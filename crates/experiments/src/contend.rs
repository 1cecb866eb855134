//! The clients of one process, in one round: the work of a worker.

use crate::cell::Scenario;
use crate::error::{Error, Result};
use crate::mode::Mode;
use crate::stats::{NEVER, Turn, histogram, pairs};
use crate::{machine, timer};
use hdrhistogram::Histogram;
use holdline::{Client, ErrorKind, Guard, Mutex, RwLock, Semaphore, WriteGuard};
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// The order of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) scenario: Scenario,
    pub(crate) url: String,
    pub(crate) mode: Mode,
    /// The prefix of the names.
    pub(crate) name: String,
    pub(crate) names: usize,
    /// The number of this worker's first client, among all clients.
    pub(crate) first: usize,
    pub(crate) clients: usize,
    pub(crate) all_clients: usize,
    pub(crate) hold: Duration,
    /// How long clients compete before the round, so that the initial crowd is not measured.
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    pub(crate) lease: Duration,
    /// The interval between a client's requests for locks, if a rate is given.
    pub(crate) interval: Option<Duration>,
}

/// The result of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Waits in nanoseconds, and their counts; unfinished ones with their time until the end.
    pub(crate) waits: Vec<(u64, u64)>,
    /// The sum of the waits that ended with a lock, and their number.
    pub(crate) waited: (u64, u64),
    /// The number of waits unfinished at the end, and of locks wanted but not asked for by then.
    pub(crate) unfinished: u64,
    /// The number of locks that each client got.
    pub(crate) shares: Vec<u64>,
    /// The first turns, up to [`MOST_TURNS`].
    pub(crate) turns: Vec<Turn>,
    /// When the first turn was granted that is not among them.
    pub(crate) turns_until: u64,
    /// For each slice of the round, the locks granted and the sum of their waits.
    pub(crate) slices: Vec<(u64, u64)>,
    /// When the last lock was granted.
    pub(crate) last: u64,
    /// CPU time of the process without its delay proxy, in nanoseconds.
    pub(crate) cpu: u64,
    /// Resident memory, in bytes.
    pub(crate) memory: u64,
    /// Locks lost while held.
    pub(crate) lost: u64,
    /// Releases that the store did not confirm in time.
    pub(crate) unconfirmed: u64,
}

impl Outcome {
    /// The result of no client.
    pub(crate) fn empty() -> Self {
        Outcome {
            waits: Vec::new(),
            waited: (0, 0),
            unfinished: 0,
            shares: Vec::new(),
            turns: Vec::new(),
            turns_until: NEVER,
            slices: vec![(0, 0); SLICES],
            last: 0,
            cpu: 0,
            memory: 0,
            lost: 0,
            unconfirmed: 0,
        }
    }
}

/// The number of slices of a round.
pub(crate) const SLICES: usize = 20;
/// The number of turns of one process whose order is examined.
const MOST_TURNS: usize = 200_000;
/// The most locks wanted but not asked for that are recorded one by one; of more, samples are.
const MOST_UNASKED: u64 = 100_000;
/// The number of stores that are opened at once.
const AT_ONCE: usize = 16;

/// The lock of one client.
enum Lock {
    Mutex(Mutex),
    ReadWrite(RwLock, u8),
    Semaphore(Semaphore),
}

/// A lock that is held.
enum Held {
    Plain(Guard),
    Write(WriteGuard),
}

impl Lock {
    fn new(job: &Job, client: &Client, name: &str) -> Self {
        let (mode, lease) = (job.mode, job.lease);
        match job.scenario {
            Scenario::ReadWrite(writes) => {
                Lock::ReadWrite(mode.rwlock(RwLock::new(client, name).lease(lease)), writes)
            }
            Scenario::Semaphore(permits) => {
                let lock = Semaphore::new(client, name, permits).lease(lease);
                Lock::Semaphore(mode.semaphore(lock))
            }
            _ => Lock::Mutex(mode.mutex(Mutex::new(client, name).lease(lease))),
        }
    }

    async fn take(&self) -> holdline::Result<Held> {
        match self {
            Lock::Mutex(lock) => lock.lock().await.map(Held::Plain),
            Lock::Semaphore(lock) => lock.acquire(1).await.map(Held::Plain),
            Lock::ReadWrite(lock, writes) if fastrand::u8(..100) < *writes => {
                lock.write().await.map(Held::Write)
            }
            Lock::ReadWrite(lock, _) => lock.read().await.map(Held::Plain),
        }
    }
}

impl Held {
    async fn release(self) -> holdline::Result<()> {
        match self {
            Held::Plain(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
        }
    }
}

/// The clients of this process, ready to begin.
pub(crate) struct Ready {
    job: Job,
    locks: Vec<Lock>,
    clients: Vec<Client>,
}

/// Opens the stores of the clients. Each client first takes a lock of its own, so that all
/// connections and sessions exist before the clock starts.
pub(crate) async fn prepare(job: Job) -> Result<Ready> {
    let count = if job.mode.way.shares() { 1 } else { job.clients };
    let mut clients = Vec::new();
    while clients.len() < count {
        let mut opening = JoinSet::new();
        for at in clients.len()..count.min(clients.len() + AT_ONCE) {
            let (url, lease) = (job.url.clone(), job.lease);
            let name = format!("{}-warm-{}", job.name, job.first + at);
            opening.spawn(async move {
                let client = holdline::open(&url).await?;
                let client = client.response_timeout(Duration::from_secs(10));
                let lock = Mutex::new(&client, &name).lease(lease);
                if let Some(guard) = lock.try_lock().await? {
                    guard.unlock().await?;
                }
                Ok::<_, Error>(client)
            });
        }
        while let Some(opened) = opening.join_next().await {
            clients.push(opened.map_err(|error| Error::failed(error.to_string()))??);
        }
    }
    let lock = |at: usize| {
        let name = format!("{}-{}", job.name, (job.first + at) % job.names);
        Lock::new(&job, &clients[at % count], &name)
    };
    let locks = (0..job.clients).map(lock).collect();
    Ok(Ready { job, locks, clients })
}

impl Ready {
    /// Competes from `start`, and returns when the round is over and nothing is left in the store.
    pub(crate) async fn compete(self, start: u64) -> Result<Outcome> {
        let Ready { job, locks, clients } = self;
        let end = start + nanos(job.time);
        let mut tasks = JoinSet::new();
        let room = Arc::new(AtomicUsize::new(MOST_TURNS));
        for (at, lock) in locks.into_iter().enumerate() {
            let contender = Contender::new(&job, job.first + at, (start, end), &room);
            tasks.spawn(contender.run(lock));
        }
        timer::until(start).await;
        let cpu = machine::client_cpu();
        let mut outcome = Outcome::empty();
        let mut waits = histogram();
        // The CPU time of the round, without the cleanup after it.
        let is_burst = job.scenario == Scenario::Burst;
        let mut done = Vec::new();
        if !is_burst {
            timer::until(end).await;
            outcome.cpu = machine::client_cpu().saturating_sub(cpu);
        }
        while let Some(task) = tasks.join_next().await {
            done.push(task.map_err(|error| Error::failed(error.to_string()))??);
        }
        if is_burst {
            outcome.cpu = machine::client_cpu().saturating_sub(cpu);
        }
        outcome.memory = machine::resident(std::process::id()).unwrap_or(0);
        for one in done {
            one.add_to(&mut outcome, &mut waits);
        }
        outcome.waits = pairs(&waits);
        for client in clients {
            let _ = tokio::time::timeout(Duration::from_secs(5), client.settle()).await;
        }
        Ok(outcome)
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One client, and its observations.
struct Contender {
    name: u32,
    begin: u64,
    start: u64,
    end: u64,
    hold: u64,
    interval: Option<u64>,
    once: bool,
    /// How many more turns this process notes.
    room: Arc<AtomicUsize>,
    waits: Histogram<u64>,
    waited: (u64, u64),
    share: u64,
    unfinished: u64,
    lost: u64,
    unconfirmed: u64,
    last: u64,
    turns: Vec<Turn>,
    turns_until: u64,
    slices: Vec<(u64, u64)>,
}

impl Contender {
    fn new(job: &Job, number: usize, (start, end): (u64, u64), room: &Arc<AtomicUsize>) -> Self {
        Contender {
            name: u32::try_from(number % job.names).unwrap_or(0),
            begin: start.saturating_sub(nanos(job.warm_up)),
            start,
            end,
            hold: nanos(job.hold),
            interval: job.interval.map(nanos),
            once: job.scenario == Scenario::Burst,
            room: Arc::clone(room),
            waits: histogram(),
            waited: (0, 0),
            share: 0,
            unfinished: 0,
            lost: 0,
            unconfirmed: 0,
            last: 0,
            turns: Vec::new(),
            turns_until: NEVER,
            slices: vec![(0, 0); SLICES],
        }
    }

    async fn run(mut self, lock: Lock) -> Result<Self> {
        timer::until(self.begin).await;
        // With a rate, a lock is wanted at its time, even if the previous one is late.
        let mut wanted = self.begin;
        if let Some(interval) = self.interval {
            wanted += fastrand::u64(..interval.max(1));
        }
        let mut over = pin!(timer::until(self.end));
        while timer::now().max(wanted) < self.end {
            timer::until(wanted).await;
            let asked = if self.interval.is_some() { wanted } else { timer::now() };
            let held = tokio::select! {
                biased;
                held = lock.take() => held?,
                () = &mut over => {
                    self.not_granted(asked);
                    wanted += self.interval.unwrap_or(0);
                    break;
                }
            };
            let granted = timer::now();
            if self.hold > 0 {
                timer::until(granted + self.hold).await;
            }
            let released = timer::now();
            let counts = granted >= self.start;
            match held.release().await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Lost => self.lost += 1,
                // It is retried in the background, or the lease ends; the other clients go on.
                Err(error) if error.kind() == ErrorKind::Unknown => self.unconfirmed += 1,
                Err(error) => return Err(error.into()),
            }
            if counts {
                self.granted(Turn(self.name, asked, granted, released));
            }
            if self.once {
                break;
            }
            match self.interval {
                Some(interval) => wanted += interval,
                None => wanted = 0,
            }
        }
        self.not_asked(wanted);
        Ok(self)
    }

    /// Records the locks that are wanted from a time on and were not asked for before the end: the
    /// client was late, and waits count from when a lock is wanted.
    fn not_asked(&mut self, wanted: u64) {
        let Some(interval) = self.interval.filter(|_| !self.once) else { return };
        let count = self.end.saturating_sub(wanted).div_ceil(interval.max(1));
        let step = count.div_ceil(MOST_UNASKED).max(1);
        let mut recorded = 0;
        while recorded < count {
            let wait = self.end - (wanted + recorded * interval);
            let locks = step.min(count - recorded);
            self.waits.saturating_record_n(wait, locks);
            recorded += locks;
        }
        self.unfinished += count;
    }

    fn not_granted(&mut self, asked: u64) {
        self.waits.saturating_record(self.end.saturating_sub(asked).max(1));
        self.unfinished += 1;
        self.note(Turn(self.name, asked, NEVER, NEVER));
    }

    fn granted(&mut self, turn: Turn) {
        let Turn(_, asked, granted, _) = turn;
        let wait = granted.saturating_sub(asked).max(1);
        self.waits.saturating_record(wait);
        self.waited = (self.waited.0 + wait, self.waited.1 + 1);
        if granted < self.end {
            self.share += 1;
            let slice = (granted.saturating_sub(self.start)) as usize * SLICES;
            let slice = slice / (self.end - self.start).max(1) as usize;
            let slice = &mut self.slices[slice.min(SLICES - 1)];
            *slice = (slice.0 + 1, slice.1 + wait);
        }
        self.last = self.last.max(granted);
        self.note(turn);
    }

    fn note(&mut self, turn: Turn) {
        let one_less = |room: usize| room.checked_sub(1);
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            self.turns.push(turn);
        } else {
            // Of the first without room it is known that it was asked for: it was overtaken by
            // those that asked later and were granted before, all of a greedy client's perhaps.
            if self.turns_until == NEVER {
                self.turns.push(Turn(turn.0, turn.1, NEVER, NEVER));
            }
            self.turns_until = self.turns_until.min(turn.2);
        }
    }

    fn add_to(self, outcome: &mut Outcome, waits: &mut Histogram<u64>) {
        waits.add(&self.waits).expect("all have the same bounds");
        outcome.waited.0 += self.waited.0;
        outcome.waited.1 += self.waited.1;
        outcome.unfinished += self.unfinished;
        outcome.lost += self.lost;
        outcome.unconfirmed += self.unconfirmed;
        outcome.last = outcome.last.max(self.last);
        outcome.shares.push(self.share);
        outcome.turns.extend(self.turns);
        outcome.turns_until = outcome.turns_until.min(self.turns_until);
        for (sum, more) in outcome.slices.iter_mut().zip(self.slices) {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }
}
