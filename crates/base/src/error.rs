//! The error type of this crate, and of the clients built on it.

use std::fmt;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an error. It contains no secrets.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The kind of an error, by which a caller decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The servers could not be reached, did not answer in time, or have no room. A retry may
    /// succeed.
    Unavailable,
    /// The server, or this build, lacks something that is needed.
    Unsupported,
    /// An address, an option or a certificate is invalid.
    Invalid,
    /// The servers refuse access, or the system refuses a resource.
    Denied,
    /// The servers did not understand the request.
    Corrupt,
}

/// The error of a failed operation. [`Display`](fmt::Display) is one sentence; the alternate form
/// (`{:#}`) adds the causes.
pub struct Error {
    kind: ErrorKind,
    message: String,
    cause: Option<Cause>,
}

impl Error {
    /// Creates an error. The message says what happened, to what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), cause: None }
    }

    /// Creates an error with a cause, which must not contain secrets.
    pub fn because(kind: ErrorKind, message: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Error { kind, message: message.into(), cause: Some(cause.into()) }
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether a retry of the same call may succeed.
    pub fn retryable(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }

    /// The parts of the error, for converting it to another error type.
    pub fn into_parts(self) -> (ErrorKind, String, Option<Cause>) {
        (self.kind, self.message, self.cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if f.alternate() {
            let mut cause = std::error::Error::source(self);
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| &**cause as &(dyn std::error::Error + 'static))
    }
}
