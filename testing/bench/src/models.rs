//! The project's first experiments: polling against listening, fair against unfair.
//!
//! Every competitor is a separate client, with its own connections if the store has connections,
//! and so queues in the store as a separate process would.

use crate::chart;
use crate::compete::{Outcome, compete};
use crate::machine::cpu_of;
use crate::report::{Cell, Report, Table};
use crate::stats::{Spread, seconds};
use crate::target::{Target, Targets, fresh};
use crate::{Common, Failure, runtime};
use clap::Args;
use holdline::{Backoff, Mutex};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How many clients compete.
    #[arg(long, value_delimiter = ',', default_value = "4,16,64")]
    pub(crate) clients: Vec<usize>,
    /// How long each holds the lock, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,1,10")]
    pub(crate) hold_ms: Vec<u64>,
    /// The shortest time of one round; waiters at its end are still admitted, and counted.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Draws charts into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    /// The server's process, so that its CPU time is measured as well.
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
}

/// One way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    schedule: Option<Backoff>,
    fair: bool,
    pub(crate) label: &'static str,
}

const fn model(label: &'static str, schedule: Backoff, fair: bool) -> Model {
    Model { schedule: Some(schedule), fair, label }
}

const FIFTY: Backoff = Backoff::fixed(Duration::from_millis(50));
const SHRINKING: Backoff = Backoff::shrinking(Duration::from_millis(50));
const EXPONENTIAL: Backoff =
    Backoff::exponential(Duration::from_millis(5), Duration::from_millis(100)).jitter(50);

/// The compared ways to wait.
pub(crate) const MODELS: [Model; 7] = [
    Model { schedule: None, fair: true, label: "listen, fair" },
    model("poll 50 ms, fair", FIFTY, true),
    model("poll 50 to 10 ms, fair", SHRINKING, true),
    model("poll 5 to 100 ms, fair", EXPONENTIAL, true),
    model("poll 50 ms, unfair", FIFTY, false),
    model("poll 50 to 10 ms, unfair", SHRINKING, false),
    model("poll 5 to 100 ms, unfair", EXPONENTIAL, false),
];

/// The medians of one combination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) model: usize,
    pub(crate) clients: usize,
    pub(crate) hold_ms: u64,
    pub(crate) rate: f64,
    pub(crate) p99: f64,
    pub(crate) cpu_per_lock: f64,
    /// The server's CPU time for each lock; 0 if it was not measured.
    pub(crate) server_per_lock: f64,
}

pub(crate) fn run(
    common: &Common,
    targets: &Targets,
    options: &Options,
    report: &mut Report,
) -> Result<(), Failure> {
    let runtime = runtime()?;
    for target in &targets.list {
        let mut points = Vec::new();
        for &hold_ms in &options.hold_ms {
            let table = table(common, target, options, hold_ms, &mut points);
            report.table(runtime.block_on(table)?);
        }
        if let Some(folder) = &options.svg {
            let path = chart::draw(folder, &target.label, options, &points)?;
            println!("Drawn: {}\n", path.display());
        }
    }
    Ok(())
}

/// The number of turns for each client in a round.
const TURNS: u32 = 5;
/// The resolution of timers.
const TICK: Duration = Duration::from_millis(1);

const COLUMNS: [&str; 11] = [
    "waiting",
    "clients",
    "locks",
    "mean wait",
    "P70",
    "P90",
    "P99",
    "largest/smallest share",
    "clients' CPU per lock",
    "clients' CPU, of one core",
    "server's CPU per lock",
];

async fn table(
    common: &Common,
    target: &Target,
    options: &Options,
    hold_ms: u64,
    points: &mut Vec<Point>,
) -> Result<Table, Failure> {
    let title = format!("{}: polling and listening, held for {hold_ms} ms", target.label);
    let mut table = Table::new(title, &COLUMNS);
    let queues = target.open().await?.capabilities().fair_queue;
    for (at, model) in MODELS.iter().enumerate() {
        if model.fair && model.schedule.is_some() && !queues {
            continue; // without a line, polling is the unfair one
        }
        for &clients in &options.clients {
            let mut rounds = Vec::new();
            for _ in 0..common.rounds() {
                rounds.push(round(target, *model, clients, hold_ms, options).await?);
            }
            table.row(row(*model, clients, &rounds));
            let median = |what: &dyn Fn(&Outcome) -> f64| median(&rounds, what);
            points.push(Point {
                model: at,
                clients,
                hold_ms,
                rate: median(&|round| round.rate),
                p99: median(&|round| round.waits.percentile(99.0)),
                cpu_per_lock: median(&|round| round.cpu_per_lock),
                server_per_lock: Spread::of(rounds.iter().filter_map(|(_, server)| *server))
                    .map_or(0.0, |spread| spread.median),
            });
        }
    }
    table.note(
        "Medians; the lowest and highest are in the JSON. Timers tick once a millisecond, so a \
         hold or a pause may last 1 ms longer. CPU is this process's: all clients together.",
    );
    Ok(table)
}

fn median(rounds: &[(Outcome, Option<f64>)], what: impl Fn(&Outcome) -> f64) -> f64 {
    Spread::of(rounds.iter().map(|(round, _)| what(round))).unwrap_or_default().median
}

fn row(model: Model, clients: usize, rounds: &[(Outcome, Option<f64>)]) -> Vec<Cell> {
    let all = |what: fn(&Outcome) -> f64| rounds.iter().map(move |(round, _)| what(round));
    let server = rounds.iter().filter_map(|(_, server)| *server);
    vec![
        model.label.into(),
        clients.into(),
        Cell::rates(all(|round| round.rate)).short(),
        Cell::times(all(|round| round.waits.mean())).short(),
        Cell::times(all(|round| round.waits.percentile(70.0))).short(),
        Cell::times(all(|round| round.waits.percentile(90.0))).short(),
        Cell::times(all(|round| round.waits.percentile(99.0))).short(),
        Cell::shares(rounds.iter().map(|(round, _)| round.shares)),
        Cell::times(all(|round| round.cpu_per_lock)).short(),
        Cell::percent(median(rounds, |round| round.cores)),
        Cell::times(server).short(),
    ]
}

/// The result of one round, and the server's CPU time for each lock.
async fn round(
    target: &Target,
    model: Model,
    clients: usize,
    hold_ms: u64,
    options: &Options,
) -> Result<(Outcome, Option<f64>), Failure> {
    let name = fresh("models");
    let mut locks = Vec::new();
    for _ in 0..clients {
        let mut lock = Mutex::new(&target.open().await?, &name);
        if let Some(schedule) = model.schedule {
            lock = lock.poll(schedule);
        }
        locks.push(if model.fair { lock } else { lock.unfair() });
    }
    let server = || options.server_pid.and_then(cpu_of);
    let before = server();
    let hold = Duration::from_millis(hold_ms);
    // Long enough for every client to be admitted a few times, if they take turns without delay.
    let turns = (hold + TICK) * u32::try_from(clients)? * u32::from(hold_ms > 0) * TURNS;
    let time = Duration::from_secs_f64(options.seconds).max(turns);
    let outcome = compete(locks, time, hold).await?;
    let spent = before.zip(server()).map(|(before, after)| after.saturating_sub(before));
    let per_lock = spent.map(|spent| seconds(spent) / outcome.locks.max(1) as f64);
    Ok((outcome, per_lock))
}
