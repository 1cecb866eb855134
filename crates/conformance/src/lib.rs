//! The conformance suite that every store passes: one list of cases, run against real servers,
//! chosen by the store's [capabilities](holdline::store::Capabilities).
//!
//! A store's author provides clients of one shared space ([`Subject`]) and calls [`run`]:
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use holdline_conformance::{self as conformance, At, Verdict};
//! use std::sync::Arc;
//! let subject = Arc::new(At::new("memory:example"));
//! for outcome in conformance::run(subject, "contract::").await {
//!     assert!(!matches!(outcome.verdict, Verdict::Failed(_)), "{outcome}");
//! }
//! # });
//! ```
//!
//! A case that needs a capability which the store lacks is reported as not promised, and never as
//! passed. Every recipe that can serve as a mutex also runs the whole mutex suite. Cases with other
//! processes run if the subject has a URL that they can open. The binary that runs them must call
//! [`taker`] first in its `main`, because it is started again as those processes.
//!
//! Cases wait for events, not for time to pass, unless they are about time. Then only a lower bound
//! is exact.

mod admin;
mod chaos;
mod clock;
mod contract;
mod cost;
mod election;
mod fairness;
mod faults;
mod groups;
mod kit;
mod leases;
mod loss;
mod model;
mod multi;
mod mutex;
mod names;
mod observers;
mod process;
mod reentrant;
mod rwlock;
mod semaphore;
mod storm;
mod tokens;

pub use chaos::{Chaos, Fault, Op};
pub use process::taker;

use futures_util::{StreamExt, stream};
use holdline::Client;
use holdline::Result;
use holdline::store::{Async, Capabilities};
use std::fmt;
use std::future::Future;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The store under test, which provides the suite's clients.
pub trait Subject: Send + Sync + 'static {
    /// The store's name in reports.
    fn name(&self) -> String;

    /// Creates a client, as another process would: with its own connections and local queue, on the
    /// same space as all other clients of this subject.
    fn client(&self) -> Async<'_, Client>;

    /// A URL by which another process can open the same space, if there is one.
    fn url(&self) -> Option<String>;

    /// A short lease for cases that let one expire. Default: a second; longer if the store needs
    /// it.
    fn lease(&self) -> Duration;

    /// The time limit of each wait that must succeed. Default: 30 s, generous for a busy machine.
    fn time_limit(&self) -> Duration {
        kit::TIME_LIMIT
    }

    /// How much longer an operation may take for each place in the line. Zero, unless the store can
    /// only list whole lines.
    fn each_place(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the store notifies observers of changes: see
    /// [`Store::subscribe`](holdline::store::Store::subscribe).
    fn notifies(&self) -> bool {
        false
    }

    /// Whether a lock can have this name. All valid names can, unless a layout shared with other
    /// programs cannot represent some; the store must refuse those.
    fn takes(&self, _name: &str) -> bool {
        true
    }
}

/// The store at a URL, as a [`Subject`].
#[derive(Clone, Debug)]
pub struct At {
    url: String,
    shared: bool,
    notifies: bool,
    takes: fn(&str) -> bool,
    each_place: Duration,
}

impl At {
    /// Creates a subject that only this process can open, that accepts all names, and that never
    /// lists a line.
    pub fn new(url: impl Into<String>) -> Self {
        let (url, each_place) = (url.into(), Duration::ZERO);
        At { url, shared: false, notifies: false, takes: |_| true, each_place }
    }

    /// Declares that other processes can open it too.
    pub fn shared(self) -> Self {
        At { shared: true, ..self }
    }

    /// Declares that it notifies observers of changes.
    pub fn notifying(self) -> Self {
        At { notifies: true, ..self }
    }

    /// Declares that it accepts only these names.
    pub fn taking(self, takes: fn(&str) -> bool) -> Self {
        At { takes, ..self }
    }

    /// Declares that an operation may take this much longer for each place in the line.
    pub fn listing(self, each_place: Duration) -> Self {
        At { each_place, ..self }
    }
}

impl Subject for At {
    fn name(&self) -> String {
        self.url.split(':').next().unwrap_or_default().to_owned()
    }

    fn client(&self) -> Async<'_, Client> {
        Box::pin(holdline::open(&self.url))
    }

    fn url(&self) -> Option<String> {
        self.shared.then(|| self.url.clone())
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn each_place(&self) -> Duration {
        self.each_place
    }

    fn notifies(&self) -> bool {
        self.notifies
    }

    fn takes(&self, name: &str) -> bool {
        (self.takes)(name)
    }
}

