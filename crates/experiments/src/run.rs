//! A run: opens the stores, measures every cell in turns, and collects the results.

use crate::cell::{Cell, LONGEST, Scenario};
use crate::contend::{self, Job};
use crate::crash;
use crate::error::{Error, Result};
use crate::figures::{Round, Used};
use crate::machine;
use crate::plan::Plan;
use crate::report::{Report, Row, Status};
use crate::target::Target;
use crate::timer;
use crate::worker::{Order, Worker, runtime};
use std::ffi::OsString;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

/// The parts of the host program that a run uses.
#[derive(Clone, Debug)]
pub struct Host {
    /// The command line of a worker: a process that calls [`work`](crate::work).
    pub worker: Vec<OsString>,
    /// Makes the command that runs a command line and, if the system can do that, ends with this
    /// process.
    pub wrap: fn(&[OsString]) -> std::process::Command,
    /// The command line of this run, for the report.
    pub command: String,
    /// The numbers of the signals that end a run.
    pub ending_signals: Vec<i32>,
}

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The number of finished rounds, of all cells.
    pub done: usize,
    /// The number of all rounds.
    pub all: usize,
    /// The estimated remaining time, from the rounds so far.
    pub left: Duration,
    /// The current activity.
    pub what: String,
}

/// The largest number of rounds.
const MOST_ROUNDS: usize = 1_000_000;
/// The shortest round.
const SHORTEST: Duration = Duration::from_millis(50);
/// The time between the last "ready" and the start.
const GATHER: Duration = Duration::from_millis(30);
/// The maximum warm-up before a round; otherwise a fifth of the round.
const WARM_UP: Duration = Duration::from_secs(2);
/// The time after which a burst is cut off.
const BURST: Duration = Duration::from_secs(60);
/// The assumed overhead of a round, before it has been measured.
const BESIDE: f64 = 0.3;

/// Measures a plan. Servers are started and stopped on the way.
///
/// # Errors
///
/// A signal ended the run; the plan makes no sense; or none of its cells can be measured: then the
/// first cell's reason. If others can, a cell that cannot be measured is a row of the report with
/// the reason.
pub fn run(plan: &Plan, host: &Host, mut tell: impl FnMut(&Progress)) -> Result<Report> {
    if !(1..=MOST_ROUNDS).contains(&plan.rounds) || plan.cells.is_empty() {
        return Err(Error::usage(format!("a run has from 1 to {MOST_ROUNDS} rounds")));
    }
    if !(SHORTEST..=LONGEST).contains(&plan.time) {
        return Err(Error::usage("a round takes from 50 ms to a day"));
    }
    machine::many_files();
    let folder = tempfile::Builder::new().prefix("holdline-bench-").tempdir()?;
    let mut report = Report::new(plan, host);
    let runtime = runtime()?;
    let mut stop = runtime.block_on(async { Stop::new(&host.ending_signals) })?;
    let opened = open_all(plan, host, folder.path(), (&runtime, &mut stop), &mut tell)?;
    let Opened { targets, mut rows } = opened;
    if rows.iter().all(|(row, _)| row.status.is_some()) {
        let first = rows.into_iter().find_map(|(row, _)| row.status);
        return Err(first.map_or(Error::usage("nothing to do"), Status::into_error));
    }
    let mut clock = Clock::new(plan, &rows);
    for round in 0..plan.rounds {
        for (row, target) in &mut rows {
            let Some(target) = target.as_ref().filter(|_| row.status.is_none()) else { continue };
            tell(&clock.progress(row, round, plan.rounds));
            let begun = Instant::now();
            let measured = measure(host, target, &row.cell, plan.time);
            let measured = runtime.block_on(stop.unless_comes(measured));
            clock.note(begun.elapsed());
            match measured {
                Ok(round) => row.rounds.push(round),
                Err(error @ Error::Stopped(_)) => return Err(error),
                Err(error) => row.status = Some(Status::Failed(error)),
            }
        }
    }
    for (store, target) in targets {
        if let Ok(target) = target {
            let about = runtime.block_on(async { target.lock().await.about() });
            report.stores.push((crate::target::shown(&store), about));
        }
    }
    report.finish(rows.into_iter().map(|(row, _)| row).collect());
    // Work still in progress there is not awaited.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(report)
}

