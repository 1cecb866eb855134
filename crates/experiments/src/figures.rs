//! The figures: their names and units, and their calculation from a round.

use crate::cell::{Cell, Scenario};
use crate::contend::{Outcome, SLICES, nanos};
use crate::stats::{add, histogram, order, quantile, without_omission};
use crate::target::Usage;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    Seconds,
    PerSecond,
    Count,
    Share,
    Bytes,
}

/// One figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) key: &'static str,
    pub(crate) unit: Unit,
    pub(crate) meaning: &'static str,
}

const fn figure(key: &'static str, unit: Unit, meaning: &'static str) -> Figure {
    Figure { key, unit, meaning }
}

use Unit::{Bytes, Count, PerSecond, Seconds, Share};

/// All figures, in the order of the CSV's columns. A figure that could not be measured is empty.
pub(crate) const FIGURES: [Figure; 33] = [
    figure("locks_per_s", PerSecond, "locks granted in a second"),
    figure("wait_mean", Seconds, "mean time to acquire, without coordinated omission"),
    figure("wait_p50", Seconds, "half of all waits are at most so long, without omission"),
    figure("wait_p70", Seconds, "P70"),
    figure("wait_p90", Seconds, "P90"),
    figure("wait_p99", Seconds, "P99"),
    figure("wait_p999", Seconds, "P99.9"),
    figure("wait_max", Seconds, "the longest wait, also of those that were not granted"),
    figure("wait_mean_granted", Seconds, "mean of the waits that ended with a lock, uncorrected"),
    figure("wait_p90_granted", Seconds, "P90 as it was counted, uncorrected"),
    figure("wait_p99_granted", Seconds, "P99 as it was counted, uncorrected"),
    figure("gap_p50", Seconds, "from the beginning of a release until a waiter holds, median"),
    figure("gap_p99", Seconds, "the same, P99"),
    figure("share_most", Count, "locks of the client that had most"),
    figure("share_least", Count, "locks of the client that had fewest"),
    figure("starved", Count, "clients that had no lock at all"),
    figure("overtaking", Share, "grants that went ahead of somebody who had asked earlier"),
    figure("unfinished", Count, "locks wanted and not granted when the round ended"),
    figure("unconfirmed", Count, "releases that the store did not confirm in time"),
    figure("commands_per_lock", Count, "commands that the servers counted for a lock"),
    figure("bytes_per_lock", Bytes, "bytes that the servers counted for a lock, both directions"),
    figure("client_cpu_per_lock", Seconds, "CPU time of all clients for a lock"),
    figure("server_cpu_per_lock", Seconds, "CPU time of all servers for a lock"),
    figure("client_cores", Count, "cores that the clients kept busy"),
    figure("server_cores", Count, "cores that the servers kept busy, together"),
    figure("busiest_server_cores", Count, "cores that the busiest server kept busy"),
    figure("client_memory", Bytes, "resident memory of all clients' processes"),
    figure("server_memory", Bytes, "resident memory of all servers"),
    figure("server_sockets", Count, "sockets that the servers had open"),
    figure("places", Count, "who held or waited, as the store saw it in the middle of the round"),
    figure("later_rate", Share, "locks in the last quarter of the round, over those in the first"),
    figure("recovery", Seconds, "from the crash until the next one holds"),
    figure("faults", Count, "locks lost while held, and grants before the release before them"),
];

/// The figures of one round, by their keys.
pub(crate) type Values = BTreeMap<&'static str, f64>;

/// One round of a cell.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) values: Values,
    /// All waits, without omission.
    pub(crate) waits: Histogram<u64>,
    /// The acquisitions of each client, the most first.
    pub(crate) shares: Vec<u64>,
    /// For each slice: locks per second, and the mean wait in seconds, if there was one.
    pub(crate) series: Vec<(f64, Option<f64>)>,
}

/// The servers' resource usage in the round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    pub(crate) before: Usage,
    pub(crate) after: Usage,
    /// The store's number of holders and waiters of the first name in the middle of the round.
    pub(crate) places: Option<usize>,
}

impl Round {
    /// The round of a crash, which has a figure of its own.
    pub(crate) fn crash(values: Values) -> Self {
        Round { values, waits: histogram(), shares: Vec::new(), series: Vec::new() }
    }

