//! What SQLite and the system say, as this library's errors: one sentence each, naming the file.

use crate::error::{Error, ErrorKind};
use rusqlite::ErrorCode;
use std::io;
use std::path::Path;

/// Whether somebody else is writing just now.
pub(super) fn busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

/// The sentence for an error of SQLite's about this file.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let path = path.display();
    if busy(&error) {
        let message = format!(
            "another process holds the write lock of the database {path}, perhaps one that was \
             stopped in the middle of a write; let it go on, or end it"
        );
        return Error::because(ErrorKind::Unavailable, message, error);
    }
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            format!("{path} is not a database, so it cannot keep locks; choose another path"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            format!(
                "the lock database {path} is damaged; end all programs that use it, and remove it \
                 together with {path}-wal and {path}-shm"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Denied,
            format!("the disk that holds the lock database {path} is full; make room on it"),
        ),
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            ErrorKind::Denied,
            format!(
                "the lock database {path} cannot be written; give this user the right to write \
                 the file and its folder, or choose another path"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!("the system failed to read or write the lock database {path}; check the disk"),
        ),
        _ => (
            ErrorKind::Corrupt,
            format!("the database {path} holds something that holdline did not write there"),
        ),
    };
    Error::because(kind, message, error)
}

/// The sentence for an error of the system's: what was to be done, to which file.
pub(super) fn refused(doing: &str, path: &Path, error: io::Error) -> Error {
    let (kind, advice) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Denied, "make room on its disk")
        }
        io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory => {
            (ErrorKind::Unavailable, "try again")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "give this user the right to, or choose another path")
        }
        _ => (ErrorKind::Denied, "check the path"),
    };
    let message = format!("could not {doing} {}: {error}; {advice}", path.display());
    Error::because(kind, message, error)
}
