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
            Lookup::Fine => Ok(()),
            Lookup::Bad => Err(refuse(program, &Error::from(ErrorKind::PermissionDenied))),
            Lookup::Absent => Err(refuse(program, &Error::from(ErrorKind::NotFound))),
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
            Lookup::Fine => return Ok(()),
            Lookup::Bad => found_bad = true,
            Lookup::Absent => {}
        }
    }
    let kind = if found_bad { ErrorKind::PermissionDenied } else { ErrorKind::NotFound };
    Err(refuse(program, &Error::from(kind)))
}

enum Lookup {
    Fine,
    Bad,
    Absent,
}

fn look(path: &Path) -> Lookup {
    match path.metadata() {
        Ok(found) if found.is_file() && access(path, Access::EXEC_OK).is_ok() => Lookup::Fine,
        Ok(_) => Lookup::Bad,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Lookup::Bad,
        Err(_) => Lookup::Absent,
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
    if let Some(failure) = Failure::resource_shortage(&format!("cannot start \"{shown}\""), error) {
        return failure;
    }
    let message = match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("\"{shown}\" is not an executable file that this user may run; check its mode")
        }
        _ => format!("cannot run \"{shown}\": {error}"),
    };
    Failure::new(Exit::NOT_EXECUTABLE, "command", message)
}
