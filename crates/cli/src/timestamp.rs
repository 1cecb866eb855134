//! Timestamps for people and for JSON: UTC, as in RFC 3339.

use holdline::clock;

/// A timestamp in milliseconds since 1970 as a date and time.
pub(crate) fn show(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Days to a date, counting in eras of 400 years from a March: Howard Hinnant's method.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    let milli = rest % 1_000;
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The current time in milliseconds since 1970, by this machine's clock.
pub(crate) fn now() -> u64 {
    clock::wall_micros() / 1_000
}

#[cfg(test)]
mod tests {
    use super::show;

    #[test]
    fn dates_are_right() {
        assert_eq!(show(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(show(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(show(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(show(4_102_444_799_000), "2099-12-31T23:59:59.000Z");
    }
}
