//! SVG drawings: scales, axes, lines and bars, 360 units wide, so that text is readable on a phone
//! and not too large on a desktop.

use std::fmt::Write;

/// The width of every chart.
pub(super) const WIDTH: f64 = 360.0;

/// A drawing.
#[derive(Debug)]
pub(super) struct Svg {
    body: String,
    height: f64,
}

/// The scale of an axis: it maps values to positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// The values at the two ends, as logarithms if `log`.
    from: f64,
    to: f64,
    /// The positions of the two ends.
    start: f64,
    end: f64,
    log: bool,
}

impl Scale {
    /// From 0 to at least this value.
    pub(super) fn linear(most: f64, start: f64, end: f64) -> Self {
        let to = if most > 0.0 { most } else { 1.0 };
        Scale { from: 0.0, to, start, end, log: false }
    }

    /// Whole powers of ten around these values.
    pub(super) fn decades(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) =
            logs.fold((f64::MAX, f64::MIN), |(low, high), log| (low.min(log), high.max(log)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil()) };
        let high = if high > low { high } else { low + 1.0 };
        Scale { from: low, to: high, start, end, log: true }
    }

    /// Between two given values, by their logarithms.
    pub(super) fn logs(from: f64, to: f64, start: f64, end: f64) -> Self {
        let (from, to) = (from.log10(), to.log10());
        let (from, to) = if to - from < 0.01 { (from - 0.5, to + 0.5) } else { (from, to) };
        Scale { from, to, start, end, log: true }
    }

    pub(super) fn at(self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-12).log10() } else { value };
        let part = (value - self.from) / (self.to - self.from);
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// The powers of ten on a scale of decades.
    pub(super) fn powers(self) -> Vec<f64> {
        let (from, to) = (self.from as i32, self.to as i32);
        let step = ((to - from) / 6 + 1) as usize;
        (from..=to).step_by(step).map(|power| 10_f64.powi(power)).collect()
    }
}

impl Svg {
    pub(super) fn new(height: f64) -> Self {
        Svg { body: String::new(), height }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ = write!(self.body, "<text x='{x:.1}' y='{y:.1}' class='{class}'>{text}</text>");
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' class='{class}'/>"
        );
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(self.body, "<polyline points='{}' class='{class}'/>", points.join(" "));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), class: &str) {
        let _ = write!(self.body, "<circle cx='{x:.1}' cy='{y:.1}' r='2.6' class='{class}'/>");
    }

    pub(super) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let width = width.max(0.6);
        let _ = write!(
            self.body,
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' class='{class}'/>"
        );
    }

    /// A whisker from the lowest to the highest round.
    pub(super) fn whisker(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.line((x1, y1), (x2, y2), "whisker");
    }

    /// The whole element, with a text alternative.
    pub(super) fn element(self, title: &str) -> String {
        format!(
            "<svg viewBox='0 0 {WIDTH} {:.0}' role='img' aria-label='{title}'>{}</svg>",
            self.height,
            self.body,
            title = escape(title)
        )
    }
}

/// Text that is safe between tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_reach_from_end_to_end() {
        let scale = Scale::decades([0.002, 0.5].into_iter(), 0.0, 100.0);
        assert!((scale.at(0.001) - 0.0).abs() < 1e-9);
        assert!((scale.at(1.0) - 100.0).abs() < 1e-9);
        assert_eq!(scale.powers().len(), 4);
        assert!((Scale::linear(10.0, 0.0, 50.0).at(5.0) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn text_cannot_end_a_tag() {
        assert_eq!(escape("<a b='c'>&"), "&lt;a b=&#39;c&#39;&gt;&amp;");
    }
}
