//! Faults of calls, and the errors that they become.

use crate::error::{Error, ErrorKind};
use mysql_async::{DriverError, Error as ClientError, IoError, ServerError};
use std::io;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// No answer in time.
    Silence,
    /// No connection, or it broke. With `true`, nothing had been sent.
    Broken(ClientError, bool),
    /// The server's answer is an error. It undid what it had done, unless it was interrupted.
    Refused(ServerError),
    /// An error of the client's own.
    Ours(Error),
}

/// Deadlock; a row that changed since it was read; the deadlock of named locks.
const CONFLICTS: [u16; 3] = [1213, 1020, 3058];

/// Errors that pass by themselves: the lock wait timeout, a node that is not in its cluster's
/// majority, a transaction that the cluster refuses.
const PASSING: [u16; 4] = [1205, 1047, 3100, 3101];

/// The ends of a statement from outside: the server shuts down, the statement or its connection was
/// killed, it took too long. A procedure may have committed by then.
const INTERRUPTED: [u16; 7] = [1053, 1077, 1079, 1317, 1927, 1969, 3024];

/// What is said of a server that was the primary, or will be.
pub(super) const READ_ONLY: &str =
    "is read-only, as a replica is; use the address of the primary, or unset read_only there";

impl Fault {
    /// Whether the server has undone everything because of a conflict with another client.
    pub(super) fn conflict(&self) -> bool {
        matches!(self, Fault::Refused(error) if CONFLICTS.contains(&error.code))
    }

    /// Whether another transaction has locked the row.
    pub(super) fn locked(&self) -> bool {
        matches!(self, Fault::Refused(error) if [1205, 3572].contains(&error.code))
    }

    /// Whether the connection or the statement was ended, so that the call may be made once more.
    pub(super) fn ended(&self) -> bool {
        match self {
            Fault::Broken(..) => true,
            Fault::Refused(error) => INTERRUPTED.contains(&error.code),
            Fault::Silence | Fault::Ours(_) => false,
        }
    }

    /// Whether the server may have carried out the call that was ended.
    pub(super) fn in_doubt(&self) -> bool {
        !matches!(self, Fault::Broken(_, true))
    }

    /// Whether the server may yet carry out the call: no answer of its own says that it is over.
    pub(super) fn may_come_later(&self) -> bool {
        matches!(self, Fault::Silence | Fault::Broken(_, false))
    }

    /// The error for the user.
    pub(super) fn explain(self, address: &str) -> Error {
        match self {
            Fault::Silence => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{address} did not answer in time; check that it runs and can be reached, and \
                     that no transaction has locked holdline's rows"
                ),
            ),
            Fault::Broken(error, _) => {
                let tls = if rejected(&error) {
                    ", and that its certificate names the host and is from an authority that we \
                     trust (ca_file)"
                } else {
                    ""
                };
                let message = format!(
                    "the connection to {address} failed; check that it runs and can be \
                     reached{tls}"
                );
                Error::because(ErrorKind::Unavailable, message, error)
            }
            Fault::Refused(error) => refused(&error, address),
            Fault::Ours(error) => error,
        }
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Server(error) => Fault::Refused(error),
            // The connection said so before anything else could be sent on it.
            error @ ClientError::Driver(DriverError::ConnectionClosed) => {
                Fault::Broken(error, true)
            }
            error => Fault::Broken(error, false),
        }
    }
}

/// Whether TLS failed.
fn rejected(error: &ClientError) -> bool {
    let ClientError::Io(error) = error else { return false };
    !matches!(error, IoError::Io(error) if error.kind() != io::ErrorKind::InvalidData)
}

fn refused(error: &ServerError, address: &str) -> Error {
    let (kind, advice) = match error.code {
        1146 | 1305 | 1370 | 1142 if error.message.contains("holdline") => (
            ErrorKind::Denied,
            "lacks holdline's tables and procedures, or the user may not use them; \
             `holdline schema mysql` prints them, `holdline schema mysql --install URL` or \
             ?install=yes installs them, and the guide for MySQL lists the grants",
        ),
        1044 | 1045 | 1698 | 1130 | 1251 | 1862 | 1820 => {
            let advice = "refuses the user, the password or the host; check them, and say tls=true \
                if it wants TLS";
            (ErrorKind::Denied, advice)
        }
        1142 | 1143 | 1227 | 1370 | 1419 | 1449 => {
            (ErrorKind::Denied, "denies a permission; the guide for MySQL lists the grants")
        }
        _ if error.message.contains("require_secure_transport") => {
            (ErrorKind::Denied, "wants TLS; say tls=true")
        }
        1049 => (ErrorKind::Invalid, "has no such database; create it first"),
        1644 if error.message.starts_with("HOLDLINE") => (
            ErrorKind::Unsupported,
            "has another time zone than holdline set: a proxy in between mixes sessions; use a \
             direct connection, or a proxy that keeps a session's settings",
        ),
        1461 => (
            ErrorKind::Unavailable,
            "has no prepared statement left; raise its max_prepared_stmt_count",
        ),
        1040 | 1203 | 1226 => (
            ErrorKind::Unavailable,
            "has no connection left; a process needs two, and with the schemes row and named one \
             more for each lock: raise max_connections or the user's limit, or close others",
        ),
        1290 | 1792 | 1836 => (ErrorKind::Unavailable, READ_ONLY),
        1021 | 1114 => (ErrorKind::Unavailable, "has no room left; free some, or give it more"),
        code if [&PASSING[..], &INTERRUPTED, &CONFLICTS].concat().contains(&code) => {
            (ErrorKind::Unavailable, "cannot serve at the moment")
        }
        // A transaction that was rolled back: by a failover, for instance.
        _ if error.state.starts_with("40") || error.state.starts_with("08") => {
            (ErrorKind::Unavailable, "cannot serve at the moment")
        }
        _ => (ErrorKind::Corrupt, "gave an answer that makes no sense here"),
    };
    let detail: String = error.message.chars().map(printable).take(300).collect();
    let message = format!("{address} {advice}: {detail} (error {})", error.code);
    Error::new(kind, message)
}

fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
