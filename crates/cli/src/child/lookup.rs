//! The look-up of the command, before a lock is taken: whether it can run at all, and which file it
//! is.

use crate::exit::{Exit, Failure};
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of a command. Refuses one that does not exist, or that cannot be executed.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, Failure> {
    if program.as_bytes().contains(&b'/') {
        return match look(Path::new(program)) {
            Lookup::Fine => Ok(program.into()),
            Lookup::Bad => Err(refuse(program, None, &Error::from(ErrorKind::PermissionDenied))),
            Lookup::Absent => Err(refuse(program, None, &Error::from(ErrorKind::NotFound))),
        };
    }
    if program.is_empty() {
        return Err(refuse(program, None, &Error::from(ErrorKind::NotFound)));
    }
    // Without PATH, execvp uses a default.
    let Some(path) = std::env::var_os("PATH") else { return Ok(program.into()) };
    let mut found_bad = false;
    for folder in std::env::split_paths(&path) {
        let file = folder.join(program);
        match look(&file) {
            Lookup::Fine => return Ok(file),
            Lookup::Bad => found_bad = true,
            Lookup::Absent => {}
        }
    }
    let kind = if found_bad { ErrorKind::PermissionDenied } else { ErrorKind::NotFound };
    Err(refuse(program, None, &Error::from(kind)))
}

/// Executes a command in place of this process: the file that was found, or another of its name if
/// that one is gone. Returns only if that fails.
pub(crate) fn exec(file: &Path, argv: &[OsString], prepare: impl Fn(&mut Command)) -> Error {
    let run = |file: &OsStr| {
        let mut command = Command::new(file);
        command.arg0(&argv[0]).args(&argv[1..]);
        prepare(&mut command);
        command.exec()
    };
    let error = run(file.as_os_str());
    if error.kind() == ErrorKind::NotFound { run(&argv[0]) } else { error }
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

/// The error for a command that could not be executed, and its file if there was one.
pub(crate) fn refuse(program: &OsStr, file: Option<&Path>, error: &Error) -> Failure {
    let shown = crate::printer::clean(&program.to_string_lossy());
    if error.kind() == ErrorKind::NotFound {
        let message = if file.is_some_and(Path::is_file) {
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
