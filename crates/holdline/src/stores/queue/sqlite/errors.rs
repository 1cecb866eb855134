//! Converts errors of SQLite and of the system into this library's: one sentence each, with the
//! file.

use super::database::{BESIDE, beside};
use crate::error::{Error, ErrorKind};
use rusqlite::ffi::SQLITE_IOERR_SHORT_READ;
use rusqlite::{ErrorCode, ffi};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether the error is that another connection holds the write lock.
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

/// The error for a stored value that holdline cannot have written.
pub(super) fn corrupt_value() -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_MISMATCH);
    rusqlite::Error::SqliteFailure(code, Some("a stored value makes no sense".to_owned()))
}

/// Converts an SQLite error about this file.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let name = path.display();
    if busy(&error) {
        let message = format!(
            "another process holds the write lock of the database {name}, perhaps one that was \
             stopped in the middle of a write; let it go on, or end it"
        );
        return Error::because(ErrorKind::Unavailable, message, error);
    }
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            format!("{name} is not a database, so it cannot keep locks; choose another path"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            format!(
                "the lock database {name} is damaged; end all programs that use it, and remove it \
                 together with {name}-wal and {name}-shm"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Unavailable,
            format!("the disk that holds the lock database {name} is full; make room on it"),
        ),
        Some(ErrorCode::OutOfMemory) => (
            ErrorKind::Unavailable,
            format!("there is no memory left to use the lock database {name} with"),
        ),
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => match obstacle(path) {
            Some(why) => return why,
            None if extended(&error) == Some(ffi::SQLITE_READONLY) => (
                ErrorKind::Corrupt,
                format!("the lock database {name} has a format that cannot be written"),
            ),
            None => (
                ErrorKind::Unavailable,
                format!("the lock database {name} could not be opened just now; try again"),
            ),
        },
        Some(ErrorCode::SystemIoFailure) if extended(&error) == Some(SQLITE_IOERR_SHORT_READ) => (
            ErrorKind::Unavailable,
            format!(
                "the log of the lock database {name} is shorter than it was written, as if \
                 {name}-wal was removed; end all programs that use it, and it begins anew"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!("the system failed to read or write the lock database {name}; check the disk"),
        ),
        _ => (
            ErrorKind::Corrupt,
            format!("the database {name} holds something that holdline did not write there"),
        ),
    };
    Error::because(kind, message, error)
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// The number of files that SQLite opens for a database: itself, its log, the log's index, and its
/// folder.
const DESCRIPTORS: usize = 4;

/// The length of the longest path, in bytes, at which SQLite opens a database.
const LONGEST_PATH: usize = 504;

/// The reason why this process cannot write the database, which SQLite does not report, if it can
/// be found. Does not open the database's files: closing one would end SQLite's locks on it.
pub(super) fn obstacle(path: &Path) -> Option<Error> {
    const OPEN: &str = "open the lock database";
    let writable = |file: &Path, access| {
        accessat(CWD, file, access, AtFlags::EACCESS)
            .err()
            .map(|errno| unshared(file, errno).unwrap_or_else(|| refused(OPEN, file, errno.into())))
    };
    // SQLite has closed its descriptors by now.
    let spare: io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    if let Err(error) = spare
        && out_of_descriptors(&error)
    {
        return Some(refused(OPEN, path, error));
    }
    let file = match fs::canonicalize(path) {
        Ok(file) => file,
        Err(error) => return Some(refused(OPEN, path, error)),
    };
    let length = file.as_os_str().len();
    if length > LONGEST_PATH {
        let message = format!(
            "could not open the lock database {}: its path has {length} bytes, and SQLite takes \
             {LONGEST_PATH} at most; choose a shorter one",
            file.display()
        );
        return Some(Error::new(ErrorKind::Invalid, message));
    }
    let access = Access::READ_OK | Access::WRITE_OK;
    let others = BESIDE.map(|ending| beside(&file, ending));
    writable(path, access)
        .or_else(|| {
            others.iter().filter(|file| file.exists()).find_map(|file| writable(file, access))
        })
        .or_else(|| others.iter().find_map(|file| protected(file)))
        .or_else(|| writable(file.parent()?, Access::WRITE_OK | Access::EXEC_OK))
}

/// The error for another user's file that is not shared with this user. Its owner can share it with
/// the URL's options.
fn unshared(file: &Path, errno: Errno) -> Option<Error> {
    let about = file.metadata().ok()?;
    let own = rustix::process::geteuid().as_raw();
    (errno == Errno::ACCESS && about.is_file() && about.uid() != own).then(|| {
        let error = io::Error::from(errno);
        let message = format!(
            "could not open the lock database {}: {error}; {}: {SHARE}, or choose another path",
            file.display(),
            owned(&about)
        );
        Error::because(ErrorKind::Denied, message, error)
    })
}

/// How the owner of a database can share it.
pub(super) const SHARE: &str = "let its owner share it, with ?mode=666 (all users) or ?group=NAME \
                                (a group) in the URL";

/// The users that a database is for.
pub(super) fn owned(file: &Metadata) -> String {
    let (user, group, mode) = (file.uid(), file.gid(), file.mode() & 0o777);
    let group = if mode & 0o060 == 0o060 { format!(" and group {group}") } else { String::new() };
    format!("it is for user {user}{group} only (mode {mode:o})")
}

/// The error for another user's file in a folder such as /tmp, where Linux lets only its owner open
/// it for writing (`fs.protected_regular`).
fn protected(file: &Path) -> Option<Error> {
    let (about, folder) = (file.metadata().ok()?, file.parent()?.metadata().ok()?);
    let own = rustix::process::geteuid().as_raw();
    let foreign = about.uid() != own && about.uid() != folder.uid();
    (folder.mode() & 0o1000 != 0 && foreign).then(|| {
        let message = format!(
            "{} belongs to another user, and its folder is sticky, where Linux keeps others from \
             it; share a lock database in a folder without that mode (chmod -t)",
            file.display()
        );
        Error::new(ErrorKind::Denied, message)
    })
}

/// Whether the process or the system has run out of file descriptors.
pub(super) fn out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Converts a system error: what was being done, and to which file.
pub(super) fn refused(doing: &str, path: &Path, error: io::Error) -> Error {
    let (kind, advice) = match error.kind() {
        _ if out_of_descriptors(&error) => (
            ErrorKind::Unavailable,
            "no file descriptors are left; close some, or raise the limit (ulimit -n)",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Unavailable, "make room on its disk")
        }
        io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory => {
            (ErrorKind::Unavailable, "try again")
        }
        // From the start of a thread.
        io::ErrorKind::WouldBlock => (
            ErrorKind::Unavailable,
            "this user or container may have no more threads (ulimit -u, pids.max)",
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "give this user the right to, or choose another path")
        }
        _ => (ErrorKind::Denied, "check the path"),
    };
    let message = format!("could not {doing} {}: {error}; {advice}", path.display());
    Error::because(kind, message, error)
}
