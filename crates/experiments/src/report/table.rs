//! The table for a terminal: a block for each load, a line for each store and way to wait.

use super::text::{number, time};
use super::{Fairness, Report, Row};
use std::fmt::Write;

const COLUMNS: [&str; 11] = [
    "store: waiting",
    "locks/s",
    "mean",
    "P50",
    "P90",
    "P99",
    "max",
    "gap P50",
    "most : least",
    "client CPU",
    "server CPU",
];

pub(super) fn draw(report: &Report) -> String {
    let mut text = String::new();
    let mut loads: Vec<String> = report.rows.iter().map(|row| row.cell.load()).collect();
    loads.dedup();
    let mut seen: Vec<String> = Vec::new();
    for load in loads {
        if seen.contains(&load) {
            continue;
        }
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.cell.load() == load).collect();
        let _ = writeln!(text, "{load}");
        block(&mut text, &rows);
        text.push('\n');
        seen.push(load);
    }
    if report.rows.iter().any(|row| row.fairness() == Fairness::Starves) {
        text.push_str(
            "STARVES: a client had nothing, or another one ten times as much. Its locks a second \
             are those\nof a few lucky clients.\n",
        );
    }
    let faults: f64 =
        report.rows.iter().filter_map(|row| row.spread("faults")).map(|s| s.high).sum();
    if faults > 0.0 {
        let _ = writeln!(
            text,
            "{faults} locks were lost while held, or granted before the release before them."
        );
    }
    if report.has_waits() {
        text.push_str(
            "Waits are without coordinated omission: a client that waits for long counts as often \
             as it would have\nasked. CPU is for a lock, of all clients and servers. ",
        );
    }
    text.push_str("Medians of the rounds.\n\n");
    for line in report.caption() {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn block(text: &mut String, rows: &[&Row]) {
    let crashes = rows.iter().all(|row| row.cell.scenario.is_crash());
    let mut lines: Vec<Vec<String>> = Vec::new();
    if crashes {
        lines.push(
            ["store: waiting", "until the next one holds", "lowest", "highest"]
                .map(str::to_owned)
                .into(),
        );
    } else {
        lines.push(COLUMNS.map(str::to_owned).into());
    }
    for row in rows {
        lines.push(match &row.status {
            Some(status) => vec![row.contestant(), status.words()],
            None if crashes => recovery(row),
            None => cells(row),
        });
    }
    let last = lines[0].len();
    let width = |column: usize| {
        // Rows with a reason instead of figures widen no column.
        let full = lines.iter().filter(|line| line.len() == last || column == 0);
        full.filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..last).map(width).collect();
    for line in &lines {
        let mut out = format!("  {:<1$}", line[0], widths[0]);
        for (column, cell) in line.iter().enumerate().skip(1) {
            let _ = if line.len() == last {
                write!(out, "  {cell:>0$}", widths[column])
            } else {
                write!(out, "  {cell}")
            };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
}

fn recovery(row: &Row) -> Vec<String> {
    let spread = row.spread("recovery").unwrap_or_default();
    vec![row.contestant(), time(spread.median), time(spread.low), time(spread.high)]
}

fn cells(row: &Row) -> Vec<String> {
    let seconds = |key: &str| row.median(key).map_or("-".to_owned(), time);
    let share = match (row.median("share_most"), row.median("share_least")) {
        (Some(most), Some(least)) => {
            let starves = if row.fairness() == Fairness::Starves { "STARVES " } else { "" };
            format!("{starves}{} : {}", number(most.round()), number(least.round()))
        }
        _ => "-".to_owned(),
    };
    vec![
        row.contestant(),
        row.median("locks_per_s").map_or("-".to_owned(), number),
        seconds("wait_mean"),
        seconds("wait_p50"),
        seconds("wait_p90"),
        seconds("wait_p99"),
        seconds("wait_max"),
        seconds("gap_p50"),
        share,
        seconds("client_cpu_per_lock"),
        seconds("server_cpu_per_lock"),
    ]
}
