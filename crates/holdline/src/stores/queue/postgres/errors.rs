//! The meanings of the server's errors.

use crate::error::ErrorKind;
use crate::stores::queue::sql::{Fault, ServerError, clean};
use std::error::Error as _;

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let refused = |code: &str, message| {
            let code = code.to_owned();
            Fault::Refused(ServerError { code, message, meaning, connecting: false })
        };
        if let Some(refusal) = error.as_db_error() {
            return refused(refusal.code().code(), clean(refusal.message()));
        }
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        if cause == NO_PASSWORD { refused("28P01", cause) } else { Fault::Broken(clean(&cause)) }
    }
}

/// The errors when the tables or functions do not exist, or this role may not see them.
pub(super) const ABSENT: [&str; 3] = ["3F000", "42P01", "42883"];

/// The error of `tables.sql` over a newer version.
const NEWER: &str = "HL001";

/// The error when the server's table of locks is full.
pub(super) const FULL: [&str; 1] = ["53200"];

/// What internal errors begin with, in every language, if a table, type or function was dropped
/// while a call used it: somebody installs them anew, or restores a dump.
const REPLACED: [&str; 2] = ["cache lookup failed for ", "could not open relation with OID "];

/// The client's message when the server asks for a password and there is none.
const NO_PASSWORD: &str = "password missing";

/// The meaning of a server error, by its code.
fn meaning(error: &ServerError, what: &str) -> (ErrorKind, String) {
    let (kind, advice) = match &*error.code {
        code if ABSENT.contains(&code) => (
            ErrorKind::Denied,
            "has no tables and functions for locks; install them with \"holdline schema postgres \
             --install URL\" (or have what it prints run by an administrator), or open it with \
             ?install=yes",
        ),
        "42501" => {
            (ErrorKind::Denied, "denies a permission; see the grants in the guide for PostgreSQL")
        }
        NEWER => (
            ErrorKind::Unsupported,
            "has newer tables and functions for locks, which stay as they are; update this program",
        ),
        "25006" => (
            ErrorKind::Unavailable,
            "cannot write: it is a standby, or read-only; name the primary, or all hosts",
        ),
        "55P03" => (ErrorKind::Unavailable, "has {what} locked by another transaction"),
        "57014" | "25P03" | "25P04" => (
            ErrorKind::Unavailable,
            "cancelled a statement about {what}; see its statement_timeout and transaction_timeout",
        ),
        "53100" => (ErrorKind::Unavailable, "has no room on its disk"),
        "53300" => (
            ErrorKind::Unavailable,
            "has no connection left for us; raise its max_connections, or the limit of the role \
             or the database, or connect through a pooler",
        ),
        "54000" => (ErrorKind::Unavailable, "has no room for notices"),
        "XX000" if REPLACED.iter().any(|start| error.message.starts_with(start)) => {
            (ErrorKind::Unavailable, "was about {what} when its tables and functions were replaced")
        }
        "22001" => (ErrorKind::Invalid, "has a column that is too short for {what}"),
        "22P05" | "22021" => {
            (ErrorKind::Invalid, "has an encoding that cannot keep the name of {what}")
        }
        "3D000" => (ErrorKind::Invalid, "has no such database; create it first"),
        _ if error.message == NO_PASSWORD => (
            ErrorKind::Denied,
            "asks for a password; write it before the host, after a colon, or name a file of it \
             with ?password_file=PATH",
        ),
        text => match &text[..2.min(text.len())] {
            "28" => (ErrorKind::Denied, "refuses the user or password; check both"),
            "08" | "40" | "53" | "55" | "57" | "58" => {
                (ErrorKind::Unavailable, "cannot serve at the moment")
            }
            _ => (ErrorKind::Corrupt, "gave an answer about {what} that makes no sense"),
        },
    };
    (kind, advice.replace("{what}", what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str, message: &str) -> Fault {
        let (code, message) = (code.to_owned(), message.to_owned());
        Fault::Refused(ServerError { code, message, meaning, connecting: false })
    }

    /// Waiters outlast tables that are dropped and made in one transaction.
    #[test]
    fn what_is_being_replaced_comes_back() {
        for (message, kind) in [
            ("cache lookup failed for type 16412", ErrorKind::Unavailable),
            ("could not open relation with OID 16412", ErrorKind::Unavailable),
            ("unexpected data beyond EOF", ErrorKind::Corrupt),
        ] {
            let error = refused("XX000", message).explain(&"postgres://h", "lock \"x\"");
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    /// A statement is undone, and a transaction's session ends, maybe during the commit.
    #[test]
    fn a_time_limit_is_an_outage() {
        for (code, ended) in [("57014", false), ("25P03", true), ("25P04", true)] {
            let fault = refused(code, "what it says");
            assert_eq!((fault.ended(), fault.in_doubt()), (ended, ended), "{fault:?}");
            let error = fault.explain(&"postgres://h", "lock \"x\"");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}
