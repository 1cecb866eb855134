//! The meaning of etcd's errors for a caller.

use crate::grpc::{Code, Status};
use holdline_base::{Error, ErrorKind};

/// How to handle a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try the next member.
    Elsewhere,
    /// Try again in a moment: the cluster is busy.
    Later,
    /// Log in again.
    Login,
    /// Return the error to the caller.
    Final,
}

/// The lease named in a request does not exist, or no longer exists.
const NO_LEASE: &str = "requested lease not found";

/// The user's roles do not allow the request.
const NO_RIGHT: &str = "permission denied";

/// The database has reached its quota.
const NO_SPACE: &str = "database space exceeded";

pub(crate) fn judge(status: &Status) -> Verdict {
    let text = &status.message;
    match status.code {
        Code::Unauthenticated => Verdict::Login,
        // A token from before the users were changed.
        Code::InvalidArgument if text.contains("revision of auth store is old") => Verdict::Login,
        Code::InvalidArgument if text.contains("revision in header is old") => Verdict::Login,
        Code::ResourceExhausted if text.contains("too many requests") => Verdict::Later,
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Foreign
        | Code::Silent
        | Code::Internal
        | Code::Aborted => Verdict::Elsewhere,
        _ => Verdict::Final,
    }
}

/// Whether a request that failed with this status may have been carried out.
pub(crate) fn may_be_done(status: &Status) -> bool {
    match judge(status) {
        Verdict::Elsewhere => !status.unsent,
        Verdict::Later | Verdict::Login | Verdict::Final => false,
    }
}

/// Whether a call failed because the lease it named is gone, by the cause of its error. That
/// survives a conversion to another error type.
pub fn is_lease_gone(error: &dyn std::error::Error) -> bool {
    error.source().is_some_and(|source| source.to_string().contains(NO_LEASE))
}

/// Whether a call failed because etcd's database is full, by the cause of its error. It may have
/// been carried out all the same, if it filled the database itself.
pub fn is_full(error: &dyn std::error::Error) -> bool {
    error.source().is_some_and(|source| source.to_string().contains(NO_SPACE))
}

/// Whether a call was denied because the user's roles do not cover its keys: not because of the
/// login, which may be refused for a moment.
pub fn is_forbidden(error: &dyn std::error::Error) -> bool {
    error.source().is_some_and(|source| source.to_string().contains(NO_RIGHT))
}

/// Whether a lease could not be granted because its id is taken.
pub(crate) fn is_lease_there(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.to_string().contains("lease already exists"))
}

/// The error for the caller. etcd's message is its cause, and contains no secrets. A server that
/// has answered before (`reached`) is expected to answer again.
pub(crate) fn error(address: &str, status: &Status, reached: bool) -> Error {
    let text = &status.message;
    let (kind, message) = match status.code {
        Code::Unauthenticated | Code::PermissionDenied => {
            (ErrorKind::Denied, format!("{address} denies access; check the user and its roles"))
        }
        Code::InvalidArgument if text.contains("authentication failed") => {
            (ErrorKind::Denied, format!("{address} refuses the user or the password"))
        }
        Code::InvalidArgument if text.contains("user name is empty") => {
            let message = format!(
                "{address} asks for a user and a password; write them before the host, with a \
                 colon between"
            );
            (ErrorKind::Denied, message)
        }
        Code::FailedPrecondition if text.contains("authentication is not enabled") => {
            let message = format!("{address} has no users; leave the user out of the URL");
            (ErrorKind::Denied, message)
        }
        Code::ResourceExhausted if text.contains(NO_SPACE) => {
            let advice = "is full; compact it, then clear its alarm";
            (ErrorKind::Unavailable, format!("{address} {advice}"))
        }
        Code::Foreign if reached => {
            (ErrorKind::Unavailable, format!("{address} is not answered by etcd at the moment"))
        }
        Code::Foreign => (ErrorKind::Invalid, format!("{address} cannot be used as etcd")),
        Code::Unimplemented => {
            (ErrorKind::Unsupported, format!("{address} is no etcd of version 3.4 or later"))
        }
        _ if judge(status) == Verdict::Final => {
            (ErrorKind::Corrupt, format!("{address} did not understand a request"))
        }
        _ => {
            let message =
                format!("{address} could not be reached; check that it runs and has a leader");
            (ErrorKind::Unavailable, message)
        }
    };
    Error::because(kind, message, Said(text.clone()))
}

/// etcd's own message.
#[derive(Debug)]
struct Said(String);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "it gave no reason" } else { &self.0 })
    }
}

impl std::error::Error for Said {}
