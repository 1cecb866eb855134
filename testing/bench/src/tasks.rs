//! 64 tasks of one process: on one name, on 64 names, with local handoff, and polling.

use crate::compete::{Outcome, compete};
use crate::counting_store::CountingStore;
use crate::redis;
use crate::report::{Cell, Limit, Report, Table, ratio};
use crate::stats::Spread;
use crate::target::{Target, Targets, fresh};
use crate::{Common, Failure, runtime};
use holdline::{Backoff, Client, Mutex};
use std::time::Duration;

const TASKS: usize = 64;
/// Listening must bring this many times the locks of polling every 50 ms.
const AHEAD: f64 = 10.0;
/// So much of the bare idiom's throughput must be left on Redis, with a name for each task.
const OF_BARE: f64 = 0.8;
/// Commands to the store for every lock, through the local queue and with local handoff.
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

    /// Whether each task has a client of its own, as if it were alone in its process.
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
    beside_bare(common, target, report).await
}

/// 64 names on Redis, in turns with the bare idiom.
pub(crate) async fn beside_bare(
    common: &Common,
    target: &Target,
    report: &mut Report,
) -> Result<(), Failure> {
    let Some(bare) = redis::Bare::beside(target).await? else { return Ok(()) };
    let time = Duration::from_secs_f64(common.seconds(1.0));
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..common.rounds() {
        theirs.push(bare.rate(TASKS, time).await?);
        ours.push(round(target, Way::Names, time).await?.rate);
        ratios.extend(ours.last().zip(theirs.last()).map(|(ours, theirs)| ours / theirs));
    }
    let of_bare = Spread::of(ratios.iter().copied()).unwrap_or_default().median;
    let what = format!("{}: 64 tasks on 64 names, rate / the bare idiom's", target.label);
    report.ratio(what, of_bare, Limit::AtLeast(OF_BARE));
    let columns = ["store", "locks", "bare idiom", "ratio"];
    let mut table = Table::new("64 tasks on 64 names, beside the bare idiom", &columns);
    let label = target.label.as_str().into();
    table.row([label, Cell::rates(ours), Cell::rates(theirs), Cell::ratios(ratios)]);
    report.table(table);
    Ok(())
}

fn check(target: &Target, rates: &[(Way, f64, Option<f64>)], report: &mut Report) {
    let find = |way| rates.iter().find(|(of, ..)| *of == way);
    // Only those who take turns can be compared: whoever polls unfairly, and wants the lock again
    // at once, has it for himself.
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
            // The last of a run may have been on its way when the others were done.
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

/// How often the store is asked for each lock. Counted apart, because counting costs time.
async fn calls(target: &Target, way: Way, time: Duration) -> Result<f64, Failure> {
    let (probe, counts) = CountingStore::new(target.open().await?.store().clone(), TASKS);
    let client = Client::new(probe);
    let name = fresh("calls");
    let locks: Vec<Mutex> = (0..TASKS).map(|task| way.lock(&client, &name, task)).collect();
    let outcome = compete(locks, time, Duration::ZERO).await?;
    client.settle().await;
    Ok(counts.calls() as f64 / outcome.locks.max(1) as f64)
}