/// The stores of a run, by their arguments, and its cells with their stores.
struct Opened {
    targets: Vec<(String, Result<Arc<Mutex<Target>>>)>,
    rows: Vec<(Row, Option<Arc<Mutex<Target>>>)>,
}

/// Opens all stores, and checks of each cell whether it can be measured.
fn open_all(
    plan: &Plan,
    host: &Host,
    folder: &Path,
    (runtime, stop): (&Runtime, &mut Stop),
    tell: &mut impl FnMut(&Progress),
) -> Result<Opened> {
    let mut targets: Vec<(String, Result<Arc<Mutex<Target>>>)> = Vec::new();
    let mut rows = Vec::new();
    for cell in &plan.cells {
        if !targets.iter().any(|(store, _)| *store == cell.store) {
            // The runtime looks for signals before it goes on.
            let moment = async {
                tokio::task::yield_now().await;
                Ok(())
            };
            runtime.block_on(stop.unless_comes(moment))?;
            let what = format!("opening {}", crate::target::shown(&cell.store));
            tell(&Progress { done: 0, all: 0, left: Duration::ZERO, what });
            let target = Target::new(&cell.store, folder, host.wrap);
            targets.push((cell.store.clone(), target.map(|it| Arc::new(Mutex::new(it)))));
        }
        let (_, target) = targets.iter().find(|(store, _)| *store == cell.store).expect("added");
        let status = match target {
            Ok(target) => {
                let check = async { target.lock().await.check(cell).await };
                runtime.block_on(stop.unless_comes(check))
            }
            Err(error) => Err(error.clone()),
        };
        if let Err(error @ Error::Stopped(_)) = status {
            return Err(error);
        }
        let target = target.as_ref().ok().map(Arc::clone);
        let label = match &target {
            Some(target) => runtime.block_on(async { target.lock().await.label.clone() }),
            None => crate::target::shown(&cell.store),
        };
        rows.push((Row::new(cell, label, status.err().map(Status::NotRun)), target));
    }
    Ok(Opened { targets, rows })
}

/// The signals that end a run: servers and folders are cleared away first.
struct Stop(Vec<(Signal, i32)>);

impl Stop {
    fn new(numbers: &[i32]) -> Result<Self> {
        let listen = |number: &i32| Ok((signal(SignalKind::from_raw(*number))?, *number));
        numbers.iter().map(listen).collect::<Result<_>>().map(Stop)
    }

    /// Does the work, unless a signal comes first.
    async fn unless_comes<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let stopped = poll_fn(|cx| {
            for (signal, number) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            number = stopped => Err(Error::Stopped(number)),
            outcome = work => outcome,
        }
    }
}

/// The estimate of the run's duration.
struct Clock {
    done: usize,
    all: usize,
    spent: Duration,
    guess: Duration,
}

impl Clock {
    fn new(plan: &Plan, rows: &[(Row, Option<Arc<Mutex<Target>>>)]) -> Self {
        let cells = rows.iter().filter(|(row, _)| row.status.is_none()).count();
        let guess = plan.time + Duration::from_secs_f64(BESIDE);
        Clock { done: 0, all: cells * plan.rounds, spent: Duration::ZERO, guess }
    }

    fn note(&mut self, spent: Duration) {
        self.done += 1;
        self.spent += spent;
    }

    fn progress(&self, row: &Row, round: usize, rounds: usize) -> Progress {
        let each = match u32::try_from(self.done) {
            Ok(done @ 1..) => self.spent / done,
            _ => self.guess,
        };
        let left = each * u32::try_from(self.all.saturating_sub(self.done)).unwrap_or(u32::MAX);
        let what = format!(
            "round {} of {rounds}: {}, {}; {}",
            round + 1,
            row.store,
            row.cell.mode.label(),
            row.cell.load()
        );
        Progress { done: self.done, all: self.all, left, what }
    }
}

