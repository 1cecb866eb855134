//! The charts. Each shows the rows of one load, or of one load with any number of clients.

use super::svg::{Scale, Svg, WIDTH};
use super::text::{number, time};
use super::{Fairness, Row};

/// A row, and the number of its contestant, which determines its colour.
pub(super) type Line<'a> = (usize, &'a Row);

/// The frame of a chart with axes.
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 14.0;
const HEIGHT: f64 = 230.0;
const BOTTOM: f64 = HEIGHT - 34.0;

/// The classes of a contestant's line: its colour, and dashes if it starves a client.
fn class(line: Line<'_>, what: &str) -> String {
    let starves = if line.1.fairness() == Fairness::Starves { " starves" } else { "" };
    format!("{what} c{}{starves}", line.0 % 8)
}

fn vertical(svg: &mut Svg, scale: Scale, show: impl Fn(f64) -> String) {
    for value in scale.powers() {
        let y = scale.at(value);
        svg.line((LEFT, y), (RIGHT, y), "grid");
        svg.text(LEFT - 4.0, y + 3.5, "tick end", &show(value));
    }
}

/// The distribution of waits, from the median to the longest.
pub(super) fn distribution(lines: &[Line<'_>]) -> Option<String> {
    let curves: Vec<_> = lines
        .iter()
        .map(|line| (line, line.1.distribution()))
        .filter(|(_, curve)| !curve.is_empty())
        .collect();
    if curves.is_empty() {
        return None;
    }
    let mut svg = Svg::new(HEIGHT);
    let all = curves.iter().flat_map(|(_, curve)| curve.iter().map(|(_, wait)| *wait));
    let y = Scale::decades(all, BOTTOM, TOP);
    vertical(&mut svg, y, time);
    // By the distance from 1: each nine has the same width, and the longest wait has a place.
    let x = |quantile: f64| {
        let nines = if quantile >= 1.0 { 3.5 } else { -(1.0 - quantile).log10() };
        LEFT + nines / 3.5 * (RIGHT - LEFT - 12.0)
    };
    for (quantile, label) in
        [(0.5, "P50"), (0.9, "P90"), (0.99, "P99"), (0.999, "P99.9"), (1.0, "max")]
    {
        svg.line((x(quantile), TOP), (x(quantile), BOTTOM), "grid");
        svg.text(x(quantile), BOTTOM + 14.0, "tick middle", label);
    }
    svg.text(f64::midpoint(LEFT, RIGHT), HEIGHT - 4.0, "tick middle", "share of the waits");
    for (line, curve) in curves {
        let points: Vec<_> = curve.iter().map(|(q, wait)| (x(*q), y.at(*wait))).collect();
        svg.path(&points, &class(*line, "line"));
    }
    Some(svg.element("Distribution of the waits"))
}

/// A figure against the number of clients.
pub(super) fn contenders(
    lines: &[Line<'_>],
    key: &str,
    show: fn(f64) -> String,
    title: &str,
) -> Option<String> {
    let clients: Vec<usize> = {
        let mut all: Vec<usize> = lines.iter().map(|line| line.1.cell.clients).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (few, many) = (*clients.first()?, *clients.last()?);
    if few == many {
        return None;
    }
    let mut svg = Svg::new(HEIGHT);
    let spreads = lines.iter().filter_map(|line| line.1.spread(key));
    let y = Scale::decades(spreads.flat_map(|s| [s.low, s.high]), BOTTOM, TOP);
    let x = Scale::logs(few as f64, many as f64, LEFT + 14.0, RIGHT - 14.0);
    vertical(&mut svg, y, show);
    for clients in &clients {
        let at = x.at(*clients as f64);
        svg.line((at, TOP), (at, BOTTOM), "grid");
        svg.text(at, BOTTOM + 14.0, "tick middle", &number(*clients as f64));
    }
    svg.text(f64::midpoint(LEFT, RIGHT), HEIGHT - 4.0, "tick middle", "clients");
    let mut numbers: Vec<usize> = lines.iter().map(|line| line.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for contestant in numbers {
        let mut points = Vec::new();
        let of_one = lines.iter().filter(|line| line.0 == contestant);
        for line in of_one {
            let Some(spread) = line.1.spread(key) else { continue };
            let at = x.at(line.1.cell.clients as f64);
            svg.whisker((at, y.at(spread.low)), (at, y.at(spread.high)));
            svg.dot((at, y.at(spread.median)), &class(*line, "dot"));
            points.push((at, y.at(spread.median), *line));
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in points.windows(2) {
            // Up to the load at which a client starves, the line is dashed.
            let (from, to) = ((pair[0].0, pair[0].1), (pair[1].0, pair[1].1));
            svg.path(&[from, to], &class(pair[1].2, "line"));
        }
    }
    Some(svg.element(title))
}

/// The height of one contestant in a chart of bars.
const ROW: f64 = 52.0;
/// The boundary between locks per second and shares.
const MIDDLE: f64 = 196.0;
/// The number of columns that show shares.
const COLUMNS: usize = 40;

/// Locks per second, and beside them each client's share.
pub(super) fn fairness(lines: &[Line<'_>]) -> Option<String> {
    let lines: Vec<_> = lines.iter().filter(|line| !line.1.rounds.is_empty()).collect();
    if lines.is_empty() {
        return None;
    }
    let mut svg = Svg::new(ROW * lines.len() as f64 + 18.0);
    let rates = lines.iter().filter_map(|line| line.1.spread("locks_per_s"));
    let x = Scale::linear(rates.map(|spread| spread.high).fold(0.0, f64::max), 4.0, MIDDLE - 62.0);
    svg.text(4.0, 10.0, "tick", "locks a second");
    svg.text(MIDDLE, 10.0, "tick", "locks of each client, most first");
    for (at, line) in lines.into_iter().enumerate() {
        let top = 18.0 + ROW * at as f64;
        svg.text(4.0, top + 11.0, "name", &line.1.contestant());
        let (y, height) = (top + 16.0, 18.0);
        if let Some(rate) = line.1.spread("locks_per_s") {
            let end = x.at(rate.median);
            svg.bar(4.0, y, end - 4.0, height, &class(*line, "bar"));
            svg.whisker((x.at(rate.low), y + 9.0), (x.at(rate.high), y + 9.0));
            svg.text(x.at(rate.high) + 4.0, y + 13.0, "value", &number(rate.median));
        }
        shares(&mut svg, line.1, *line, y, height);
    }
    Some(svg.element("Locks a second, and who had them"))
}

fn shares(svg: &mut Svg, row: &Row, line: Line<'_>, y: f64, height: f64) {
    let all = row.shares();
    let Some(most) = all.first().copied().filter(|most| *most > 0) else {
        svg.text(MIDDLE, y + 13.0, "tick", "");
        return;
    };
    let columns = all.len().min(COLUMNS);
    let width = (RIGHT - MIDDLE) / columns as f64;
    for column in 0..columns {
        let share = all[column * all.len() / columns];
        let tall = share as f64 / most as f64 * height;
        let x = MIDDLE + width * column as f64;
        svg.bar(x, y + height - tall, (width - 0.8).min(14.0), tall.max(0.3), &class(line, "bar"));
    }
    svg.line((MIDDLE, y + height), (RIGHT, y + height), "axis");
    let least = all.last().copied().unwrap_or(0);
    let most = number(most as f64);
    let (class, words) = match row.fairness() {
        Fairness::Starves => ("alarm", format!("STARVES: from {most} to {least}")),
        Fairness::Uneven => ("value", format!("uneven: from {most} to {least}")),
        Fairness::Even => ("value", format!("even: from {most} to {least}")),
        Fairness::Unknown => ("tick", format!("from {most} to {least}; too few locks")),
    };
    svg.text(MIDDLE, y + height + 11.0, class, &words);
}

/// CPU time per lock, of the clients and of the servers.
pub(super) fn cpu(lines: &[Line<'_>]) -> Option<String> {
    let both = |row: &Row| {
        let (client, server) =
            (row.median("client_cpu_per_lock")?, row.median("server_cpu_per_lock"));
        Some((client, server))
    };
    let lines: Vec<_> = lines.iter().filter_map(|line| Some((*line, both(line.1)?))).collect();
    if lines.is_empty() {
        return None;
    }
    let mut svg = Svg::new(40.0 * lines.len() as f64 + 4.0);
    let sums = lines.iter().map(|(_, (client, server))| client + server.unwrap_or(0.0));
    let x = Scale::linear(sums.fold(0.0, f64::max), 0.0, RIGHT - 4.0);
    for (at, (line, (client, server))) in lines.into_iter().enumerate() {
        let top = 40.0 * at as f64;
        let of_server = server.map_or("not measured".to_owned(), time);
        let words = format!("{}: {} + {of_server}", line.1.contestant(), time(client));
        svg.text(4.0, top + 11.0, "name", &words);
        let client_end = 4.0 + x.at(client);
        svg.bar(4.0, top + 16.0, client_end - 4.0, 14.0, &class(line, "bar"));
        if let Some(server) = server {
            svg.bar(client_end, top + 16.0, x.at(server), 14.0, &class(line, "bar server"));
        }
    }
    Some(svg.element("CPU time for a lock"))
}

/// Locks per second in the course of a round.
pub(super) fn series(lines: &[Line<'_>], seconds: f64) -> Option<String> {
    let all: Vec<_> = lines
        .iter()
        .map(|line| (line, line.1.series()))
        .filter(|(_, series)| series.len() > 1)
        .collect();
    if all.is_empty() {
        return None;
    }
    let mut svg = Svg::new(HEIGHT);
    let values = all.iter().flat_map(|(_, series)| series.iter().copied());
    let y = Scale::decades(values, BOTTOM, TOP);
    vertical(&mut svg, y, number);
    for part in 0..=4 {
        let x = LEFT + (RIGHT - LEFT - 12.0) * f64::from(part) / 4.0;
        let at = seconds * f64::from(part) / 4.0;
        svg.text(x, BOTTOM + 14.0, "tick middle", &format!("{} s", number(at)));
    }
    svg.text(f64::midpoint(LEFT, RIGHT), HEIGHT - 4.0, "tick middle", "time in the round");
    for (line, series) in all {
        let step = (RIGHT - LEFT - 12.0) / series.len() as f64;
        let point = |(at, rate): (usize, &f64)| (LEFT + step * (at as f64 + 0.5), y.at(*rate));
        let points: Vec<_> = series.iter().enumerate().map(point).collect();
        svg.path(&points, &class(*line, "line"));
    }
    Some(svg.element("Locks a second in the course of a round"))
}

/// How long no client was admitted after a crash.
pub(super) fn recovery(lines: &[Line<'_>]) -> Option<String> {
    let lines: Vec<_> =
        lines.iter().filter_map(|line| Some((*line, line.1.spread("recovery")?))).collect();
    if lines.is_empty() {
        return None;
    }
    let mut svg = Svg::new(40.0 * lines.len() as f64 + 4.0);
    let most = lines.iter().map(|(_, spread)| spread.high).fold(0.0, f64::max);
    let x = Scale::linear(most, 4.0, RIGHT - 4.0);
    for (at, (line, spread)) in lines.into_iter().enumerate() {
        let top = 40.0 * at as f64;
        let (low, high) = (time(spread.low), time(spread.high));
        let words = format!("{}: {} ({low} to {high})", line.1.contestant(), time(spread.median));
        svg.text(4.0, top + 11.0, "name", &words);
        svg.bar(4.0, top + 16.0, x.at(spread.median) - 4.0, 14.0, &class(line, "bar"));
        svg.whisker((x.at(spread.low), top + 23.0), (x.at(spread.high), top + 23.0));
    }
    Some(svg.element("Time until the next one holds"))
}
