//! Very many held locks in one process: the cost of keeping them, and a check that none is lost.

use crate::counting_store::{Burst, CountingStore, Counts};
use crate::machine::{cpu_of_thread, resident};
use crate::report::{Cell, Report, Table, time};
use crate::stats::{Spread, seconds};
use crate::target::{Target, Targets, fresh};
use crate::worker::{self, Worker, args};
use crate::{Common, Failure};
use clap::Args;
use holdline::{Client, Guard, Mutex};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The maximum memory for a held lock, in bytes.
const BYTES: f64 = 1024.0;
/// The maximum time to renew all of them on Redis, in seconds.
const REDIS: f64 = 0.1;
/// The number of concurrent acquisitions.
const AT_ONCE: usize = 64;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How many locks. Default: 100,000 in memory, 10,000 elsewhere.
    #[arg(long)]
    pub(crate) locks: Option<usize>,
    /// Their lease, in seconds.
    #[arg(long, default_value_t = 4.0)]
    pub(crate) lease: f64,
    /// For how many leases they are held.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) leases: f64,
}

impl Default for Options {
    fn default() -> Self {
        Options { locks: None, lease: 4.0, leases: 3.0 }
    }
}

/// The result of one process.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Found {
    acquired_in: f64,
    valid: usize,
    bytes: Option<f64>,
    renewals: usize,
    /// The times that the renewer took to renew all locks when all were due at once.
    all_at_once: Vec<f64>,
    renewer_cpu: Option<f64>,
    watched_for: f64,
    /// The least remaining time of a lock at any moment, as a fraction of its lease.
    least_left: f64,
}

/// Runs in a process of its own, so that its memory excludes other measurements.
pub(crate) fn run(
    common: &Common,
    targets: &Targets,
    options: &Options,
    report: &mut Report,
) -> Result<(), Failure> {
    let columns = [
        "store",
        "locks",
        "still valid",
        "acquired in",
        "memory per lock",
        "all renewed at once in",
        "renewer's CPU",
        "CPU per renewal",
        "least time left",
    ];
    let title = format!("Held locks, lease {} s, for {} leases", options.lease, options.leases);
    let mut table = Table::new(title, &columns);
    // A file is measured only on request.
    let asked_for = !common.stores.is_empty();
    for target in targets.list.iter().filter(|target| asked_for || target.file().is_none()) {
        let usual = if target.is_memory() { 100_000 } else { 10_000 };
        let locks = options.locks.unwrap_or(usual);
        let found = in_a_process(target, options, locks)?;
        check(target, locks, &found, report);
        let cpu = found.renewer_cpu;
        table.row([
            target.label.as_str().into(),
            locks.into(),
            found.valid.into(),
            Cell::time(found.acquired_in),
            found.bytes.map_or_else(Cell::none, Cell::bytes),
            Cell::times(found.all_at_once.iter().copied()),
            cpu.map_or_else(Cell::none, |cpu| Cell::percent(cpu / found.watched_for)),
            cpu.map_or_else(Cell::none, |cpu| Cell::time(cpu / found.renewals.max(1) as f64)),
            Cell::percent(found.least_left),
        ]);
    }
    table.note(
        "Memory is what the process grew by: the guard, its renewal, and in memory also the line. \
         All are renewed once at the same moment first, so that they fall due together: the worst \
         case. The renewer's CPU is its thread's, as a part of one core.",
    );
    report.table(table);
    Ok(())
}

fn check(target: &Target, locks: usize, found: &Found, report: &mut Report) {
    let label = &target.label;
    report.check(
        format!("{label}: {locks} held locks all stay valid over several leases"),
        format!("{} of {locks}", found.valid),
        found.valid == locks,
    );
    if target.is_redis() {
        let median = Spread::of(found.all_at_once.iter().copied()).map(|spread| spread.median);
        report.check(
            format!("{label}: {locks} held locks renewed within 100 ms"),
            median.map_or_else(|| "never all at once".to_owned(), time),
            median.is_some_and(|median| median < REDIS),
        );
    }
    if !target.is_memory() {
        return;
    }
    let what = format!("{label}: a held lock costs under 1 KiB");
    match found.bytes {
        Some(bytes) => report.check(what, format!("{bytes:.0} B"), bytes < BYTES),
        None => report.unchecked(what, "this system does not say what a process uses"),
    }
}

