//! The look-up of the command: whether it can run at all, before a lock is taken.

use crate::exit::{Exit, Failure};
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Refuses a command that does not exist, or that cannot be executed.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    if program.as_bytes().contains(&b'/') {
        return match look(Path::new(program)) {
            Look::Fine => Ok(()),
            Look::Bad => Err(refuse(program, &Error::from(ErrorKind::PermissionDenied))),
            Look::Absent => Err(refuse(program, &Error::from(ErrorKind::NotFound))),
        };
    }
    if program.is_empty() {
        return Err(refuse(program, &Error::from(ErrorKind::NotFound)));
    }
    // Without PATH, execvp uses a default.
    let Some(path) = std::env::var_os("PATH") else { return Ok(()) };
    let mut found_bad = false;
    for folder in std::env::split_paths(&path) {
        match look(&folder.join(program)) {
            Look::Fine => return Ok(()),
            Look::Bad => found_bad = true,
            Look::Absent => {}
        }
    }
    let kind = if found_bad { ErrorKind::PermissionDenied } else { ErrorKind::NotFound };
    Err(refuse(program, &Error::from(kind)))
}

enum Look {
    Fine,
    Bad,
    Absent,
}

fn look(path: &Path) -> Look {
    match path.metadata() {
        Ok(found) if found.is_file() && access(path, Access::EXEC_OK).is_ok() => Look::Fine,
        Ok(_) => Look::Bad,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Look::Bad,
        Err(_) => Look::Absent,
    }
}

/// The error for a command that could not be executed.
pub(crate) fn refuse(program: &OsStr, error: &Error) -> Failure {
    let shown = crate::printer::clean(&program.to_string_lossy());
    if error.kind() == ErrorKind::NotFound {
        let message = if Path::new(program).is_file() {
            format!("cannot run \"{shown}\": the interpreter that it names was not found")
        } else {
            format!("there is no command \"{shown}\"; check its spelling, and PATH")
        };
        return Failure::new(Exit::NOT_FOUND, "command", message);
    }
    if let Some(lacking) = Failure::lacking(&format!("cannot start \"{shown}\""), error) {
        return lacking;
    }
    let message = match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("\"{shown}\" is not an executable file that this user may run; check its mode")
        }
        _ => format!("cannot run \"{shown}\": {error}"),
    };
    Failure::new(Exit::NOT_EXECUTABLE, "command", message)
}
