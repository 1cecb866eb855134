//! The errors of experiments.

use std::fmt;

/// The reason why an experiment, or one of its cells, cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The plan makes no sense, or the store does not support it.
    Usage(String),
    /// The store, a server, or a process failed.
    Failed(String),
    /// This signal ended the run.
    Stopped(i32),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Error::Usage(message.into())
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Error::Failed(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Failed(message) => f.write_str(message),
            Error::Stopped(signal) => write!(f, "signal {signal} ended the run"),
        }
    }
}

impl std::error::Error for Error {}

impl From<holdline::Error> for Error {
    fn from(error: holdline::Error) -> Self {
        use holdline::ErrorKind::{Invalid, Mismatch, Unsupported};
        let message = format!("{error:#}");
        match error.kind() {
            Invalid | Mismatch | Unsupported => Error::Usage(message),
            _ => Error::Failed(message),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Failed(error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Error::Failed(format!("a worker's message makes no sense: {error}"))
    }
}
