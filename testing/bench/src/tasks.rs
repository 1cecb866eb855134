//! 64 tasks of one process: on one name, on 64 names, with local handoff, and polling.

use crate::compete::{Outcome, compete};
use crate::counting_store::CountingStore;
use crate::machine::own_cpu;
use crate::redis;
use crate::report::{Cell, Limit, Report, Table, ratio};
use crate::stats::{Spread, seconds};
use crate::target::{Target, Targets, fresh};
use crate::{Common, Failure, runtime};
use holdline::{Backoff, Client, Mutex};
use std::time::Duration;

const TASKS: usize = 64;
/// The minimum ratio of locks by listening to locks by polling every 50 ms.
const AHEAD: f64 = 10.0;
/// The minimum share of the bare idiom's throughput on Redis, with a name for each task.
const OF_BARE: f64 = 0.8;
/// The same with one thread, where the client's CPU time limits both.
const OF_BARE_ONE_THREAD: f64 = 0.4;
/// The maximum commands to the store per lock, through the local queue and with local handoff.
const CALLS: f64 = 2.0;
const CALLS_HANDED: f64 = 0.1;

/// One way to use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Names,
    LocalQueue,
    Handoff,
    Apart,
    PollFair,
    PollUnfair,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Names, Way::LocalQueue, Way::Handoff, Way::Apart, Way::PollFair, Way::PollUnfair];

    fn label(self) -> &'static str {
        match self {
            Way::Names => "64 names",
            Way::LocalQueue => "one name",
            Way::Handoff => "one name, handoff (64, 50 ms)",
            Way::Apart => "one name, a client each",
            Way::PollFair => "one name, a client each, polling 50 ms, fair",
            Way::PollUnfair => "one name, a client each, polling 50 ms, unfair",
        }
    }

    /// Whether each task has its own client, as if it were alone in its process.
    fn apart(self) -> bool {
        matches!(self, Way::Apart | Way::PollFair | Way::PollUnfair)
    }

    fn lock(self, client: &Client, name: &str, task: usize) -> Mutex {
        let fifty = Backoff::fixed(Duration::from_millis(50));
        match self {
            Way::Names => Mutex::new(client, format!("{name}-{task}")),
            Way::LocalQueue | Way::Apart => Mutex::new(client, name),
            Way::Handoff => Mutex::new(client, name).handoff(64, Duration::from_millis(50)),
            Way::PollFair => Mutex::new(client, name).poll(fifty),
            Way::PollUnfair => Mutex::new(client, name).poll(fifty).unfair(),
        }
    }
}

pub(crate) fn run(common: &Common, targets: &Targets, report: &mut Report) -> Result<(), Failure> {
    let runtime = runtime()?;
    for target in &targets.list {
        runtime.block_on(store(common, target, report))?;
        beside_bare(common, target, report)?;
    }
    Ok(())
}

async fn store(common: &Common, target: &Target, report: &mut Report) -> Result<(), Failure> {
    let columns = [
        "64 tasks of one process",
        "locks",
        "wait P50",
        "P90",
        "P99",
        "largest/smallest share",
        "calls per lock",
    ];
    let mut table = Table::new(format!("{}: 64 tasks of one process", target.label), &columns);
    let mut rates = Vec::new();
    for way in Way::ALL {
        let capabilities = target.open().await?.capabilities();
        if way == Way::Handoff && !capabilities.token_ranges {
            continue;
        }
        let time = Duration::from_secs_f64(common.seconds(1.0));
        let mut rounds = Vec::new();
        for _ in 0..common.rounds() {
            rounds.push(round(target, way, time).await?);
        }
        let calls = if way.apart() { None } else { Some(calls(target, way, time / 4).await?) };
        let rate = Spread::of(rounds.iter().map(|round| round.rate)).unwrap_or_default().median;
        rates.push((way, rate, calls));
        let waits = |percent| Cell::times(rounds.iter().map(|r| r.waits.percentile(percent)));
        table.row([
            way.label().into(),
            Cell::rates(rounds.iter().map(|round| round.rate)),
            waits(50.0),
            waits(90.0),
            waits(99.0),
            Cell::shares(rounds.iter().map(|round| round.shares)),
            calls.map_or_else(Cell::none, Cell::number),
        ]);
    }
    table.note(
        "Hold time 0, and each task wants the lock again at once. Without a client each, the tasks \
         queue in the process first. Unfair polling looks fast here because one task keeps the \
         lock to itself while the others sleep: see its P99 and its shares.",
    );
    report.table(table);
    check(target, &rates, report);
    Ok(())
}

/// The cost of a lock and unlock: the number per second, and the CPU time of this process and of
/// the server for each.
struct Price {
    rate: f64,
    client: f64,
    server: f64,
}

