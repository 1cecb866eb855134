//! Charts of polling and listening: one picture for each store.

use crate::Failure;
use crate::models::{MODELS, Options, Point};
use crate::report::time;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

/// Colours that colour-blind people can distinguish.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
const GREY: RGBColor = RGBColor(90, 90, 90);
const FONT: &str = "sans-serif";
const WIDTH: u32 = 1200;
/// The height of a row of panels.
const ROW: u32 = 287;
const TITLE: u32 = 48;
const LEGEND: u32 = 92;

/// One row of the picture.
struct Metric {
    title: &'static str,
    value: fn(&Point) -> f64,
    label: fn(f64) -> String,
}

const METRICS: [Metric; 4] = [
    Metric { title: "locks per second", value: |point| point.rate, label: plain },
    Metric { title: "wait, P99", value: |point| point.p99, label: time },
    Metric { title: "clients' CPU per lock", value: |point| point.cpu_per_lock, label: time },
    Metric { title: "server's CPU per lock", value: |point| point.server_per_lock, label: time },
];

fn plain(value: f64) -> String {
    if value >= 1e6 {
        format!("{} M", value / 1e6)
    } else if value >= 1e3 {
        format!("{} k", value / 1e3)
    } else {
        format!("{value}")
    }
}

/// A colour for each schedule; fair lines are solid, with filled marks, and unfair ones are dashed.
fn style(model: usize) -> (RGBColor, bool) {
    match model {
        0..=3 => (COLOURS[model], true),
        _ => (COLOURS[(model - 3) % COLOURS.len()], false),
    }
}

/// Draws the results of one store, and prints the file's path.
pub(crate) fn draw(
    folder: &Path,
    label: &str,
    options: &Options,
    points: &[Point],
) -> Result<PathBuf, Failure> {
    std::fs::create_dir_all(folder)?;
    let scheme = label.split(':').next().unwrap_or("store");
    let path = folder.join(format!("models-{scheme}.svg"));
    let shown: Vec<_> =
        METRICS.iter().filter(|metric| points.iter().any(|p| (metric.value)(p) > 0.0)).collect();
    let rows = ROW * u32::try_from(shown.len())?;
    {
        let root = SVGBackend::new(&path, (WIDTH, TITLE + rows + LEGEND)).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("Polling and listening on {scheme}: one name, clients that compete");
        root.draw(&Text::new(title, (20, 14), (FONT, 22).into_font()))?;
        let (picture, legend) = root.margin(TITLE, 0, 8, 12).split_vertically(rows);
        let panels = picture.split_evenly((shown.len(), options.hold_ms.len()));
        for (row, metric) in shown.into_iter().enumerate() {
            for (column, &hold_ms) in options.hold_ms.iter().enumerate() {
                let panel = &panels[row * options.hold_ms.len() + column];
                draw_panel(panel, metric, hold_ms, points)?;
            }
        }
        draw_legend(&legend, points)?;
        root.present()?;
    }
    Ok(path)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel(
    area: &Area<'_>,
    metric: &Metric,
    hold_ms: u64,
    points: &[Point],
) -> Result<(), Failure> {
    let here: Vec<&Point> = points.iter().filter(|point| point.hold_ms == hold_ms).collect();
    let values = || points.iter().map(metric.value).filter(|value| *value > 0.0);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max);
    let clients = || here.iter().map(|point| point.clients as f64);
    let (few, many) = (clients().fold(f64::INFINITY, f64::min), clients().fold(0.0, f64::max));
    if here.is_empty() || low > high {
        return Ok(());
    }
    let mut marks: Vec<f64> = clients().collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    // One scale for the whole row, so that its panels can be compared.
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(format!("{}, held {hold_ms} ms", metric.title), (FONT, 16))
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (few * 0.85..many * 1.18).log_scale().with_key_points(marks),
            (low / 1.6..high * 1.6).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("clients")
        .x_label_formatter(&|clients| format!("{clients:.0}"))
        .y_labels(6)
        .y_label_formatter(&|value| (metric.label)(*value))
        .label_style((FONT, 13).into_font().color(&GREY))
        .draw()?;
    for model in 0..MODELS.len() {
        let (colour, whole) = style(model);
        let line: Vec<(f64, f64)> = here
            .iter()
            .filter(|point| point.model == model)
            .map(|point| (point.clients as f64, (metric.value)(point).max(low)))
            .collect();
        if whole {
            chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
            chart.draw_series(line.iter().map(|&at| Circle::new(at, 4, colour.filled())))?;
        } else {
            let dashes = DashedLineSeries::new(line.clone(), 6, 5, colour.stroke_width(2));
            chart.draw_series(dashes)?;
            chart.draw_series(line.iter().map(|&at| Circle::new(at, 4, colour)))?;
        }
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, points: &[Point]) -> Result<(), Failure> {
    let shown = (0..MODELS.len()).filter(|model| points.iter().any(|p| p.model == *model));
    for model in shown {
        let (colour, whole) = style(model);
        // Fair models in the first line, unfair ones of the same colour below them.
        let column = if whole { model } else { model - 3 };
        let (x, y) = (40 + i32::try_from(column)? * 285, if whole { 22 } else { 52 });
        let stroke = colour.stroke_width(2);
        let parts: &[(i32, i32)] = if whole { &[(0, 40)] } else { &[(0, 8), (12, 28), (32, 40)] };
        for (from, to) in parts {
            area.draw(&PathElement::new([(x + from, y), (x + to, y)], stroke))?;
        }
        let mark = if whole { colour.filled() } else { stroke };
        area.draw(&Circle::new((x + 20, y), 4, mark))?;
        area.draw(&Text::new(MODELS[model].label, (x + 50, y - 8), (FONT, 16).into_font()))?;
    }
    Ok(())
}
