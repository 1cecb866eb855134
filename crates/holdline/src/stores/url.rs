//! What the URLs of several stores have in common.
//!
//! What is wrong is told without the URL itself: it may hold a password.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;

/// A password. Not shown, whatever prints it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `host:port`, with this port unless another is given.
pub(crate) fn host(text: &str, port: &str) -> Result<String, &'static str> {
    let (name, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address are inside of its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (text, port),
    };
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '%';
    if name.is_empty() || name.contains(bad) {
        return Err("has a host that is no host");
    }
    match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(format!("{name}:{port}")),
        _ => Err("has a port that is no port"),
    }
}

/// Turns `%20` and the like into what they stand for.
pub(crate) fn decode(text: &str) -> Result<String, &'static str> {
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

/// The first line of the file that holds a password.
pub(crate) fn password_file(path: &str) -> Result<Secret> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the file {path} that password_file names could not be read");
        Error::because(ErrorKind::Invalid, message, error)
    })?;
    Ok(Secret(text.lines().next().unwrap_or_default().to_owned()))
}

/// The variable of the environment that holds a password.
pub(crate) fn password_env(variable: &str) -> Result<Secret, &'static str> {
    let unset = "names a variable of the environment by password_env that is not set";
    std::env::var(variable).map(Secret).map_err(|_| unset)
}

/// The text, if there is any.
pub(crate) fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