/// A capability that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// [`Capabilities::fair_queue`].
    Queues,
    /// [`Capabilities::fencing_tokens`].
    Fences,
    /// [`Capabilities::notifications`].
    Wakes,
    /// [`Capabilities::weighted`].
    Weights,
    /// [`Capabilities::token_ranges`].
    Spans,
    /// [`Capabilities::crash_release`].
    CrashRelease,
    /// A URL that other processes can open.
    Processes,
    /// [`Subject::notifies`].
    Observers,
}

impl Need {
    fn is_met(self, capabilities: &Capabilities, subject: &dyn Subject) -> bool {
        match self {
            Need::Queues => capabilities.fair_queue,
            Need::Fences => capabilities.fencing_tokens,
            Need::Wakes => capabilities.notifications,
            Need::Weights => capabilities.weighted,
            Need::Spans => capabilities.token_ranges,
            Need::CrashRelease => capabilities.crash_release,
            Need::Processes => subject.url().is_some(),
            Need::Observers => subject.notifies(),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::Queues => "queues",
            Need::Fences => "fences",
            Need::Wakes => "wakes",
            Need::Weights => "weights",
            Need::Spans => "spans",
            Need::CrashRelease => "crash_release",
            Need::Processes => "sharing with other processes",
            Need::Observers => "news for observers",
        })
    }
}

type Body = Arc<dyn Fn(Ctx) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A case: one requirement on a store, or on the library above it.
#[derive(Clone)]
pub struct Case {
    name: String,
    needs: Vec<Need>,
    load: Load,
    body: Body,
}

/// The load of a case on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It waits, for leases and for others: many such cases may run concurrently.
    Waits,
    /// It keeps a processor busy.
    Works,
    /// It measures time, so it runs alone.
    Measures,
}

/// The time after which a case is reported as hanging.
const LIMIT: Duration = Duration::from_secs(120);

impl Case {
    fn new<F>(name: &str, needs: &[Need], body: impl Fn(Ctx) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let body: Body = Arc::new(move |ctx| Box::pin(body(ctx)));
        Case { name: name.to_owned(), needs: needs.to_vec(), load: Load::Waits, body }
    }

    /// The case's name, as `group::requirement`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The capabilities that it needs.
    pub fn needs(&self) -> &[Need] {
        &self.needs
    }

    /// The load of the case on the machine.
    pub fn load(&self) -> Load {
        self.load
    }

    /// Runs the case on the current runtime. Panics inside are caught and reported.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the case running.
    pub async fn run(&self, subject: Arc<dyn Subject>) -> Outcome {
        let start = clock::now();
        let verdict = match Ctx::new(subject, &self.name).await {
            Ok(ctx) => self.judge(ctx).await,
            Err(error) => Verdict::Failed(format!("there is no client: {error:#}")),
        };
        Outcome { case: self.name.clone(), verdict, took: start.until(clock::now()) }
    }

    async fn judge(&self, ctx: Ctx) -> Verdict {
        let unmet = |need: &&Need| !need.is_met(&ctx.capabilities, &*ctx.subject);
        if let Some(need) = self.needs.iter().find(unmet) {
            return Verdict::NotPromised(*need);
        }
        let limit = ctx.subject.time_limit();
        let task = tokio::spawn(kit::limited(limit, (self.body)(ctx)));
        let abort = task.abort_handle();
        match clock::within(clock::now().after(LIMIT), task).await {
            Some(Ok(())) => Verdict::Passed,
            Some(Err(error)) => Verdict::Failed(kit::panic_message(error)),
            None => {
                abort.abort();
                Verdict::Failed(format!("it was not done after {LIMIT:?}"))
            }
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.needs)
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, with this message.
    Failed(String),
    /// It was not run, because the store does not promise this.
    NotPromised(Need),
}

/// The outcome of one case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The case's name.
    pub case: String,
    /// The verdict.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Passed => write!(f, "{} ... ok", self.case),
            Verdict::Failed(why) => write!(f, "{} ... FAILED: {why}", self.case),
            Verdict::NotPromised(need) => {
                write!(f, "{} ... ignored, not promised: {need}", self.case)
            }
        }
    }
}

