//! `holdline`: a command under a distributed lock, and what goes with it.
//!
//! It uses the library's public API and nothing else. Each verb is a file in `commands/`; `printer`
//! prints, `exit` lists the exit codes, `env` the environment variables.

mod child;
mod cli;
mod commands;
mod duration;
mod env;
mod exit;
mod hold;
mod inherit;
mod job;
mod party;
mod printer;
mod session;
mod shape;
mod signals;
mod stamp;
mod wait;

use crate::exit::{Exit, Failure};
use crate::printer::{Printer, redact};
use crate::session::Session;
use std::io::Write;
use std::process::ExitCode;
use tokio::time::Instant;

fn main() -> ExitCode {
    child::launch_if_told();
    end_at_a_bug();
    let began = Instant::now();
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(explain(&error).0),
    };
    let common = cli.common;
    let printer = Printer { json: common.json, quiet: common.quiet, verbose: common.verbose };
    let session = Session { printer, store: common.store.unwrap_or_default(), began };
    let exit = commands::dispatch(cli.verb, &session).unwrap_or_else(|failure| {
        printer.fail(&failure);
        failure.exit
    });
    ExitCode::from(exit.0)
}

/// Shows help, or what is wrong with the command line.
fn explain(error: &clap::Error) -> Exit {
    if error.use_stderr() {
        // Without colours, so that no password can hide between them.
        let text = redact(&error.render().to_string());
        let _ = write!(std::io::stderr(), "{text}");
        return Exit::USAGE;
    }
    let _ = error.print();
    Exit::DONE
}

/// A panic in any thread ends the program, and with it the command: a lock that nobody renews or
/// watches is worse than none.
fn end_at_a_bug() {
    std::panic::set_hook(Box::new(|info| {
        let message = format!("this is a bug, please report it: {info}");
        let failure = Failure::new(Exit::INTERNAL, "internal", message);
        Printer { json: false, quiet: false, verbose: false }.fail(&failure);
        std::process::exit(Exit::INTERNAL.0.into());
    }));
}
