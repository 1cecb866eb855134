//! The error type of the library: a kind to act on, a message to read, and the cause.
//!
//! "The lock is held" is not an error: [`try_lock`](crate::Mutex::try_lock) and
//! [`lock_within`](crate::Mutex::lock_within) return `Ok(None)`.

use crate::loss::Loss;
use holdline_base::ErrorKind as base;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, by which a caller decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached, did not answer in time, or has no room, in memory or on
    /// disk. A retry may succeed.
    Unavailable,
    /// The lock was lost: its lease expired, or it was broken by force. Undo or check the work.
    Lost,
    /// The outcome of a release is unknown. The release is retried in the background; in any case
    /// the lock ends with its lease. The work under the lock is done: log the error, and do not
    /// repeat the work.
    Unknown,
    /// The store lacks a capability that this recipe or option needs.
    Unsupported,
    /// Other clients use this name with another capacity (say, as a semaphore where this one is a
    /// mutex, or with another number of permits). Use another name, or retry when they have left.
    Mismatch,
    /// A name, URL, lease or option is invalid.
    Invalid,
    /// The store denies access: a wrong password, no permission, tables that have not been
    /// installed, a read-only file system.
    Denied,
    /// The store contains data that is not this library's or that the library cannot read.
    Corrupt,
}

/// The error of a failed operation. [`Display`](fmt::Display) is one sentence; the alternate form
/// (`{:#}`) adds the causes.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    loss: Option<Loss>,
}

impl Error {
    /// Creates an error. The message says what happened, to what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), source: None, loss: None }))
    }

    /// Creates an error with a cause, which must not contain secrets. If the cause is a shortage of
    /// file descriptors or memory, the message says so and the kind becomes
    /// [`ErrorKind::Unavailable`].
    pub fn because(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let (mut kind, mut message, source) = (kind, message.into(), source.into());
        if let Some(short) = shortage(&*source) {
            kind = ErrorKind::Unavailable;
            if !message.contains("file descriptors") {
                message.push_str(": ");
                message.push_str(short);
            }
        }
        Error(Box::new(Inner { kind, message, source: Some(source), loss: None }))
    }

    /// An error of kind [`ErrorKind::Lost`] for the lock of this name.
    pub(crate) fn lost(name: &impl fmt::Display, loss: Loss) -> Self {
        let message = format!("lock \"{name}\" was lost: {loss}");
        let mut error = Error::new(ErrorKind::Lost, message);
        error.0.loss = Some(loss);
        error
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a retry of the same call may succeed: whether the kind is
    /// [`Unavailable`](ErrorKind::Unavailable).
    ///
    /// An [`unlock`](crate::Guard::unlock) cannot be retried, and its errors say so: the library
    /// itself repeats the release, and what was done under the lock must not be done again.
    pub fn retryable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    /// Whether the lock was lost.
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// The cause of the loss, if this error reports one.
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
    }
}

/// An error of the client crates, which know nothing about locks.
impl From<holdline_base::Error> for Error {
    fn from(error: holdline_base::Error) -> Self {
        let (kind, message, cause) = error.into_parts();
        let kind = match kind {
            base::Unsupported => ErrorKind::Unsupported,
            base::Invalid => ErrorKind::Invalid,
            base::Denied => ErrorKind::Denied,
            base::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        };
        match cause {
            Some(cause) => Error::because(kind, message, cause),
            None => Error::new(kind, message),
        }
    }
}

/// The resource that the system is short of, with advice, if a shortage caused the error. A
/// shortage is retryable: it passes when other processes release the resource.
fn shortage(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| {
        let error = cause.downcast_ref::<io::Error>()?;
        if let Some(wrapped) = error.get_ref() {
            return shortage(wrapped); // not in the chain of sources
        }
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(
                "this process has no file descriptors left; close some, or raise the limit \
                 (ulimit -n)",
            ),
            Errno::NFILE => Some("this machine has no file descriptors left"),
            Errno::NOMEM | Errno::NOBUFS => Some("this machine has no memory left"),
            _ => None,
        }
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if f.alternate() {
            let mut cause = std::error::Error::source(self);
            let mut said = self.0.message.clone();
            while let Some(error) = cause {
                // Messages often include their cause's message, which may include its own cause's.
                let text = without_doubles(&error.to_string());
                if !said.contains(&text) && !text.ends_with(&said) {
                    write!(f, ": {text}")?;
                    said = text;
                }
                cause = error.source();
            }
        }
        Ok(())
    }
}

/// The text of a cause, without a part that a client repeats immediately.
pub(crate) fn without_doubles(text: &str) -> String {
    let mut parts: Vec<&str> = text.split(": ").collect();
    parts.dedup();
    parts.join(": ")
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.kind())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let inner = || io::Error::other("no room");
        let error = Error::because(ErrorKind::Denied, "x failed: no room; make some", inner());
        assert_eq!(format!("{error:#}"), "x failed: no room; make some");
        let error = Error::because(ErrorKind::Denied, "x failed", io::Error::other(inner()));
        assert_eq!(format!("{error:#}"), "x failed: no room");
        // As in SQLite's errors, whose cause is the same text with a number.
        let numbered = Error::because(ErrorKind::Denied, "error 13: no room", inner());
        let error = Error::because(ErrorKind::Denied, "no room", numbered);
        assert_eq!(format!("{error:#}"), "no room");
        let doubled = io::Error::other("input error: input error: no room");
        let error = Error::because(ErrorKind::Denied, "x failed", doubled);
        assert_eq!(format!("{error:#}"), "x failed: input error: no room");
    }

    #[test]
    fn what_is_short_is_said_and_is_no_lack_of_rights() {
        let caused = |errno: Errno| {
            let inner = io::Error::from(errno);
            Error::because(ErrorKind::Denied, "x could not be opened", io::Error::other(inner))
        };
        let error = caused(Errno::MFILE);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("no file descriptors left"), "{error}");
        let error = Error::because(ErrorKind::Denied, "x", io::Error::from(Errno::NOMEM));
        assert_eq!((error.kind(), error.retryable()), (ErrorKind::Unavailable, true));
        let unconfirmed = Error::new(ErrorKind::Unknown, "a release");
        assert!(!unconfirmed.retryable(), "it is retried in the background");
        let error = caused(Errno::ACCESS);
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Denied, "x could not be opened")
        );
    }
}
