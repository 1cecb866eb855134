//! Durations in text: `500ms`, `10s`, `1h30m`, and `5` for five seconds as in `flock`.

use std::time::Duration;

/// The units, in microseconds.
const UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// The longest duration, 100 years: it can be added to any instant.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("a duration is a number with a unit, as in 500ms, 10s, 2m or 1h30m".to_owned());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let number: f64 = number
            .parse()
            .map_err(|_| "write a number with a unit, as in 500ms, 10s, 2m or 1h30m".to_owned())?;
        let unit = if unit.is_empty() && rest.len() == text.trim().len() { "s" } else { unit };
        let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("\"{unit}\" is no unit; known are us, ms, s, m, h and d"));
        };
        let part = Duration::try_from_secs_f64(number * (*micros as f64) / 1e6);
        total = part
            .ok()
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= LONGEST)
            .ok_or("it is too long: 36500d is the most")?;
        rest = tail;
    }
    Ok(total)
}

/// Parses a limit: a duration, or `forever`.
pub(crate) fn parse_bound(text: &str) -> Result<Duration, String> {
    if text.trim() == "forever" { Ok(Duration::MAX) } else { parse(text) }
}

/// Parses a poll interval: at least a millisecond.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_at_least_1ms(text, "an interval of less than 1ms would keep the store busy")
}

/// Parses a time limit that is no `forever` if it is 0: at least a millisecond.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    parse_at_least_1ms(text, "less than 1ms is over before anything can be done in it")
}

fn parse_at_least_1ms(text: &str, why: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    if time < Duration::from_millis(1) { Err(why.to_owned()) } else { Ok(time) }
}

/// Formats a duration for people: the two largest units that are not zero.
pub(crate) fn show(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..=9 => format!("{:.1}s", time.as_secs_f64()),
        10..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("5", 5_000),
            ("0.25", 250),
            ("0", 0),
            ("1d", 86_400_000),
            ("36500d", 3_153_600_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for text in [
            "",
            "s",
            "-1s",
            "10x",
            "1h30",
            "1e99s",
            "..s",
            "10 s",
            "36500d1s",
            "36501d",
            "99999999999999999999d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shows_two_units() {
        assert_eq!(show(Duration::from_millis(7)), "7ms");
        assert_eq!(show(Duration::from_millis(7_200)), "7.2s");
        assert_eq!(show(Duration::from_secs(130)), "2m10s");
        assert_eq!(show(Duration::from_secs(90_000)), "1d01h");
    }
}
