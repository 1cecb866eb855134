//! The output: tables of figures, and the list of requirements.

use crate::stats::{Shares, Spread};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// One cell: its text for people, and its value for programs.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    value: Value,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell { text: text.to_owned(), value: json!(text) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::from(text.as_str())
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Cell { text: grouped(count as f64), value: json!(count) }
    }
}

impl Cell {
    /// A time in seconds.
    pub(crate) fn time(seconds: f64) -> Self {
        Cell { text: time(seconds), value: json!({ "seconds": seconds }) }
    }

    /// A time in seconds, over several rounds.
    pub(crate) fn times(rounds: impl IntoIterator<Item = f64>) -> Self {
        Cell::spread(Spread::of(rounds), "seconds", time)
    }

    /// Locks a second, over several rounds.
    pub(crate) fn rates(rounds: impl IntoIterator<Item = f64>) -> Self {
        Cell::spread(Spread::of(rounds), "per_second", |rate| format!("{}/s", grouped(rate)))
    }

    /// A ratio, over several rounds.
    pub(crate) fn ratios(rounds: impl IntoIterator<Item = f64>) -> Self {
        Cell::spread(Spread::of(rounds), "ratio", ratio)
    }

    /// A ratio.
    pub(crate) fn ratio(value: f64) -> Self {
        Cell { text: ratio(value), value: json!({ "ratio": finite(value) }) }
    }

    /// The ratio of the largest share to the smallest, in the round where it is the median.
    pub(crate) fn shares(rounds: impl IntoIterator<Item = Shares>) -> Self {
        let mut rounds: Vec<Shares> = rounds.into_iter().collect();
        rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let Some(&shares) = rounds.get(rounds.len() / 2) else { return Cell::none() };
        let Shares { most, least } = shares;
        let (most_text, least_text) = (grouped(most as f64), grouped(least as f64));
        let text = match least {
            0 => format!("{most_text} : 0"),
            _ => format!("{} ({most_text} : {least_text})", ratio(shares.ratio())),
        };
        let value = json!({ "ratio": finite(shares.ratio()), "most": most, "least": least });
        Cell { text, value }
    }

    /// A fraction, shown in percent.
    pub(crate) fn percent(part: f64) -> Self {
        Cell { text: format!("{:.2} %", part * 100.0), value: json!({ "part": part }) }
    }

    /// Bytes.
    pub(crate) fn bytes(bytes: f64) -> Self {
        Cell { text: format!("{} B", grouped(bytes)), value: json!({ "bytes": bytes }) }
    }

    /// A number with one decimal place or so.
    pub(crate) fn number(value: f64) -> Self {
        let text = if value < 10.0 { format!("{value:.2}") } else { grouped(value) };
        Cell { text, value: json!(finite(value)) }
    }

    /// The same cell, without the lowest and highest in the text, for wide tables.
    pub(crate) fn short(mut self) -> Self {
        if let Some((median, _)) = self.text.split_once(" (") {
            self.text = median.to_owned();
        }
        self
    }

    /// A cell without a measurement.
    pub(crate) fn none() -> Self {
        Cell { text: "-".to_owned(), value: Value::Null }
    }

    fn spread(spread: Option<Spread>, unit: &str, show: impl Fn(f64) -> String) -> Self {
        let Some(Spread { median, low, high }) = spread else { return Cell::none() };
        let mut text = show(median);
        let (low_text, high_text) = (show(low), show(high));
        if low_text != high_text {
            let _ = write!(text, " ({low_text} .. {high_text})");
        }
        let value = json!({ unit: finite(median), "low": finite(low), "high": finite(high) });
        Cell { text, value }
    }
}

/// A JSON number, which cannot be infinite.
fn finite(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!("infinite") }
}

/// A time with three significant digits.
pub(crate) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A ratio as text.
pub(crate) fn ratio(value: f64) -> String {
    if value.is_infinite() {
        return "infinite".to_owned();
    }
    format!("{value:.2} x")
}

