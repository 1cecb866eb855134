//! 8 processes on one name: throughput, waits and fairness; and a counter that only the lock
//! protects.

use crate::report::{Cell, Report, Table, ratio};
use crate::stats::{Shares, Waits};
use crate::target::{Target, Targets, fresh};
use crate::worker::{Grant, args, workers};
use crate::{Common, Failure};
use std::collections::BTreeSet;

const PROCESSES: usize = 8;
/// The number of increments by each process.
const RAISES: usize = 1_000;
/// The maximum ratio of the largest share to the smallest.
const FAIR: f64 = 1.5;
/// The same for 64 tasks of 8 processes on Redis.
const FAIR_REDIS: f64 = 1.2;
/// The number of tasks of each of these, and the time for which they compete: some 18 turns each.
const TASKS: usize = 8;
const CONTENDED: f64 = 14.0;

pub(crate) fn run(common: &Common, targets: &Targets, report: &mut Report) -> Result<(), Failure> {
    let columns =
        ["store", "held for", "locks", "wait P50", "P90", "P99", "largest/smallest share"];
    let mut table = Table::new("8 processes on one name", &columns);
    for target in targets.between_processes() {
        for hold_ms in [0, 1] {
            table.row(compete(common, target, hold_ms)?);
        }
    }
    table.note("Shares are counted while all of the processes compete.");
    report.table(table);
    let columns = ["store", "locks", "of tasks", "of processes"];
    let title = "8 processes x 8 tasks on one name, held for 10 ms: largest/smallest share";
    let mut table = Table::new(title, &columns);
    for target in targets.between_processes() {
        table.row(contended(common, target, report)?);
    }
    report.table(table);
    let columns = ["store", "counter", "tokens", "rounds", "wait P99", "largest/smallest share"];
    let mut table = Table::new("8 processes x 1,000 times read, add one, write", &columns);
    for target in targets.between_processes() {
        table.row(count(target, targets, report)?);
    }
    report.table(table);
    if targets.between_processes().next().is_none() {
        Report::skip("8 processes", "a store in memory is not shared by processes");
    }
    Ok(())
}

fn compete(common: &Common, target: &Target, hold_ms: u64) -> Result<Vec<Cell>, Failure> {
    let seconds = common.seconds(2.0);
    let more = [("--seconds", seconds.to_string()), ("--hold-us", (hold_ms * 1000).to_string())];
    let mut rounds = Vec::new();
    for _ in 0..common.rounds() {
        let name = fresh("processes");
        let workers = workers(PROCESSES, &args("compete", &target.url, &name, &more))?;
        rounds.push(Together::of(&workers));
    }
    let waits = |percent| Cell::times(rounds.iter().map(|r| r.waits.percentile(percent)));
    Ok(vec![
        target.label.as_str().into(),
        format!("{hold_ms} ms").into(),
        Cell::rates(rounds.iter().map(|round| round.rate)),
        waits(50.0),
        waits(90.0),
        waits(99.0),
        Cell::shares(rounds.iter().map(|round| round.shares)),
    ])
}

fn contended(common: &Common, target: &Target, report: &mut Report) -> Result<Vec<Cell>, Failure> {
    let more = [
        ("--seconds", common.seconds(CONTENDED).max(CONTENDED / 2.0).to_string()),
        ("--hold-us", "10000".to_owned()),
        ("--tasks", TASKS.to_string()),
    ];
    let workers = workers(PROCESSES, &args("compete", &target.url, &fresh("contended"), &more))?;
    let of_task = |task| {
        move |of: &Vec<Grant>| -> Vec<Grant> {
            of.iter().filter(|grant| grant.task == task).copied().collect()
        }
    };
    let tasks: Vec<_> = (0..TASKS).flat_map(|task| workers.iter().map(of_task(task))).collect();
    let (by_task, by_process) = (Together::of(&tasks), Together::of(&workers));
    if target.is_redis() {
        report.check(
            format!(
                "{}: 8 processes x 8 tasks: largest/smallest share under {FAIR_REDIS}",
                target.label
            ),
            ratio(by_task.shares.ratio()),
            by_task.shares.ratio() < FAIR_REDIS,
        );
    }
    Ok(vec![
        target.label.as_str().into(),
        Cell::rates([by_process.rate]),
        Cell::shares([by_task.shares]),
        Cell::shares([by_process.shares]),
    ])
}

