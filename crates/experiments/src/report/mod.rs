//! The report of a run, and its forms: a table, JSON, CSV, and an HTML page.

mod chart;
mod csv;
mod page;
mod picture;
mod svg;
mod table;
mod text;

use crate::cell::Cell;
use crate::error::Error;
use crate::figures::{FIGURES, Round};
use crate::machine::{self, Machine};
use crate::plan::Plan;
use crate::run::Host;
use crate::stats::{Spread, histogram};
use serde_json::{Value, json};
use std::time::Duration;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    pub(crate) title: String,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) machine: Machine,
    /// Each store, with remarks.
    pub(crate) stores: Vec<(String, String)>,
    pub(crate) rows: Vec<Row>,
}

/// The reason why a cell was not measured, or not completely.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    NotRun(Error),
    Failed(Error),
}

/// One cell, with its rounds.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) cell: Cell,
    pub(crate) store: String,
    pub(crate) status: Option<Status>,
    pub(crate) rounds: Vec<Round>,
}

impl Status {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Status::NotRun(error) | Status::Failed(error) => error,
        }
    }

    pub(crate) fn words(&self) -> String {
        match self {
            Status::NotRun(error) => format!("not run: {error}"),
            Status::Failed(error) => format!("failed: {error}"),
        }
    }
}

/// The quantiles that are kept of a distribution.
pub(crate) const QUANTILES: [f64; 12] =
    [0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0];

impl Row {
    pub(crate) fn new(cell: &Cell, store: String, status: Option<Status>) -> Self {
        Row { cell: cell.clone(), store, status, rounds: Vec::new() }
    }

    /// Whether all its rounds were measured. Those of a cell that failed say little.
    pub(crate) fn is_measured(&self) -> bool {
        self.status.is_none()
    }

    /// The store and the way to wait.
    pub(crate) fn contestant(&self) -> String {
        format!("{}: {}", self.store, self.cell.mode.label())
    }

    /// A figure's median over all rounds, with the lowest and the highest.
    pub(crate) fn spread(&self, key: &str) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| round.values.get(key).copied()))
    }

    pub(crate) fn median(&self, key: &str) -> Option<f64> {
        self.spread(key).map(|spread| spread.median)
    }

    /// The distribution of the waits of all rounds: quantile and seconds.
    pub(crate) fn distribution(&self) -> Vec<(f64, f64)> {
        let mut all = histogram();
        for round in &self.rounds {
            let _ = all.add(&round.waits); // all have the same bounds
        }
        if all.is_empty() {
            return Vec::new();
        }
        let point = |quantile| (quantile, all.value_at_quantile(quantile) as f64 / 1e9);
        QUANTILES.into_iter().map(point).collect()
    }

    /// The shares in the least fair round, the largest first.
    pub(crate) fn shares(&self) -> &[u64] {
        let unfairness = |round: &&Round| {
            let most = round.shares.first().copied().unwrap_or(0) as f64;
            (most / (round.shares.last().copied().unwrap_or(0) as f64 + 0.5) * 1e3) as u64
        };
        self.rounds.iter().max_by_key(unfairness).map_or(&[], |round| &round.shares)
    }

    /// How fairly the locks were distributed.
    pub(crate) fn fairness(&self) -> Fairness {
        let (most, least) = (self.median("share_most"), self.median("share_least"));
        let (Some(most), Some(least)) = (most, least) else { return Fairness::Unknown };
        Fairness::of(most, least, self.shares())
    }

    /// For each slice of the round: the mean locks per second of all rounds.
    pub(crate) fn series(&self) -> Vec<f64> {
        let slices = self.rounds.iter().map(|round| round.series.len()).min().unwrap_or(0);
        let mean = |at: usize| {
            let sum: f64 = self.rounds.iter().map(|round| round.series[at].0).sum();
            sum / self.rounds.len() as f64
        };
        (0..slices).map(mean).collect()
    }

    fn json(&self) -> Value {
        let cell = &self.cell;
        let figures = FIGURES.iter().filter_map(|figure| {
            let spread = self.spread(figure.key)?;
            Some((figure.key.to_owned(), json!(spread)))
        });
        json!({
            "store": self.store,
            "mode": cell.mode.to_string(),
            "label": cell.mode.label(),
            "scenario": cell.scenario.to_string(),
            "clients": cell.clients,
            "processes": cell.processes,
            "names": cell.names,
            "hold_ms": cell.hold.as_secs_f64() * 1e3,
            "delay_ms": cell.delay.as_secs_f64() * 1e3,
            "rate": cell.rate,
            "lease_ms": cell.lease.as_secs_f64() * 1e3,
            "status": self.status.as_ref().map_or("measured".to_owned(), Status::words),
            "rounds": self.rounds.len(),
            "fairness": self.fairness().word(),
            "figures": figures.collect::<serde_json::Map<_, _>>(),
            "distribution": self.distribution(),
            "shares": self.shares(),
            "series": self.series(),
        })
    }
}

