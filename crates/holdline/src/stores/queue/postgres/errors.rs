//! Faults of calls, and the errors that they become.

use crate::error::{Error, ErrorKind};
use crate::names::Name;
use std::error::Error as _;
use std::fmt::Display;
use tokio_postgres::error::SqlState;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// No answer in time.
    Silence,
    /// No connection could be made, so nothing was sent.
    Unreached(String),
    /// The connection broke.
    Broken(String),
    /// The server's answer is an error: its code and message.
    Refused(SqlState, String),
    /// An error of the client's own.
    Ours(Error),
}

impl Clone for Fault {
    fn clone(&self) -> Self {
        match self {
            Fault::Silence => Fault::Silence,
            Fault::Unreached(why) => Fault::Unreached(why.clone()),
            Fault::Broken(why) => Fault::Broken(why.clone()),
            Fault::Refused(code, message) => Fault::Refused(code.clone(), message.clone()),
            Fault::Ours(error) => Fault::Ours(Error::new(error.kind(), error.to_string())),
        }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(refusal) = error.as_db_error() {
            return Fault::Refused(refusal.code().clone(), clean(refusal.message()));
        }
        let cause = error.source().map(ToString::to_string);
        Fault::Broken(clean(&cause.unwrap_or_else(|| error.to_string())))
    }
}

/// The server's words, short and on one line.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

impl Fault {
    /// Whether this is the server's answer by one of these codes.
    pub(super) fn is(&self, codes: &[SqlState]) -> bool {
        matches!(self, Fault::Refused(code, _) if codes.contains(code))
    }

    /// Whether its connection must be closed: it is broken, its server is shutting down, or is a
    /// standby now, so that another one must be found.
    pub(super) fn breaks(&self) -> bool {
        match self {
            Fault::Unreached(_) | Fault::Broken(_) => true,
            Fault::Refused(code, _) => {
                let class = code.code();
                class.starts_with("57P") || class.starts_with("08") || class == "25006"
            }
            Fault::Silence | Fault::Ours(_) => false,
        }
    }

    /// Whether the server has not answered.
    pub(super) fn silent(&self) -> bool {
        matches!(self, Fault::Silence | Fault::Broken(_))
    }

    /// Whether the server may have carried out the call, or may yet do so.
    pub(super) fn in_doubt(&self) -> bool {
        match self {
            Fault::Silence | Fault::Broken(_) => true,
            // What ends a session may come while it waits for its commit to be confirmed.
            Fault::Refused(code, _) => code.code().starts_with("57P"),
            Fault::Unreached(_) | Fault::Ours(_) => false,
        }
    }

    /// The same, of a connection that was not made: nothing was sent.
    pub(super) fn unsent(self) -> Self {
        match self {
            Fault::Broken(why) => Fault::Unreached(why),
            other => other,
        }
    }

    /// Whether another transaction was in the way, so that the same call can be sent again at once.
    pub(super) fn collided(&self) -> bool {
        self.is(&[SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED])
    }

    /// The error for the user. `what` is what the call was about, such as a lock.
    pub(super) fn explain(self, address: &impl Display, what: &str) -> Error {
        match self {
            Fault::Silence => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{address} did not answer in time; check that it runs and can be reached, and \
                     that nothing blocks it"
                ),
            ),
            Fault::Unreached(why) | Fault::Broken(why) => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the connection to {address} failed; check that it runs and can be reached: \
                     {why}"
                ),
            ),
            Fault::Refused(code, message) => refused(&code, &message, address, what),
            Fault::Ours(error) => error,
        }
    }
}

/// The meaning of an error of the server's, by its code.
fn refused(code: &SqlState, message: &str, address: &impl Display, what: &str) -> Error {
    let (kind, advice) = match code.code() {
        // The tables or functions are not there, or not for us.
        "3F000" | "42P01" | "42883" => return missing(address),
        "42501" => (
            ErrorKind::Denied,
            "denies a permission; see the grants in the guide for PostgreSQL".to_owned(),
        ),
        "25006" => (
            ErrorKind::Unavailable,
            "cannot write: it is a standby, or read-only; name the primary, or all hosts"
                .to_owned(),
        ),
        "55P03" => (ErrorKind::Unavailable, format!("has {what} locked by another transaction")),
        "57014" => (
            ErrorKind::Unavailable,
            format!("cancelled a statement about {what}; see its statement_timeout"),
        ),
        "53100" => (ErrorKind::Denied, "has no room on its disk".to_owned()),
        "53300" => (
            ErrorKind::Unavailable,
            "has no connection left for us; raise its max_connections, or the limit of the role \
             or the database, or connect through a pooler"
                .to_owned(),
        ),
        "54000" => (ErrorKind::Unavailable, "has no room for notices".to_owned()),
        "22001" => (ErrorKind::Invalid, format!("has a column that is too short for {what}")),
        "3D000" => (ErrorKind::Invalid, "has no such database".to_owned()),
        text => match &text[..2.min(text.len())] {
            "28" => (ErrorKind::Denied, "refuses the user or password; check both".to_owned()),
            "08" | "40" | "53" | "55" | "57" | "58" => {
                (ErrorKind::Unavailable, "cannot serve at the moment".to_owned())
            }
            _ => (ErrorKind::Corrupt, format!("gave an answer about {what} that makes no sense")),
        },
    };
    Error::new(kind, format!("{address} {advice}: {message} ({})", code.code()))
}

/// The error for a call whose first attempt, of which no reply came, may have removed what the
/// second did not find.
pub(super) fn outcome_unknown(address: &impl Display, line: &Name) -> Error {
    let message = format!(
        "the connection to {address} broke while a place in lock \"{line}\" was given up; it is \
         not there any more, but it is not known whether it was there until then"
    );
    Error::new(ErrorKind::Unknown, message)
}

/// The error for a database without our tables and functions.
fn missing(address: &impl Display) -> Error {
    let message = format!(
        "{address} has no tables and functions for locks; install them with \"holdline schema \
         postgres --install URL\" (or have what it prints run by an administrator), or open it \
         with ?install=yes"
    );
    Error::new(ErrorKind::Unsupported, message)
}
