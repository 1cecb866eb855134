//! The launcher: makes the command die with the program, even by `kill -9`. On Linux the kernel
//! does that, if the child requests it between fork and exec. Code that runs there must be
//! `unsafe`, so the child first runs this program again: it makes the request, checks that its
//! parent is still alive, and executes the command. It runs before anything else in `main`, and
//! costs one exec.

use super::lookup;
use crate::printer::Printer;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The launcher's `argv[0]`, which no program has by accident.
const NAME: &str = "holdline: launching a command";

/// Executes the command, if this process was started as a launcher.
pub(crate) fn launch_if_told() {
    let mut args = std::env::args_os();
    if args.next().is_none_or(|name| name != NAME) {
        return;
    }
    let parent = args.next().and_then(|parent| parent.to_str()?.parse().ok());
    let json = args.next().is_some_and(|form| form == "json");
    let (file, argv) = (args.next(), args.collect::<Vec<_>>());
    if let (Some(parent), Some(file), [_, ..]) = (parent, file, &argv[..]) {
        std::process::exit(exec(parent, json, Path::new(&file), &argv));
    }
    std::process::exit(crate::exit::Exit::INTERNAL.0.into());
}

/// Executes the command in place of this process. Returns only on failure, with an exit code.
fn exec(parent: i32, json: bool, file: &Path, argv: &[OsString]) -> i32 {
    die_with_parent();
    // The kernel does not report a parent that died before the request.
    if rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get() != parent) {
        return crate::exit::Exit::signal(9).0.into();
    }
    let failure = lookup::refuse(&argv[0], Some(file), &lookup::exec(file, argv, |_| {}));
    Printer { json, quiet: false, verbose: false }.fail(&failure);
    Printer::flush();
    failure.exit.0.into()
}

#[cfg(target_os = "linux")]
fn die_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // A filter of system calls may refuse it: the command then runs on if holdline is killed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() {}

/// This program's file, if there is a `/proc`, which finds it even after it was replaced on disk.
pub(crate) fn own_program() -> Option<&'static Path> {
    Some(Path::new("/proc/self/exe")).filter(|own| own.exists())
}

/// The command to spawn, given its file: through a launcher on systems that need one.
pub(crate) fn command(file: &Path, argv: &[OsString], json: bool) -> Command {
    let mut command;
    if cfg!(target_os = "linux")
        && let Some(own) = own_program()
    {
        command = Command::new(own);
        command.arg0(NAME).arg(std::process::id().to_string());
        command.arg(if json { "json" } else { "text" }).arg(file).args(argv);
    } else {
        command = Command::new(file);
        command.arg0(&argv[0]).args(&argv[1..]);
    }
    command
}