/// How fairly locks were distributed among the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fairness {
    /// Too few locks to judge, or only one client.
    Unknown,
    /// The client with the most locks had at most 1.5 times as many as the one with the fewest.
    Even,
    Uneven,
    /// A client had no lock, or another had ten times as many.
    Starves,
}

impl Fairness {
    fn of(most: f64, least: f64, shares: &[u64]) -> Self {
        let (locks, clients) = (shares.iter().sum::<u64>(), shares.len() as u64);
        // With few locks, a client may have none by chance; but no client has ten by chance.
        let few = locks < 4 * clients;
        let starves = if few { most >= 10.0 * least.max(1.0) } else { most > 10.0 * least };
        if clients < 2 {
            Fairness::Unknown
        } else if starves {
            Fairness::Starves
        } else if few {
            Fairness::Unknown
        } else if most > 1.5 * least {
            Fairness::Uneven
        } else {
            Fairness::Even
        }
    }

    /// Whether it is fair enough for a report to recommend.
    pub(crate) fn is_fair(self) -> bool {
        matches!(self, Fairness::Unknown | Fairness::Even)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Fairness::Unknown => "",
            Fairness::Even => "even",
            Fairness::Uneven => "uneven",
            Fairness::Starves => "STARVES",
        }
    }
}

impl Report {
    pub(crate) fn new(plan: &Plan, host: &Host) -> Self {
        Report {
            title: plan.title.clone(),
            command: host.command.clone(),
            rounds: plan.rounds,
            time: plan.time,
            machine: machine::about(),
            stores: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn finish(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        self.machine.load_after = machine::load();
    }

    /// The reason why a cell failed that should have been measured, if any did.
    pub fn failure(&self) -> Option<Error> {
        self.rows.iter().find_map(|row| match &row.status {
            Some(Status::Failed(error) | Status::NotRun(error @ Error::Failed(_))) => {
                Some(error.clone())
            }
            _ => None,
        })
    }

    /// All figures, for machines.
    pub fn json(&self) -> Value {
        json!({
            "title": self.title,
            "command": self.command,
            "rounds": self.rounds,
            "round_seconds": self.time.as_secs_f64(),
            "machine": self.machine,
            "stores": self.stores.iter().map(|(store, about)| {
                json!({ "store": store, "about": about })
            }).collect::<Vec<_>>(),
            "figures": &FIGURES[..],
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    /// A table for a terminal.
    pub fn table(&self) -> String {
        table::draw(self)
    }

    /// One line for each cell: medians, and the lowest and highest round.
    pub fn csv(&self) -> String {
        csv::write(self)
    }

    /// A self-contained page with charts.
    pub fn html(&self) -> String {
        page::write(self)
    }

    /// The chart of locks per second and shares of the first load that was measured, as a
    /// self-contained SVG; `None` if none was.
    pub fn svg(&self) -> Option<String> {
        picture::write(self)
    }

    /// The machine on which the figures were measured, in lines.
    pub(crate) fn caption(&self) -> Vec<String> {
        let machine = &self.machine;
        let load = |load: Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load}"));
        let build = if machine.optimized { "" } else { " (a build without optimization!)" };
        let mut lines = vec![
            format!("{}, {} cores, {}", machine.cpu, machine.cores, machine.system),
            format!(
                "load before {}, after {}{}",
                load(machine.load_before),
                load(machine.load_after),
                if self.is_busy() { ": a busy machine; compare ratios, not times" } else { "" }
            ),
            format!("holdline {}{build}", machine.holdline),
        ];
        lines.extend(self.stores.iter().map(|(store, about)| format!("{store}: {about}")));
        lines.push(format!("{} of {:?}, the cells in turns", self.rounds_in_words(), self.time));
        lines.push(self.command.clone());
        lines
    }

    /// The number of rounds with its noun, for captions.
    fn rounds_in_words(&self) -> String {
        format!("{} round{}", self.rounds, if self.rounds == 1 { "" } else { "s" })
    }

    /// Whether the machine was busy when the run began.
    fn is_busy(&self) -> bool {
        self.machine.load_before.is_some_and(|load| load > self.machine.cores as f64 / 2.0)
    }

    /// Whether clients waited for each other, so that waits and shares mean something.
    fn has_waits(&self) -> bool {
        self.rows.iter().any(|row| !row.cell.scenario.is_crash())
    }
}

#[cfg(test)]
mod tests {
    use super::Fairness;

    #[test]
    fn a_verdict_needs_locks_to_judge_by() {
        assert_eq!(Fairness::of(2.0, 0.0, &[2, 1, 1, 0]), Fairness::Unknown);
        assert_eq!(Fairness::of(39.0, 0.0, &[39, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Fairness::Starves);
        assert_eq!(Fairness::of(20.0, 0.0, &[20, 3, 2, 1, 0, 0, 0]), Fairness::Starves);
        assert_eq!(Fairness::of(30.0, 20.0, &[30, 20]), Fairness::Even);
        assert_eq!(Fairness::of(31.0, 20.0, &[31, 20]), Fairness::Uneven);
        assert_eq!(Fairness::of(9.0, 9.0, &[9]), Fairness::Unknown);
    }
}
