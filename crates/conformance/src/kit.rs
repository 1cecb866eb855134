//! Helpers for the cases: bounded waits, raw tickets, and every recipe as a mutex.

use super::Ctx;
use crate::clock;
use holdline::Guard;
use holdline::Name;
use holdline::Result;
use holdline::store::{Enter, Seq, Standing, Store, Ticket, TicketId};
use holdline::{Client, LockInfo};
use holdline::{
    Election, Leader, Multi, MultiGuard, Mutex, Owner, ReentrantGuard, ReentrantMutex, RwLock,
    Semaphore, WriteGuard,
};
use holdline_kernel::Backoff;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The default time limit of a wait that must succeed, generous for a busy machine.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// The time limit of the subject of the case that this task runs. The tasks that a case starts
    /// have the default.
    static SUBJECTS_LIMIT: Duration;
}

/// Runs a case with its subject's time limit.
pub(super) async fn limited(time: Duration, case: impl Future<Output = ()>) {
    SUBJECTS_LIMIT.scope(time, case).await;
}

/// The time limit of a wait that must succeed.
fn time_limit() -> Duration {
    SUBJECTS_LIMIT.try_with(|time| *time).unwrap_or(TIME_LIMIT)
}

/// Runs `work`, which must end within the time limit.
pub(super) async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let time = time_limit();
    match clock::within(clock::now().after(time), work).await {
        Some(output) => output,
        None => panic!("{what}: not within {time:?}"),
    }
}

/// Polls until the check holds, within the time limit.
pub(super) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let time = time_limit();
    let limit = clock::now().after(time);
    while !check().await {
        assert!(clock::now() < limit, "{what}: not within {time:?}");
        clock::pause(Duration::from_millis(3)).await;
    }
}

/// Polls a future once, and returns whether it is done.
pub(super) async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())).await
}

/// Waits until the line has this many holders and waiters, and returns them.
pub(super) async fn line(client: &Client, name: &str, holders: usize, waiters: usize) -> LockInfo {
    let time = time_limit();
    let limit = clock::now().after(time);
    loop {
        let info = client.inspect(name).await.expect("the store is there");
        if info.holders.len() == holders && info.waiters.len() == waiters {
            return info;
        }
        assert!(
            clock::now() < limit,
            "expected {holders} holders and {waiters} waiters in {time:?}, but saw {info:?}"
        );
        clock::pause(Duration::from_millis(3)).await;
    }
}

/// The message of a task's panic.
pub(super) fn panic_message(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(text), _) => text.clone(),
            (_, Some(text)) => (*text).to_owned(),
            _ => "it panicked".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

/// A new ticket with a long wait lease.
pub(super) fn ticket(ctx: &Ctx, weight: u32, capacity: u32) -> Ticket {
    let long = Duration::from_secs(60).min(ctx.capabilities.lease_max);
    let id = TicketId(fastrand::u128(..));
    Ticket { id, weight, capacity, lease: long, wait_lease: long, token_count: 1, min_token: 0 }
}

/// A raw store and one of its lines, for the contract's cases.
#[derive(Clone)]
pub(super) struct Raw {
    pub(super) store: Arc<dyn Store>,
    pub(super) line: Name,
}

impl Raw {
    pub(super) async fn new(ctx: &Ctx) -> Self {
        let line = Name::new(ctx.name("line")).expect("a good name");
        Raw { store: Arc::clone(ctx.client().await.store()), line }
    }

    pub(super) async fn enter(&self, ticket: &Ticket, how: Enter) -> Standing {
        self.try_enter(ticket, how).await.expect("the store takes the ticket")
    }

    pub(super) async fn try_enter(&self, ticket: &Ticket, how: Enter) -> Result<Standing> {
        self.store.enter(&self.line, ticket, &Arc::from("note"), how).await
    }

    /// Enters by a ticket that must be admitted.
    pub(super) async fn hold(&self, ticket: &Ticket) -> Seq {
        match self.enter(ticket, Enter::Queue).await {
            Standing::Admitted(seq) => seq,
            other => panic!("expected to be admitted, but {other:?}"),
        }
    }

    /// Enters by a ticket that must wait.
    pub(super) async fn queue(&self, ticket: &Ticket) -> Seq {
        match self.enter(ticket, Enter::Queue).await {
            Standing::Waiting { seq: Some(seq), .. } => seq,
            other => panic!("expected to wait in the line, but {other:?}"),
        }
    }

    pub(super) async fn keep(&self, ticket: &Ticket, seq: Seq) -> Standing {
        self.enter(ticket, Enter::Keep(seq)).await
    }

    pub(super) async fn leave(&self, ticket: &Ticket) -> bool {
        self.store.leave(&self.line, ticket.id).await.expect("the store lets go")
    }

    /// The tickets in the line, and whether each is admitted.
    pub(super) async fn seen(&self) -> Vec<(TicketId, bool)> {
        let view = self.store.snapshot(&self.line).await.expect("the store can be looked at");
        view.places.iter().map(|place| (place.id, place.admitted)).collect()
    }
}

/// The recipes that can serve as a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    Mutex,
    Write,
    SemaphoreOfOne,
    SemaphoreDrained,
    MultiOfOne,
    MultiOfTwo,
    Election,
    Reentrant,
    Unfair,
    Poll(Backoff),
    Handoff,
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Try,
    Within(Duration),
    Forever,
}

/// A lease and its margin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    pub(super) margin: Duration,
}

