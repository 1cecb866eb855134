//! The HTML page: the findings in words, then charts for each load, then all figures. It is
//! self-contained, with its styles and drawings.

use super::chart::{self, Line};
use super::svg::escape;
use super::text::{number, show, time};
use super::{Fairness, Report, Row, Status};
use crate::figures::FIGURES;
use std::fmt::Write;

/// One chart with its text.
struct Figure {
    title: &'static str,
    drawing: Option<String>,
    words: &'static str,
}

pub(super) fn write(report: &Report) -> String {
    let contestants = contestants(report);
    let mut html = String::new();
    let title = escape(&report.title);
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        include_str!("style.css")
    );
    caption(&mut html, report);
    found(&mut html, report);
    against_contenders(&mut html, report, &contestants);
    loads(&mut html, report, &contestants);
    figures(&mut html, report);
    html.push_str("</body>\n</html>\n");
    html
}

/// The stores with their ways to wait, in the order of the report: a colour for each.
pub(super) fn contestants(report: &Report) -> Vec<String> {
    let mut all = Vec::new();
    for row in &report.rows {
        if row.is_measured() && !all.contains(&row.contestant()) {
            all.push(row.contestant());
        }
    }
    all
}

pub(super) fn lines<'a>(
    report: &'a Report,
    contestants: &[String],
    of: impl Fn(&Row) -> bool,
) -> Vec<Line<'a>> {
    let number = |row: &Row| contestants.iter().position(|name| *name == row.contestant());
    let rows = report.rows.iter().filter(|row| row.is_measured() && of(row));
    rows.filter_map(|row| Some((number(row)?, row))).collect()
}

/// The distinct values, in the order of the report.
fn distinct(report: &Report, of: impl Fn(&Row) -> String) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for row in &report.rows {
        let text = of(row);
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

fn caption(html: &mut String, report: &Report) {
    html.push_str("<ul class=\"plain soft\">\n");
    let lines = report.caption();
    for (at, line) in lines.iter().enumerate() {
        let line = escape(line);
        let _ = if at + 1 == lines.len() {
            writeln!(html, "<li><code>{line}</code></li>")
        } else {
            writeln!(html, "<li>{line}</li>")
        };
    }
    html.push_str("</ul>\n");
}

/// The findings for each load: the fastest without starvation, and those that starve clients.
fn found(html: &mut String, report: &Report) {
    html.push_str("<h2>In short</h2>\n<ul class=\"plain\">\n");
    for load in distinct(report, |row| row.cell.load()) {
        let rows = || report.rows.iter().filter(|row| row.is_measured() && row.cell.load() == load);
        let mut words = Vec::new();
        let fit = || rows().filter(|row| row.fairness().is_fair());
        let most = |key: &'static str, sign: f64| {
            let figure = move |row: &&Row| row.median(key);
            fit()
                .filter_map(|row| Some((figure(&row)?, row)))
                .max_by(|a, b| (a.0 * sign).total_cmp(&(b.0 * sign)))
        };
        if let Some((value, row)) = most("recovery", -1.0) {
            words.push(format!("soonest {} ({})", row.contestant(), time(value)));
        }
        let others = fit().count() > 1;
        if let Some((rate, row)) = most("locks_per_s", 1.0).filter(|_| others) {
            words.push(format!(
                "most locks a second, fairly: {} ({})",
                row.contestant(),
                number(rate)
            ));
        }
        if let Some((wait, row)) = most("wait_p99", -1.0).filter(|_| others) {
            words.push(format!("shortest P99: {} ({})", row.contestant(), time(wait)));
        }
        let starving: Vec<String> =
            rows().filter(|row| row.fairness() == Fairness::Starves).map(unfair).collect();
        let uneven: Vec<String> =
            rows().filter(|row| row.fairness() == Fairness::Uneven).map(unfair).collect();
        words.extend((!uneven.is_empty()).then(|| format!("uneven: {}", uneven.join("; "))));
        let mut line = escape(&words.join("; "));
        if !starving.is_empty() {
            let starving = escape(&starving.join("; "));
            let _ = write!(line, " <span class=\"alarm\">Starves: {starving}</span>");
        }
        if !line.is_empty() {
            let _ = writeln!(html, "<li><b>{}</b> — {line}</li>", escape(&load));
        }
    }
    html.push_str("</ul>\n");
    let faults: f64 =
        report.rows.iter().filter_map(|row| row.spread("faults")).map(|s| s.high).sum();
    if faults > 0.0 {
        let _ = writeln!(
            html,
            "<p class=\"alarm\">{faults} locks were lost while held, or granted before the \
             release before them.</p>"
        );
    }
    if !report.has_waits() {
        return;
    }
    html.push_str(
        "<p class=\"soft\">A way to wait <i>starves</i> if a client had no lock, or another one \
         ten times as many: its locks a second are those of a few lucky clients, and it is dashed \
         and pale in all charts. Waits are without coordinated omission: a client that waits for \
         long asks for nothing else meanwhile, so each long wait counts as often as the client \
         would have asked; waits that had not ended with the round count with what they had \
         taken.</p>\n",
    );
}