    pub(crate) fn new(
        cell: &Cell,
        time: Duration,
        start: u64,
        all: Vec<Outcome>,
        used: &Used,
    ) -> Self {
        let mut sum = Outcome::empty();
        let mut raw = histogram();
        for one in all {
            add(&mut raw, &one.waits);
            sum.waited = (sum.waited.0 + one.waited.0, sum.waited.1 + one.waited.1);
            sum.unfinished += one.unfinished;
            sum.shares.extend(one.shares);
            sum.turns.extend(one.turns);
            sum.turns_until = sum.turns_until.min(one.turns_until);
            sum.last = sum.last.max(one.last);
            sum.cpu += one.cpu;
            sum.memory += one.memory;
            sum.lost += one.lost;
            sum.unconfirmed += one.unconfirmed;
            for (total, more) in sum.slices.iter_mut().zip(one.slices) {
                *total = (total.0 + more.0, total.1 + more.1);
            }
        }
        let is_burst = cell.scenario == Scenario::Burst;
        let wall = if is_burst { sum.last.saturating_sub(start) } else { nanos(time) }.max(1);
        let locks: u64 = sum.shares.iter().sum();
        // With a rate, waits count from when the lock was wanted, and nothing is omitted.
        let corrected = if is_burst || cell.rate.is_some() || locks == 0 {
            raw.clone()
        } else {
            without_omission(&raw, wall / locks.max(1) * cell.clients as u64)
        };
        let mut values = Values::new();
        waits(&mut values, &raw, &corrected, &sum);
        values.insert("locks_per_s", locks as f64 / (wall as f64 / 1e9));
        shares(&mut values, &sum, is_burst);
        turns(&mut values, cell, &mut sum);
        costs(&mut values, &sum, used, wall, locks);
        let slice = wall as f64 / 1e9 / SLICES as f64;
        let series = sum.slices.iter().map(|(locks, waited)| {
            let mean = (*locks > 0).then(|| *waited as f64 / 1e9 / *locks as f64);
            (*locks as f64 / slice, mean)
        });
        let series = if is_burst { Vec::new() } else { series.collect() };
        sum.shares.sort_unstable_by(|a, b| b.cmp(a));
        Round { values, waits: corrected, shares: sum.shares, series }
    }
}

fn waits(values: &mut Values, raw: &Histogram<u64>, all: &Histogram<u64>, sum: &Outcome) {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    if all.is_empty() {
        return;
    }
    values.insert("wait_mean", all.mean() / 1e9);
    for (key, quantile) in [
        ("wait_p50", 0.5),
        ("wait_p70", 0.7),
        ("wait_p90", 0.9),
        ("wait_p99", 0.99),
        ("wait_p999", 0.999),
    ] {
        values.insert(key, seconds(all.value_at_quantile(quantile)));
    }
    values.insert("wait_max", seconds(all.max()));
    values.insert("wait_p90_granted", seconds(raw.value_at_quantile(0.9)));
    values.insert("wait_p99_granted", seconds(raw.value_at_quantile(0.99)));
    if sum.waited.1 > 0 {
        values.insert("wait_mean_granted", seconds(sum.waited.0) / sum.waited.1 as f64);
    }
    values.insert("unfinished", sum.unfinished as f64);
}

fn shares(values: &mut Values, sum: &Outcome, is_burst: bool) {
    if is_burst {
        return;
    }
    values.insert("share_most", sum.shares.iter().max().copied().unwrap_or(0) as f64);
    values.insert("share_least", sum.shares.iter().min().copied().unwrap_or(0) as f64);
    values.insert("starved", sum.shares.iter().filter(|share| **share == 0).count() as f64);
    let quarter = SLICES / 4;
    let locks = |slices: &[(u64, u64)]| slices.iter().map(|slice| slice.0).sum::<u64>() as f64;
    let (first, last) = (locks(&sum.slices[..quarter]), locks(&sum.slices[SLICES - quarter..]));
    if first > 0.0 {
        values.insert("later_rate", last / first);
    }
}

fn turns(values: &mut Values, cell: &Cell, sum: &mut Outcome) {
    let exclusive = cell.scenario.is_exclusive();
    let order = order(&mut sum.turns, sum.turns_until, exclusive);
    values.extend(order.overtaking.map(|share| ("overtaking", share)));
    values.extend(quantile(&order.gaps, 0.5).map(|gap| ("gap_p50", gap)));
    values.extend(quantile(&order.gaps, 0.99).map(|gap| ("gap_p99", gap)));
    values.insert("unconfirmed", sum.unconfirmed as f64);
    values.insert("faults", (order.overlaps + sum.lost) as f64);
}

fn costs(values: &mut Values, sum: &Outcome, used: &Used, wall: u64, locks: u64) {
    let Used { before, after, .. } = used;
    let of: Vec<u64> = before
        .processes
        .iter()
        .zip(&after.processes)
        .map(|(before, after)| after.cpu.saturating_sub(before.cpu))
        .collect();
    let counts = after.counts.since(before.counts);
    let servers: u64 = of.iter().sum();
    if locks > 0 {
        let each = |total: f64| total / locks as f64;
        values.insert("client_cpu_per_lock", each(sum.cpu as f64) / 1e9);
        values.extend(counts.commands.map(|sum| ("commands_per_lock", each(sum))));
        values.extend(counts.bytes.map(|sum| ("bytes_per_lock", each(sum))));
        if !of.is_empty() {
            values.insert("server_cpu_per_lock", each(servers as f64) / 1e9);
        }
    }
    values.extend(used.places.map(|places| ("places", places as f64)));
    values.insert("client_cores", sum.cpu as f64 / wall as f64);
    values.insert("client_memory", sum.memory as f64);
    if !of.is_empty() {
        values.insert("server_cores", servers as f64 / wall as f64);
        let busiest = of.iter().max().copied().unwrap_or(0);
        values.insert("busiest_server_cores", busiest as f64 / wall as f64);
        let memory: u64 = after.processes.iter().map(|process| process.memory).sum();
        values.insert("server_memory", memory as f64);
        let sockets: u64 = after.processes.iter().map(|process| process.sockets).sum();
        values.insert("server_sockets", sockets as f64);
    }
}