/// A whole number with a comma every three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A table of figures.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Table { title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The table in aligned Markdown, readable in a terminal and ready to be pasted into a page.
    pub(crate) fn text(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].text.chars().count());
            cells.chain([self.columns[at].chars().count(), 3]).max().unwrap_or(3)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let mut text = String::from("|");
            for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = match at {
                    0 => write!(text, " {cell:<width$} |"),
                    _ => write!(text, " {cell:>width$} |"),
                };
            }
            text + "\n"
        };
        let mut text = format!("{}\n\n", self.title);
        text += &line(self.columns.iter().map(String::as_str).collect());
        let rules: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(at, width)| {
                "-".repeat(width - usize::from(at > 0)) + if at > 0 { ":" } else { "" }
            })
            .collect();
        text += &line(rules.iter().map(String::as_str).collect());
        for row in &self.rows {
            text += &line(row.iter().map(|cell| cell.text.as_str()).collect());
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| {
            let named = self.columns.iter().cloned().zip(cells.iter().map(|c| c.value.clone()));
            Value::Object(named.collect::<Map<_, _>>())
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        json!({ "title": self.title, "rows": rows, "notes": self.notes })
    }
}

/// A requirement and its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// The requirement, with its limit.
    pub(crate) what: String,
    /// The measurement, or why there is none.
    pub(crate) figure: String,
    /// `None` if it could not be measured.
    pub(crate) holds: Option<bool>,
}

/// The limit of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    pub(crate) fn holds(self, ratio: f64) -> bool {
        match self {
            Limit::AtMost(limit) => ratio <= limit,
            Limit::AtLeast(limit) => ratio >= limit,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::AtMost(limit) => write!(f, "at most {limit:.3}"),
            Limit::AtLeast(limit) => write!(f, "at least {limit:.3}"),
        }
    }
}

/// The results of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tables: Vec<Table>,
    checks: Vec<Check>,
    /// The ratios to another way of doing the same, measured in turns with this library.
    ratios: Vec<(String, f64, Limit)>,
}

impl Report {
    /// Prints a table, and keeps it.
    pub(crate) fn table(&mut self, table: Table) {
        println!("{}", table.text());
        self.tables.push(table);
    }

    /// Reports that something was left out, and why.
    pub(crate) fn skip(what: &str, why: &str) {
        println!("Not run: {what}: {why}\n");
    }

    pub(crate) fn check(
        &mut self,
        what: impl Into<String>,
        figure: impl Into<String>,
        holds: bool,
    ) {
        let (what, figure) = (what.into(), figure.into());
        self.checks.push(Check { what, figure, holds: Some(holds) });
    }

    /// Adds a ratio to another way of doing the same, and its limit.
    pub(crate) fn ratio(&mut self, what: String, measured: f64, limit: Limit) {
        self.check(format!("{what}: {limit}"), ratio(measured), limit.holds(measured));
        self.ratios.push((what, measured, limit));
    }

    /// All such ratios.
    pub(crate) fn ratios(&self) -> &[(String, f64, Limit)] {
        &self.ratios
    }

    /// Adds a requirement that could not be checked. It counts as not met.
    pub(crate) fn unchecked(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.checks.push(Check { what: what.into(), figure: why.into(), holds: None });
    }

    /// Prints the list of requirements, and returns whether all are met.
    pub(crate) fn verdict(&self) -> bool {
        if self.checks.is_empty() {
            return true;
        }
        let mut table = Table::new("What must hold", &["must hold", "figure", "holds"]);
        for check in &self.checks {
            let holds = match check.holds {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "not run",
            };
            table.row([check.what.as_str().into(), check.figure.as_str().into(), holds.into()]);
        }
        println!("{}", table.text());
        self.checks.iter().all(|check| check.holds == Some(true))
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    pub(crate) fn json(&self, about: &Value) -> Value {
        let tables: Vec<Value> = self.tables.iter().map(Table::json).collect();
        json!({ "about": about, "tables": tables, "must_hold": self.checks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(time(0.000_000_012_3), "12.3 ns");
        assert_eq!(time(0.001_234), "1.23 ms");
        assert_eq!(time(123.4), "123 s");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(ratio(f64::INFINITY), "infinite");
    }

    #[test]
    fn a_table_has_a_line_for_every_row() {
        let mut table = Table::new("Title", &["what", "time"]);
        table.row(["a".into(), Cell::times([0.001, 0.003, 0.002])]);
        let text = table.text();
        assert!(text.contains("| a    | 2.00 ms (1.00 ms .. 3.00 ms) |"), "{text}");
        assert_eq!(table.json()["rows"][0]["time"]["seconds"], json!(0.002));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let mut report = Report::default();
        assert!(report.verdict());
        report.check("a", "1", true);
        assert!(report.verdict());
        report.unchecked("b", "no program");
        assert!(!report.verdict());
    }
}