/// The result of several competing processes.
struct Together {
    rate: f64,
    waits: Waits,
    shares: Shares,
}

impl Together {
    fn of(workers: &[Vec<Grant>]) -> Self {
        let start = workers.iter().map(|of| of.first().map_or(0, |grant| grant.asked)).max();
        let end = workers.iter().map(|of| of.last().map_or(0, |grant| grant.got)).min();
        let (start, end) = (start.unwrap_or(0), end.unwrap_or(0));
        let inside = |grants: &&Grant| (start..=end).contains(&grants.got);
        let shares: Vec<usize> =
            workers.iter().map(|of| of.iter().filter(inside).count()).collect();
        let seconds = end.saturating_sub(start) as f64 / 1e9;
        let waits = workers.iter().flatten().map(Grant::wait).collect();
        Together {
            rate: shares.iter().sum::<usize>() as f64 / seconds,
            waits: Waits::new(waits),
            shares: Shares::of(&shares),
        }
    }
}

fn count(target: &Target, targets: &Targets, report: &mut Report) -> Result<Vec<Cell>, Failure> {
    let file = targets.folder.path().join(fresh("counter"));
    std::fs::write(&file, "0\n")?;
    let path = file.to_str().ok_or("the temporary folder's name is not UTF-8")?.to_owned();
    let more = [("--locks", RAISES.to_string()), ("--counter", path)];
    let workers = workers(PROCESSES, &args("compete", &target.url, &fresh("counter"), &more))?;
    let counted: usize = std::fs::read_to_string(&file)?.trim().parse()?;
    let expected = PROCESSES * RAISES;
    let label = &target.label;
    report.check(
        format!("{label}: 8 processes x 1,000 raise a counter to exactly 8,000"),
        counted.to_string(),
        counted == expected,
    );
    let rising = rising(&workers);
    report.check(
        format!("{label}: tokens rise strictly from holder to holder"),
        if rising { "they do" } else { "they do not" },
        rising,
    );
    let together = Together::of(&workers);
    report.check(
        format!("{label}: no process starves: largest/smallest share under {FAIR}"),
        ratio(together.shares.ratio()),
        together.shares.ratio() < FAIR,
    );
    Ok(vec![
        label.as_str().into(),
        format!("{counted} of {expected}").into(),
        if rising { "rise strictly".into() } else { "DO NOT RISE".into() },
        Cell::rates([together.rate]),
        Cell::time(together.waits.percentile(99.0)),
        Cell::shares([together.shares]),
    ])
}

/// Whether tokens rise with the counts, and no count occurs twice.
fn rising(workers: &[Vec<Grant>]) -> bool {
    let mut grants: Vec<&Grant> = workers.iter().flatten().collect();
    grants.sort_by_key(|grant| (grant.count, grant.token));
    let counts: BTreeSet<u64> = grants.iter().map(|grant| grant.count).collect();
    counts.len() == grants.len() && grants.is_sorted_by(|a, b| a.token < b.token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: u64, got: u64, count: u64) -> Grant {
        Grant { token, asked: 0, got, left: got, count, task: 0 }
    }

    #[test]
    fn tokens_that_fall_or_counts_that_repeat_are_seen() {
        let workers = |third: Grant| vec![vec![grant(1, 1, 0), grant(5, 3, 2)], vec![third]];
        assert!(rising(&workers(grant(3, 2, 1))));
        assert!(!rising(&workers(grant(7, 2, 1))));
        assert!(!rising(&workers(grant(3, 2, 2))));
    }

    #[test]
    fn shares_are_counted_while_all_compete() {
        let workers = [
            vec![grant(1, 10, 0), grant(2, 20, 0), grant(3, 90, 0)],
            vec![grant(4, 15, 0), grant(5, 20, 0)],
        ];
        assert!((Together::of(&workers).shares.ratio() - 1.0).abs() < 1e-9);
    }
}
