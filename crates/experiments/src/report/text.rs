//! Figures as text.

use crate::figures::Unit;

/// A number with three significant digits, and its unit.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => time(value),
        Unit::PerSecond => format!("{}/s", number(value)),
        Unit::Count => number(value),
        Unit::Share => format!("{:.0}%", value * 100.0),
        Unit::Bytes => bytes(value),
    }
}

/// A time, in the unit that suits it.
pub(crate) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s > 0.0 => (s * 1e6, "µs"),
        _ => return "0".to_owned(),
    };
    format!("{} {unit}", digits(value))
}

/// A number with separated thousands.
pub(crate) fn number(value: f64) -> String {
    if value < 1000.0 {
        return digits(value);
    }
    let mut text = format!("{value:.0}");
    let mut at = text.len();
    while at > 3 {
        at -= 3;
        text.insert(at, ',');
    }
    text
}

fn digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    } else {
        let text = format!("{value:.2}");
        text.strip_suffix(".00").map(str::to_owned).unwrap_or(text)
    }
}

fn bytes(value: f64) -> String {
    match value {
        b if b >= 1_048_576.0 => format!("{} MiB", digits(b / 1_048_576.0)),
        b if b >= 1024.0 => format!("{} KiB", digits(b / 1024.0)),
        b => format!("{} B", digits(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        assert_eq!(time(0.001_234), "1.23 ms");
        assert_eq!(time(0.123_4), "123 ms");
        assert_eq!(time(12.34), "12.3 s");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(3.0), "3");
        assert_eq!(show(0.25, Unit::Share), "25%");
        assert_eq!(show(2048.0, Unit::Bytes), "2 KiB");
    }
}