/// One round of one cell.
async fn measure(
    host: &Host,
    target: &Arc<Mutex<Target>>,
    cell: &Cell,
    time: Duration,
) -> Result<Round> {
    let mut target = target.lock().await;
    let url = target.url_for(cell)?;
    let name = format!("bench-{}-{:08x}", std::process::id(), fastrand::u32(..));
    if cell.scenario.is_crash() {
        return Ok(Round::crash(crash::round(host, &mut target, cell, &url, &name).await?));
    }
    let is_burst = cell.scenario == Scenario::Burst;
    let warm_up = if is_burst { Duration::ZERO } else { (time / 5).min(WARM_UP) };
    let time = if is_burst { BURST } else { time };
    let job = Job {
        scenario: cell.scenario,
        url,
        mode: cell.mode,
        name,
        names: cell.names,
        first: 0,
        clients: cell.clients,
        all_clients: cell.clients,
        hold: cell.hold,
        warm_up,
        time,
        lease: cell.lease,
        interval: cell.rate.map(|rate| Duration::from_secs_f64(cell.clients as f64 / rate)),
    };
    // Every round has processes of its own, so that none pays for what an earlier round left open.
    // The memory store is the exception: other processes cannot see it.
    let (start, outcomes, used) = if job.url.starts_with("memory:") {
        let ready = contend::prepare(job.clone()).await?;
        let start = timer::now() + contend::nanos(GATHER + warm_up);
        let (outcome, used) = tokio::join!(ready.compete(start), usage(&target, &job, start, time));
        (start, vec![outcome?], used)
    } else {
        let mut workers = Vec::new();
        for worker in jobs(&job, cell.processes) {
            workers.push(Worker::start(host, &Order::Contend(worker)).await?);
        }
        for worker in &mut workers {
            worker.ready().await?;
        }
        let start = timer::now() + contend::nanos(GATHER + warm_up);
        for worker in &mut workers {
            worker.begin(start).await?;
        }
        let outcomes = async {
            let mut outcomes = Vec::new();
            for worker in &mut workers {
                outcomes.push(worker.outcome().await?);
            }
            Ok::<_, Error>(outcomes)
        };
        let (outcomes, used) = tokio::join!(outcomes, usage(&target, &job, start, time));
        (start, outcomes?, used)
    };
    let mut used = used;
    if cell.scenario == Scenario::Burst {
        used.after = tokio::task::block_in_place(|| target.usage());
    }
    Ok(Round::new(cell, time, start, outcomes, &used))
}

/// The orders of all workers.
fn jobs(job: &Job, processes: usize) -> Vec<Job> {
    let part = |process: usize| process * job.clients / processes;
    (0..processes)
        .map(|process| Job {
            first: part(process),
            clients: part(process + 1) - part(process),
            ..job.clone()
        })
        .collect()
}

/// The number of holders and waiters that the store reports half a round from now.
async fn places(url: &str, name: &str, at: u64, limit: Duration) -> Option<usize> {
    let client = holdline::open(url).await.ok()?;
    timer::until(at).await;
    let info = tokio::time::timeout(limit, client.inspect(name)).await.ok()?.ok()?;
    Some(info.holders.len() + info.waiters.len())
}

/// The servers' resource usage between the start and the end. (The end of a burst is unknown.)
async fn usage(target: &Target, job: &Job, start: u64, time: Duration) -> Used {
    let look = || tokio::task::block_in_place(|| target.usage());
    if job.scenario == Scenario::Burst {
        return Used { before: look(), ..Used::default() };
    }
    timer::until(start).await;
    let before = look();
    let half = start + contend::nanos(time) / 2;
    let places = places(&job.url, &format!("{}-0", job.name), half, time / 4).await;
    timer::until(start + contend::nanos(time)).await;
    Used { before, after: look(), places }
}
