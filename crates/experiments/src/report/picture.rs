//! One chart as a separate file, for pages that show pictures but no HTML: locks per second with
//! each client's share, so that a store that starves clients is not taken for a fast one.

use super::svg::{WIDTH, escape};
use super::{Report, Row, chart, page};
use std::fmt::Write;

/// The height of a line of the caption, and the characters that fit into one.
const LINE: f64 = 12.0;
const FITS: usize = 66;

/// The chart of the first load of which a row has locks per second; `None` if none has.
pub(super) fn write(report: &Report) -> Option<String> {
    let drawn = |row: &&Row| row.is_measured() && row.median("locks_per_s").is_some();
    let load = report.rows.iter().find(drawn)?.cell.load();
    let contestants = page::contestants(report);
    let lines = page::lines(report, &contestants, |row| row.cell.load() == load);
    let drawing = chart::fairness(&lines)?;
    // The drawing is embedded in a larger one with room for the caption.
    let (head, body) = drawing.split_once('>')?;
    let height: f64 = head.split("viewBox='0 0 360 ").nth(1)?.split('\'').next()?.parse().ok()?;
    let caption = format!(
        "{load}; {} of {:?}, whiskers from the lowest to the highest. {}, {} cores. {}",
        report.rounds_in_words(),
        report.time,
        report.machine.cpu,
        report.machine.cores,
        report.command
    );
    let caption = wrapped(&caption);
    let whole = height + 8.0 + LINE * caption.len() as f64;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {whole:.0}' width='720' \
         role='img'>\n<title>Locks a second, and who had them</title>\n<style>{}\
         .paper{{fill:var(--bg)}}</style>\n\
         <rect class='paper' width='{WIDTH}' height='{whole:.0}'/>\n",
        include_str!("style.css")
    );
    svg.push_str(body.strip_suffix("</svg>")?);
    for (at, line) in caption.iter().enumerate() {
        let y = height + 6.0 + LINE * at as f64;
        let _ = write!(svg, "<text x='4' y='{y:.0}' class='tick'>{}</text>", escape(line));
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// A text wrapped into lines.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        if last.len() + word.len() >= FITS && !last.is_empty() {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}