fn in_a_process(target: &Target, options: &Options, locks: usize) -> Result<Found, Failure> {
    let lease_ms = (options.lease * 1e3).round().to_string();
    let more = [
        ("--locks", locks.to_string()),
        ("--lease-ms", lease_ms),
        ("--seconds", (options.lease * options.leases).to_string()),
    ];
    let mut worker = Worker::start(&args("renew", &target.url, &fresh("renewals"), &more))?;
    Ok(serde_json::from_str(&worker.line()?)?)
}

/// The work of that process.
pub(crate) async fn hold(options: &worker::Options) -> Result<Found, Failure> {
    let lease = Duration::from_millis(options.lease_ms);
    let (probe, counts) =
        CountingStore::new(holdline::open(&options.url).await?.store().clone(), options.locks);
    let client = Client::new(probe);
    // The renewer and the connections exist before memory is measured.
    Mutex::new(&client, &options.name).lock().await?.unlock().await?;
    let (start, before) = (Instant::now(), resident());
    let guards = Arc::new(acquire(&client, options, lease).await?);
    let (acquired_in, after) = (seconds(start.elapsed()), resident());
    let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    align(&guards, lease).await?;
    let cpu = cpu_of_thread("holdline-renewer");
    counts.bursts().clear();
    let (start, mut least) = (Instant::now(), lease);
    while seconds(start.elapsed()) < options.seconds {
        tokio::time::sleep(Duration::from_millis(100)).await;
        least = guards.iter().map(Guard::remaining).min().unwrap_or(lease).min(least);
    }
    let watched_for = seconds(start.elapsed());
    let cpu = cpu.zip(cpu_of_thread("holdline-renewer"));
    let (renewals, all_at_once) = bursts(&counts, options.locks);
    Ok(Found {
        acquired_in,
        valid: guards.iter().filter(|guard| guard.is_valid()).count(),
        bytes: grown.map(|bytes| bytes as f64 / guards.len().max(1) as f64),
        renewals,
        all_at_once,
        renewer_cpu: cpu.map(|(before, after)| seconds(after.saturating_sub(before))),
        watched_for,
        least_left: seconds(least) / seconds(lease),
    })
}

async fn acquire(
    client: &Client,
    options: &worker::Options,
    lease: Duration,
) -> Result<Vec<Guard>, Failure> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE.min(options.locks) {
        let (client, name, locks) = (client.clone(), options.name.clone(), options.locks);
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for at in (first..locks).step_by(AT_ONCE) {
                guards.push(Mutex::new(&client, format!("{name}-{at}")).lease(lease).lock().await?);
            }
            Ok::<_, holdline::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(options.locks);
    while let Some(task) = tasks.join_next().await {
        guards.extend(task??);
    }
    Ok(guards)
}

/// Renews all locks now, so that all are due together from then on.
async fn align(guards: &Arc<Vec<Guard>>, lease: Duration) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let guards = Arc::clone(guards);
        tasks.spawn(async move {
            for guard in guards.iter().skip(first).step_by(AT_ONCE) {
                guard.extend(lease * 9 / 10).await?;
            }
            Ok::<_, holdline::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

/// The number of renewals, and the time of each renewal of (nearly) all locks.
fn bursts(counts: &Counts, locks: usize) -> (usize, Vec<f64>) {
    let bursts = counts.bursts();
    let whole = |burst: &&Burst| burst.renewals >= locks * 9 / 10;
    let times = bursts.iter().filter(whole).map(|burst| seconds(burst.last - burst.first));
    (bursts.iter().map(|burst| burst.renewals).sum(), times.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_held_renewed_and_counted() {
        let options = worker::Options {
            role: worker::Role::Renew,
            url: "memory:renewals-test".to_owned(),
            name: "test".to_owned(),
            hold_us: 0,
            lease_ms: 1_000,
            locks: 100,
            tasks: 1,
            seconds: 1.0,
            counter: None,
        };
        let runtime = crate::runtime().unwrap();
        let found = runtime.block_on(hold(&options)).unwrap();
        assert_eq!(found.valid, 100);
        assert!(found.renewals >= 300, "{found:?}");
        assert!(!found.all_at_once.is_empty(), "{found:?}");
    }
}