impl Terms {
    /// The terms of a lock that renewals keep: twice the lease, nearly all of it usable, so that a
    /// slow store on a busy machine causes no loss.
    pub(super) fn kept(lease: Duration) -> Self {
        Terms { lease: lease * 2, margin: lease / 20 }
    }

    pub(super) const LONG: Terms = Terms::of(Duration::from_secs(10));

    pub(super) const fn of(lease: Duration) -> Self {
        // A wide margin, so that a late task on a busy machine is no false alarm.
        Terms { lease, margin: Duration::from_nanos(lease.as_nanos() as u64 / 5 * 2) }
    }
}

/// A held lock of any recipe.
pub(super) enum Held {
    Plain(Guard),
    Write(WriteGuard),
    Multi(MultiGuard),
    Leader(Leader),
    Reentrant(ReentrantGuard),
}

impl Held {
    pub(super) fn guard(&self) -> &Guard {
        match self {
            Held::Plain(guard) => guard,
            Held::Write(guard) => guard,
            Held::Multi(guard) => &guard.guards()[0],
            Held::Leader(guard) => guard,
            Held::Reentrant(guard) => guard,
        }
    }

    pub(super) async fn unlock(self) -> Result<()> {
        match self {
            Held::Plain(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
            Held::Multi(guard) => guard.unlock().await,
            Held::Leader(guard) => guard.resign().await,
            Held::Reentrant(guard) => guard.unlock().await,
        }
    }
}

/// The three ways to wait, as the three methods of a recipe.
macro_rules! acquire_by {
    ($how:expr, $wrap:path, $try:expr, $within:expr, $forever:expr) => {
        match $how {
            How::Try => $try.await?.map($wrap),
            How::Within(time) => $within(time).await?.map($wrap),
            How::Forever => Some($wrap($forever.await?)),
        }
    };
}

impl Recipe {
    pub(super) async fn take(
        self,
        client: &Client,
        name: &str,
        how: How,
        terms: Terms,
    ) -> Result<Option<Held>> {
        // The future of all recipes together is large.
        Box::pin(self.take_as(client, name, how, terms)).await
    }

    async fn take_as(
        self,
        client: &Client,
        name: &str,
        how: How,
        terms: Terms,
    ) -> Result<Option<Held>> {
        let Terms { lease, margin } = terms;
        let mutex = Mutex::new(client, name).lease(lease).margin(margin);
        Ok(match self {
            Recipe::Mutex => lock(&mutex, how).await?,
            Recipe::Unfair => lock(&mutex.unfair(), how).await?,
            Recipe::Poll(schedule) => lock(&mutex.poll(schedule), how).await?,
            Recipe::Handoff => lock(&mutex.handoff(8, Duration::from_secs(1)), how).await?,
            Recipe::Write => {
                let lock = RwLock::new(client, name).lease(lease).margin(margin);
                acquire_by!(
                    how,
                    Held::Write,
                    lock.try_write(),
                    |t| lock.write_within(t),
                    lock.write()
                )
            }
            Recipe::SemaphoreOfOne | Recipe::SemaphoreDrained => {
                let n = if self == Recipe::SemaphoreOfOne { 1 } else { 5 };
                let all = Semaphore::new(client, name, n).lease(lease).margin(margin);
                let within = |t| all.acquire_within(n, t);
                acquire_by!(how, Held::Plain, all.try_acquire(n), within, all.acquire(n))
            }
            Recipe::MultiOfOne | Recipe::MultiOfTwo => {
                let mut names = vec![name.to_owned()];
                if self == Recipe::MultiOfTwo {
                    names.push(format!("{name} second"));
                }
                let all = Multi::new(client, names).lease(lease).margin(margin);
                acquire_by!(how, Held::Multi, all.try_lock(), |t| all.lock_within(t), all.lock())
            }
            Recipe::Election => {
                let election = Election::new(client, name).lease(lease).margin(margin);
                let within = |t| election.campaign_within("me", t);
                acquire_by!(
                    how,
                    Held::Leader,
                    election.try_campaign("me"),
                    within,
                    election.campaign("me")
                )
            }
            Recipe::Reentrant => {
                let lock = ReentrantMutex::new(client, name).lease(lease).margin(margin);
                let me = Owner::new();
                let within = |t| lock.lock_within(&me, t);
                acquire_by!(how, Held::Reentrant, lock.try_lock(&me), within, lock.lock(&me))
            }
        })
    }

    /// Acquires it with a long lease, waiting as long as it takes.
    pub(super) async fn lock(self, client: &Client, name: &str) -> Held {
        self.lock_for(client, name, Terms::LONG).await
    }

    pub(super) async fn lock_for(self, client: &Client, name: &str, terms: Terms) -> Held {
        let held = in_time("lock", self.take(client, name, How::Forever, terms)).await;
        held.expect("the store is there").expect("waiting for ever ends with the lock")
    }

    /// Acquires it if it is free.
    pub(super) async fn try_lock(self, client: &Client, name: &str) -> Option<Held> {
        let held = in_time("try", self.take(client, name, How::Try, Terms::LONG)).await;
        held.expect("the store is there")
    }
}

async fn lock(mutex: &Mutex, how: How) -> Result<Option<Held>> {
    let within = |time| mutex.lock_within(time);
    Ok(acquire_by!(how, Held::Plain, mutex.try_lock(), within, mutex.lock()))
}