/// Measures pairs; `pairs` makes them, and returns their number per second and their number, which
/// includes those before and after the time of the rate.
async fn price(
    bare: &redis::Bare,
    pairs: impl Future<Output = Result<(f64, f64), Failure>>,
) -> Result<Price, Failure> {
    let (cpu, server) = (own_cpu(), bare.server_cpu().await?);
    let (rate, done) = pairs.await?;
    Ok(Price {
        rate,
        client: seconds(own_cpu().saturating_sub(cpu)) / done,
        server: (bare.server_cpu().await? - server) / done,
    })
}

/// 64 names on Redis, in turns with the bare idiom: with a thread for each core, where the client
/// limits neither, and with one thread, where it limits both.
pub(crate) fn beside_bare(
    common: &Common,
    target: &Target,
    report: &mut Report,
) -> Result<(), Failure> {
    if !target.is_redis() {
        return Ok(());
    }
    let columns =
        ["threads", "locks", "bare idiom", "ratio", "client CPU", "bare", "server CPU", "bare"];
    let title = "64 tasks on 64 names, beside the bare idiom: CPU time for a lock and unlock";
    let mut table = Table::new(title, &columns);
    let one_thread = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (label, runtime) in [("as cores", runtime()?), ("one", one_thread)] {
        let (ours, theirs) = runtime.block_on(in_turns(common, target))?;
        let ratios: Vec<_> =
            ours.iter().zip(&theirs).map(|(ours, theirs)| ours.rate / theirs.rate).collect();
        let of_bare = Spread::of(ratios.iter().copied()).unwrap_or_default().median;
        let (threads, limit) = match label {
            "one" => (", one thread", OF_BARE_ONE_THREAD),
            _ => ("", OF_BARE),
        };
        let what =
            format!("{}: 64 tasks on 64 names{threads}, rate / the bare idiom's", target.label);
        report.ratio(what, of_bare, Limit::AtLeast(limit));
        table.row([
            label.into(),
            Cell::rates(ours.iter().map(|round| round.rate)),
            Cell::rates(theirs.iter().map(|round| round.rate)),
            Cell::ratios(ratios),
            Cell::times(ours.iter().map(|round| round.client)),
            Cell::times(theirs.iter().map(|round| round.client)),
            Cell::times(ours.iter().map(|round| round.server)),
            Cell::times(theirs.iter().map(|round| round.server)),
        ]);
    }
    report.table(table);
    Ok(())
}

/// Rounds of this library and of the bare idiom, in turns.
async fn in_turns(common: &Common, target: &Target) -> Result<(Vec<Price>, Vec<Price>), Failure> {
    let bare = redis::Bare::beside(target).await?.ok_or("it is Redis")?;
    let time = Duration::from_secs_f64(common.seconds(1.0));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..common.rounds() {
        theirs.push(price(&bare, bare.rate(TASKS, time)).await?);
        let pairs = async {
            let outcome = round(target, Way::Names, time).await?;
            Ok((outcome.rate, outcome.locks as f64))
        };
        ours.push(price(&bare, pairs).await?);
    }
    Ok((ours, theirs))
}

fn check(target: &Target, rates: &[(Way, f64, Option<f64>)], report: &mut Report) {
    let find = |way| rates.iter().find(|(of, ..)| *of == way);
    // Only fair ways can be compared: a task that polls unfairly, and wants the lock again at once,
    // has it for itself.
    if let (Some(listening), Some(polling)) = (find(Way::LocalQueue), find(Way::PollFair)) {
        let ahead = listening.1 / polling.1;
        report.check(
            format!(
                "{}: 64 tasks lock at least {AHEAD} x as often as by fair polling",
                target.label
            ),
            ratio(ahead),
            ahead >= AHEAD,
        );
    }
    for (way, limit) in [(Way::LocalQueue, CALLS), (Way::Handoff, CALLS_HANDED)] {
        if let Some(&(_, _, Some(calls))) = find(way) {
            let what = format!("{}: {}: at most {limit} calls a lock", target.label, way.label());
            // The last call of a run may have been in flight when the others were done.
            report.check(what, format!("{calls:.3}"), calls <= limit * 1.01);
        }
    }
}

async fn round(target: &Target, way: Way, time: Duration) -> Result<Outcome, Failure> {
    let shared = target.open().await?;
    let name = fresh("tasks");
    let mut locks = Vec::new();
    for task in 0..TASKS {
        let client = if way.apart() { target.open().await? } else { shared.clone() };
        locks.push(way.lock(&client, &name, task));
    }
    compete(locks, time, Duration::ZERO).await
}

/// The number of calls to the store for each lock. Counted separately, because counting costs time.
async fn calls(target: &Target, way: Way, time: Duration) -> Result<f64, Failure> {
    let (probe, counts) = CountingStore::new(target.open().await?.store().clone(), TASKS);
    let client = Client::new(probe);
    let name = fresh("calls");
    let locks: Vec<Mutex> = (0..TASKS).map(|task| way.lock(&client, &name, task)).collect();
    let outcome = compete(locks, time, Duration::ZERO).await?;
    client.settle().await;
    Ok(counts.calls() as f64 / outcome.locks.max(1) as f64)
}
