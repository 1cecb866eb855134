//! One error for the whole library: a kind to act on, a sentence to read, and the cause.
//!
//! "Somebody else holds it" is not an error: [`try_lock`](crate::Mutex::try_lock) and
//! [`lock_within`](crate::Mutex::lock_within) answer `Ok(None)`.

use crate::loss::Loss;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// A `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong, and so what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached, or did not answer in time. Trying again may help.
    Unavailable,
    /// The lock was lost: its lease ran out, or somebody broke it. Undo, or check what was done.
    Lost,
    /// A release was asked for, but whether it was carried out is not known. It is being retried in
    /// the background, and the lease ends it in any case.
    Unknown,
    /// The store does not promise what this recipe or option needs.
    Unsupported,
    /// Others use this name with another capacity (a mutex here, a semaphore there).
    Mismatch,
    /// A name, URL, lease or option makes no sense.
    Invalid,
    /// The store refuses us: a wrong password, no permission, a read-only or full disk.
    Denied,
    /// The store holds something that is not ours, or that we cannot read.
    Corrupt,
}

/// Why an operation failed. [`Display`](fmt::Display) is one sentence; the alternate form (`{:#}`)
/// adds the causes.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    loss: Option<Loss>,
}

impl Error {
    /// An error of this kind. The message says what happened, to what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), source: None, loss: None }))
    }

    /// The same, with its cause. The cause must not contain secrets.
    pub fn because(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            source: Some(source.into()),
            loss: None,
        }))
    }

    /// An error of kind [`ErrorKind::Lost`]: the lock of this name was lost for this cause.
    pub(crate) fn lost(name: &impl fmt::Display, loss: Loss) -> Self {
        let message = format!("lock \"{name}\" was lost: {loss}");
        let mut error = Error::new(ErrorKind::Lost, message);
        error.0.loss = Some(loss);
        error
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
    }

    /// Whether the lock was lost.
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Why the lock was lost, if this error says that it was.
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
    }
}

/// What the system is short of, if that is why it refused something: a sentence that says what to
/// do. Such an error passes when others let go, and is no lack of rights.
pub(crate) fn shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some(
            "this process has no file descriptors left; close some, or raise its limit (ulimit -n)",
        ),
        Errno::NFILE => Some("this machine has no file descriptors left"),
        Errno::NOMEM | Errno::NOBUFS => Some("this machine has no memory left"),
        Errno::AGAIN => Some("this user or process may have no more threads (ulimit -u)"),
        _ => None,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
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
        write!(f, "{:?}: {self:#}", self.kind())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}