fn unfair(row: &Row) -> String {
    let (most, least) = (row.median("share_most"), row.median("share_least"));
    let (most, least) = (most.unwrap_or_default(), least.unwrap_or_default());
    let rate = number(row.median("locks_per_s").unwrap_or_default());
    let (most, least) = (number(most.round()), number(least.round()));
    format!("{} ({rate} a second, shares {most} : {least})", row.contestant())
}

fn legend(html: &mut String, lines: &[Line<'_>]) {
    html.push_str("<ul class=\"legend\">");
    let mut seen = Vec::new();
    for (number, row) in lines {
        if !seen.contains(number) {
            let name = escape(&row.contestant());
            let is = |verdict: Fairness| {
                lines.iter().any(|(other, row)| other == number && row.fairness() == verdict)
            };
            let verdict = match (is(Fairness::Starves), is(Fairness::Uneven)) {
                (true, _) => " <span class=\"alarm\">starves</span>",
                (false, true) => " <span class=\"alarm\">uneven</span>",
                (false, false) => "",
            };
            let _ = write!(html, "<li><i class=\"c{}\"></i>{name}{verdict}</li>", number % 8);
            seen.push(*number);
        }
    }
    html.push_str("</ul>\n");
}

fn draw(html: &mut String, report: &Report, load: &str, charts: Vec<Figure>) {
    html.push_str("<div class=\"charts\">\n");
    for Figure { title, drawing, words } in charts {
        let Some(drawing) = drawing else { continue };
        let busy = if report.is_busy() { ", busy with other things before" } else { "" };
        let _ = writeln!(
            html,
            "<figure><b>{title}</b>{drawing}<figcaption>{words} Load: {}; {}. {}, {} cores{busy}.\
             </figcaption></figure>",
            escape(load),
            report.rounds_in_words(),
            escape(&report.machine.cpu),
            report.machine.cores,
        );
    }
    html.push_str("</div>\n");
}

fn against_contenders(html: &mut String, report: &Report, contestants: &[String]) {
    let mut head = false;
    for load in distinct(report, |row| row.cell.load_but_clients()) {
        let lines = lines(report, contestants, |row| row.cell.load_but_clients() == load);
        let wait = chart::contenders(&lines, "wait_mean", time, "Mean wait against clients");
        if wait.is_none() {
            continue;
        }
        if !head {
            html.push_str("<h2>Against the number of clients</h2>\n");
            head = true;
        }
        let _ = writeln!(html, "<h3>{}</h3>", escape(&load));
        legend(html, &lines);
        let rate = |rate: f64| format!("{}/s", number(rate));
        let charts = vec![
            Figure {
                title: "Mean wait",
                drawing: wait,
                words: "Medians; the strokes reach from the lowest to the highest round. Dashed \
                        where somebody starves.",
            },
            Figure {
                title: "Locks a second",
                drawing: chart::contenders(&lines, "locks_per_s", rate, "Locks a second"),
                words: "All clients together. Dashed where somebody starves: there the rate is \
                        that of a few.",
            },
            Figure {
                title: "Hand-over",
                drawing: chart::contenders(&lines, "gap_p50", time, "Time of a hand-over"),
                words: "From the beginning of a release until a client that waited holds, median.",
            },
        ];
        draw(html, report, &load, charts);
    }
}

fn loads(html: &mut String, report: &Report, contestants: &[String]) {
    html.push_str("<h2>Load by load</h2>\n");
    for load in distinct(report, |row| row.cell.load()) {
        let lines = lines(report, contestants, |row| row.cell.load() == load);
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(html, "<h3>{}</h3>", escape(&load));
        legend(html, &lines);
        let charts = vec![
            Figure {
                title: "Time until the next one holds",
                drawing: chart::recovery(&lines),
                words: "Medians; the strokes reach from the lowest to the highest round.",
            },
            Figure {
                title: "Speed, and who had it",
                drawing: chart::fairness(&lines).filter(|_| !lines[0].1.cell.scenario.is_crash()),
                words: "Left: all clients together, median and spread. Right: the locks of each \
                        client in the least fair round, most first. Speed without shares is that \
                        of a few.",
            },
            Figure {
                title: "How long a client waits",
                drawing: chart::distribution(&lines),
                words: "Each curve: so many of the waits were at most so long; all rounds, without \
                        coordinated omission. Dashed: somebody starves.",
            },
            Figure {
                title: "CPU time for a lock",
                drawing: chart::cpu(&lines),
                words: "Full: all clients. Pale: all servers that run on this machine.",
            },
            Figure {
                title: "In the course of a round",
                drawing: chart::series(&lines, report.time.as_secs_f64())
                    .filter(|_| is_long(report)),
                words: "Locks a second in each twentieth of the round, the mean of all rounds.",
            },
        ];
        draw(html, report, &load, charts);
    }
}

/// Whether a round is long enough for its course over time to be meaningful.
fn is_long(report: &Report) -> bool {
    report.time.as_secs_f64() >= 10.0
}

/// The columns of the table of all figures, by their keys.
const COLUMNS: [&str; 19] = [
    "locks_per_s",
    "wait_mean",
    "wait_p50",
    "wait_p70",
    "wait_p90",
    "wait_p99",
    "wait_p999",
    "wait_max",
    "wait_mean_granted",
    "gap_p50",
    "overtaking",
    "commands_per_lock",
    "bytes_per_lock",
    "client_cpu_per_lock",
    "server_cpu_per_lock",
    "server_memory",
    "server_sockets",
    "places",
    "recovery",
];

fn figures(html: &mut String, report: &Report) {
    html.push_str(
        "<h2>All figures</h2>\n<p class=\"soft\">Medians of the rounds. JSON and CSV have the \
         lowest and highest round too.</p>\n",
    );
    for load in distinct(report, |row| row.cell.load()) {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.cell.load() == load).collect();
        let keys: Vec<&str> = COLUMNS
            .into_iter()
            .filter(|key| rows.iter().any(|row| row.median(key).is_some()))
            .collect();
        let _ = writeln!(
            html,
            "<h3>{}</h3>\n<div class=\"scroll\"><table><tr><th></th>",
            escape(&load)
        );
        if rows.iter().any(|row| row.median("share_most").is_some()) {
            html.push_str("<th>shares</th>");
        }
        for key in &keys {
            let meaning = FIGURES.iter().find(|figure| figure.key == *key);
            let meaning = escape(meaning.map_or("", |figure| figure.meaning));
            let name = key.replace('_', " ");
            let _ = write!(html, "<th title=\"{meaning}\">{name}</th>");
        }
        html.push_str("</tr>\n");
        for row in rows {
            table_row(html, row, &keys);
        }
        html.push_str("</table></div>\n");
    }
}

fn table_row(html: &mut String, row: &Row, keys: &[&str]) {
    let _ = write!(html, "<tr><td>{}</td>", escape(&row.contestant()));
    if let Some(status) = row.status.as_ref().map(Status::words) {
        let _ = writeln!(
            html,
            "<td class=\"words\" colspan=\"{}\">{}</td></tr>",
            keys.len() + 1,
            escape(&status)
        );
        return;
    }
    if let (Some(most), Some(least)) = (row.median("share_most"), row.median("share_least")) {
        let starves = row.fairness() == Fairness::Starves;
        let class = if starves { " class=\"alarm\"" } else { "" };
        let _ =
            write!(html, "<td{class}>{} : {}</td>", number(most.round()), number(least.round()));
    }
    for key in keys {
        let unit = FIGURES.iter().find(|figure| figure.key == *key).map(|figure| figure.unit);
        let value = row.median(key).zip(unit).map_or(String::new(), |(v, unit)| show(v, unit));
        let _ = write!(html, "<td>{value}</td>");
    }
    html.push_str("</tr>\n");
}
