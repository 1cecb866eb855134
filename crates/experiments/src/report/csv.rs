//! The CSV: one line for each cell.

use super::{Report, Row, Status};
use crate::figures::FIGURES;
use std::fmt::Write;

pub(super) fn write(report: &Report) -> String {
    let mut text = String::from(
        "scenario,store,mode,label,clients,processes,names,hold_ms,delay_ms,rate,lease_ms,status,\
         rounds,fairness",
    );
    for figure in FIGURES {
        let _ = write!(text, ",{0},{0}_low,{0}_high", figure.key);
    }
    text.push_str("\r\n");
    for row in &report.rows {
        line(&mut text, row);
    }
    text
}

fn line(text: &mut String, row: &Row) {
    let cell = &row.cell;
    let fixed = [
        cell.scenario.to_string(),
        row.store.clone(),
        cell.mode.to_string(),
        cell.mode.label(),
        cell.clients.to_string(),
        cell.processes.to_string(),
        cell.names.to_string(),
        (cell.hold.as_secs_f64() * 1e3).to_string(),
        (cell.delay.as_secs_f64() * 1e3).to_string(),
        cell.rate.map_or(String::new(), |rate| rate.to_string()),
        (cell.lease.as_secs_f64() * 1e3).to_string(),
        row.status.as_ref().map_or("measured".to_owned(), Status::words),
        row.rounds.len().to_string(),
        row.fairness().word().to_owned(),
    ];
    text.push_str(&fixed.map(|field| quoted(&field)).join(","));
    for figure in FIGURES {
        match row.spread(figure.key) {
            Some(spread) => {
                let _ = write!(text, ",{},{},{}", spread.median, spread.low, spread.high);
            }
            None => text.push_str(",,,"),
        }
    }
    text.push_str("\r\n");
}

/// In quotes if need be.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn commas_and_quotes_are_quoted() {
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("a b"), "a b");
    }
}
