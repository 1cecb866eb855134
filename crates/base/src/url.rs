//! The common parts of several stores' URLs: hosts, percent-encoding, passwords, durations.
//!
//! Error texts never contain the URL itself, since it may contain a password. Most are the rest of
//! a sentence that begins with the name of the URL.

use crate::{Error, ErrorKind, Result};
use std::fmt;
use std::time::Duration;

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(
    /// The password itself.
    pub String,
);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What is wrong with a URL whose hosts are not separated by commas alone.
pub const BLANK: &str = "has a blank beside or in a host; leave it out";

/// The host, without the brackets of an IPv6 address, and the port, if given.
///
/// # Errors
///
/// What is wrong with the URL, as the rest of a sentence.
pub fn host_and_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, after) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, after)) => (host, after),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match after.strip_prefix(':') {
        None if after.is_empty() => None,
        None => return Err("has a host that makes no sense"),
        Some(more) if more.contains(':') => {
            return Err("has an IPv6 address without brackets; write [::1] or [::1]:PORT");
        }
        Some(digits) => match digits.parse() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err("has a port that is no number from 1 to 65535"),
        },
    };
    Ok((host, port))
}

/// `host:port`, with this port if none is given.
///
/// # Errors
///
/// As [`host_and_port`].
pub fn host(text: &str, default_port: u16) -> Result<String, &'static str> {
    let (name, port) = host_and_port(text)?;
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '%' | '[' | ']');
    if name.contains(' ') {
        return Err(BLANK);
    }
    if name.is_empty() || name.contains(bad) {
        return Err("has a host that is no host");
    }
    Ok(join(name, port.unwrap_or(default_port)))
}

/// `host:port`, with brackets around an IPv6 address.
pub fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Decodes percent-encoding.
///
/// # Errors
///
/// As [`host_and_port`].
pub fn decode(text: &str) -> Result<String, &'static str> {
    let wrong = "has a % that is not followed by two hexadecimal digits";
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| wrong)?);
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 once decoded")
}

/// Parses a duration such as `500ms`, `2s`, `10m` or `1h`.
pub fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(millis).map(Duration::from_millis)
}

/// The text of a duration, as [`duration`] parses it, in the largest unit that shows it exactly.
pub fn show_duration(time: Duration) -> String {
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let nanos = time.as_nanos();
    let exact = units.iter().find(|(millis, _)| nanos.is_multiple_of(millis * 1_000_000));
    match exact {
        _ if time.is_zero() => "0s".to_owned(),
        Some((millis, unit)) => format!("{}{unit}", nanos / (millis * 1_000_000)),
        None => format!("{time:?}"),
    }
}

/// Reads a password: the first line of the file that this option names.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the file cannot be read.
pub fn secret_file(option: &str, path: &str) -> Result<Secret> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the file {path} that {option} names could not be read");
        Error::because(ErrorKind::Invalid, message, error)
    })?;
    Ok(Secret(text.lines().next().unwrap_or_default().to_owned()))
}

/// Reads a password or key from the environment variable that this option names.
///
/// # Errors
///
/// As [`host_and_port`], if the variable is not set.
pub fn secret_env(option: &str, variable: &str) -> Result<Secret, String> {
    std::env::var(variable).map(Secret).map_err(|_| {
        format!("names the environment variable {variable} by {option}, which is not set")
    })
}

/// The error for an unknown option. Its name may be shown, because [`check`] has made sure that it
/// is not part of a password.
pub fn unknown_option(option: &str, known: &str) -> String {
    let option: String = option.chars().take(40).flat_map(char::escape_default).collect();
    format!("has the option \"{option}\", which is not known; known are {known}")
}

/// Refuses what no server's URL may contain: unencoded characters of a password, which would change
/// the meaning of the rest, and duplicate options.
///
/// # Errors
///
/// What is wrong, without the password; the rest of a sentence that begins with the URL's name.
pub fn check(rest: &str) -> Result<(), String> {
    let hint = "; if it is a part of the password, write % as %25, / as %2F, ? as %3F, # as %23 \
                and @ as %40";
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    if rest.contains('#') {
        return Err(format!("has a part after #{hint}"));
    }
    if query.contains('@') {
        return Err(format!("has an @ behind a ?{hint}; in an option, write @ as %40"));
    }
    let login = address.rsplit_once('@').map_or("", |(login, _)| login);
    let login = login.strip_prefix("//").unwrap_or(login);
    if login.split_once('/').is_some_and(|(begin, _)| begin.contains(':')) {
        return Err(format!("has a / before the @{hint}"));
    }
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let key = pair.split('=').next().unwrap_or_default();
        if seen.contains(&key) {
            let key: String = key.chars().take(40).flat_map(char::escape_default).collect();
            return Err(format!("has the option \"{key}\" twice"));
        }
        seen.push(key);
    }
    Ok(())
}

/// The text, if it is not empty.
pub fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port() {
        assert_eq!(host("a", 7).as_deref(), Ok("a:7"));
        assert_eq!(host("a:1", 7).as_deref(), Ok("a:1"));
        assert_eq!(host("[::1]", 7).as_deref(), Ok("[::1]:7"));
        assert_eq!(host("[::1]:1", 7).as_deref(), Ok("[::1]:1"));
        assert_eq!(host_and_port(""), Ok(("", None)));
        assert!(host("fe80::1:7", 7).is_err_and(|error| error.contains("[::1]:PORT")));
        for bad in ["", ":1", "a:0", "a:65536", "a:x", "::1", "[::1", "[::1]x", "a%20", "a\tb"] {
            assert!(host(bad, 7).is_err(), "{bad}");
        }
        assert_eq!(host(" a", 7), Err(BLANK));
    }

    #[test]
    fn percent_encoding_is_undone() {
        assert_eq!(decode("a%20b%C3%a4+").as_deref(), Ok("a bä+"));
        for bad in ["%", "%2", "%zz", "%+f", "%ff"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn passwords_that_are_not_encoded_are_told() {
        for good in [
            "//host",
            "//me:pa%2Fss@host/db?a=1&b=2",
            "//a,b/x@y",
            "//:p@[::1]:1/0",
            "//me@host/a@b",
            "///run/a@b.sock",
            "//me:p@ss@h",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in
            ["//me:p/ss@h", "//me:1/ss@h", "//:/ss@h", "//:p?ss@h/0", "//me:p#ss@h", "//h/?a=x@y"]
        {
            let error = check(bad).expect_err(bad);
            assert!(error.contains("%2F") && !error.contains("ss@"), "{error}");
        }
        assert_eq!(check("//h?a=1&b=2&a=1"), Err("has the option \"a\" twice".to_owned()));
        assert!(unknown_option("colour", "size").contains("\"colour\""));
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for text in ["0s", "100ms", "1500ms", "10s", "90s", "5m", "24h", "25h"] {
            assert_eq!(show_duration(duration(text).expect("good")), text);
        }
        assert_eq!(show_duration(Duration::from_secs(60)), "1m");
        assert_eq!(show_duration(Duration::from_micros(1)), "1µs");
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("0ms"), Some(Duration::ZERO));
        assert_eq!(duration("90m"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("1h"), Some(Duration::from_secs(3600)));
        for bad in ["", "1", "s", "1d", "-1s", "1.5s", "18446744073709551615h"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