/// All cases, those that wait longest first.
pub fn cases() -> Vec<Case> {
    let waiting = [
        process::cases(),
        faults::cases(),
        leases::cases(),
        mutex::cases(),
        model::cases(),
        contract::cases(),
        fairness::cases(),
        rwlock::cases(),
        semaphore::cases(),
        election::cases(),
        groups::cases(),
        multi::cases(),
        reentrant::cases(),
        loss::cases(),
        tokens::cases(),
        names::cases(),
        observers::cases(),
        admin::cases(),
    ];
    let with = |load| move |case| Case { load, ..case };
    let working = storm::cases().into_iter().map(with(Load::Works));
    let measuring = cost::cases().into_iter().map(with(Load::Measures));
    waiting.into_iter().flatten().chain(working).chain(measuring).collect()
}

/// Runs all cases whose name contains `filter`, as [`scheduled`] does, and returns their outcomes
/// in the order of [`cases`].
///
/// # Cancel safety
///
/// Dropping the future starts no further cases.
pub async fn run(subject: Arc<dyn Subject>, filter: &str) -> Vec<Outcome> {
    let chosen = cases().into_iter().filter(|case| case.name().contains(filter));
    let started = chosen.enumerate().map(|(at, case)| {
        let subject = Arc::clone(&subject);
        (case.load(), async move { (at, case.run(subject).await) })
    });
    let mut outcomes = Vec::new();
    scheduled(started.collect(), AT_ONCE, |outcome| outcomes.push(outcome)).await;
    outcomes.sort_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The number of waiting cases of one store that [`run`] runs concurrently.
pub const AT_ONCE: usize = 16;

/// Runs cases, each given with its load: up to `at_once` waiting ones concurrently, alongside as
/// many working ones as half of the processors; when all these have ended, the measuring ones, one
/// at a time. `ended` gets the outcomes in the order in which they come.
///
/// # Cancel safety
///
/// Dropping the future starts no further cases.
pub async fn scheduled<T>(
    cases: Vec<(Load, impl Future<Output = T>)>,
    at_once: usize,
    mut ended: impl FnMut(T),
) {
    let (mut waiting, mut working, mut measuring) = (Vec::new(), Vec::new(), Vec::new());
    for (load, case) in cases {
        match load {
            Load::Waits => waiting.push(case),
            Load::Works => working.push(case),
            Load::Measures => measuring.push(case),
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let waiting = stream::iter(waiting).buffer_unordered(at_once);
    let working = stream::iter(working).buffer_unordered((cores / 2).max(1));
    let mut all = stream::select(waiting, working).chain(stream::iter(measuring).buffered(1));
    while let Some(outcome) = all.next().await {
        ended(outcome);
    }
}

/// Opens a client, retrying for a while: no case is about how fast a store opens.
async fn opened(subject: &dyn Subject) -> Result<Client> {
    let limit = clock::now().after(kit::TIME_LIMIT);
    loop {
        match subject.client().await {
            Err(error) if error.retryable() && clock::now() < limit => {}
            client => return client,
        }
    }
}

/// The context of a case.
#[derive(Clone)]
pub(crate) struct Ctx {
    subject: Arc<dyn Subject>,
    capabilities: Capabilities,
    prefix: String,
    /// A lease that the case may let expire.
    lease: Duration,
}

impl Ctx {
    async fn new(subject: Arc<dyn Subject>, case: &str) -> Result<Self> {
        let capabilities = opened(&*subject).await?.capabilities();
        let lease = subject.lease().clamp(capabilities.lease_min, capabilities.lease_max);
        // Random, so that runs that share a server do not collide.
        let prefix = format!("conformance {:08x} {case} ", fastrand::u32(..));
        Ok(Ctx { subject, capabilities, prefix, lease })
    }

    /// A new client, as in another process.
    async fn client(&self) -> Client {
        opened(&*self.subject).await.expect("the subject gives clients")
    }

    /// A client with fault injection by [`Chaos`].
    async fn chaos(&self) -> (Chaos, Client) {
        let chaos = Chaos::new(Arc::clone(self.client().await.store()));
        let client = chaos.client();
        (chaos, client)
    }

    /// So many times the lease, or the longest that the store grants.
    fn longer(&self, times: u32) -> Duration {
        (self.lease * times).min(self.capabilities.lease_max)
    }

    /// A time limit for an acquisition that must fail: a store answers a connected client in less
    /// time.
    fn brief(&self) -> Duration {
        self.lease * 3 / 10
    }

    /// A name that no other case uses.
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The list of a file's cases, each with its needs.
macro_rules! group {
    ($group:literal: $($case:ident $(needs $($need:ident)+)?),+ $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::Case> {
            vec![$($crate::Case::new(
                concat!($group, "::", stringify!($case)),
                &[$($($crate::Need::$need),+)?],
                $case,
            )),+]
        }
    };
}
use group;
