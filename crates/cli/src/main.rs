//! `holdline`: runs a command under a distributed lock, and administers locks.
//!
//! It uses only the library's public API. Each verb is a file in `commands/`; `printer` prints,
//! `exit` lists the exit codes, `env` the environment variables.

mod acquire;
mod background;
mod caller;
mod child;
mod cli;
mod commands;
mod context;
mod defaults;
mod duration;
mod env;
mod exit;
mod held;
mod job;
mod live_line;
mod lock_kind;
mod log;
mod nested;
mod no_fork;
mod output_queue;
mod owner;
mod pace;
mod participant;
mod printer;
mod signals;
mod store_url;
mod terminal;
mod timestamp;
mod top;

use crate::context::Session;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::io::IsTerminal;
use std::process::ExitCode;
use tokio::time::Instant;

/// The allocator of the static program: a short run spends a tenth of its time in musl's allocator.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    child::launch_if_told();
    end_at_a_bug();
    let exit = begin();
    Printer::flush();
    ExitCode::from(exit.0)
}

/// Runs the program, except for flushing its output.
fn begin() -> Exit {
    let began = Instant::now();
    let cli = match cli::parse() {
        Ok(Ok(cli)) => cli,
        Ok(Err(error)) => return explain(&error),
        Err(failure) => {
            unparsed().fail(&failure);
            return failure.exit;
        }
    };
    let common = cli.common;
    let verbose = common.verbose > 0;
    let printer = Printer { json: common.json, quiet: common.quiet, verbose };
    let url = common.store.as_deref();
    let store = if cli.verb.uses_store() { store_url::resolve(url) } else { Ok(String::new()) };
    let store = match store {
        Ok(store) => store,
        Err(failure) => {
            printer.fail(&failure);
            return failure.exit;
        }
    };
    let session = Session { printer, store, began, connect_timeout: common.connect_timeout };
    let done =
        log::show(printer, common.verbose).and_then(|()| commands::dispatch(cli.verb, &session));
    done.unwrap_or_else(|failure| {
        printer.fail(&failure);
        failure.exit
    })
}

/// The printer for failures without a parsed command line.
fn unparsed() -> Printer {
    let mut ours = std::env::args_os().take_while(|word| word != "--");
    let json = ours.any(|word| word == "--json") || defaults::json_by_environment();
    Printer { json, quiet: false, verbose: false }
}

/// Shows help, or the error in the command line.
fn explain(error: &clap::Error) -> Exit {
    if error.use_stderr() {
        // Without colours, so that `redact` finds every password.
        let text = error.render().to_string();
        let tip = match error.kind() {
            ErrorKind::UnknownArgument => tip(error),
            _ => None,
        };
        let text = format!("{}{}", text.trim_end(), tip.unwrap_or_default());
        match unparsed() {
            printer if printer.json => printer.fail(&Failure::usage(text)),
            _ => Printer::lines(&text),
        }
        return Exit::USAGE;
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let text = error.render();
    let coloured = std::io::stdout().is_terminal() && !plain;
    let text = if coloured { text.ansi().to_string() } else { text.to_string() };
    answered(Printer::answer_bytes_if_read(text.as_bytes()))
}

/// A suggestion for an argument that this verb does not know: a name that begins with a dash, or a
/// command, which `try` does not run.
fn tip(error: &clap::Error) -> Option<String> {
    let command = cli::command();
    let mut words = std::env::args_os().skip(1);
    let verb = words.find_map(|word| command.find_subcommand(word).cloned())?;
    verb.get_positionals().find(|arg| arg.get_id() == "name")?;
    let verb = verb.get_name();
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => return None,
    };
    if unknown.starts_with('-') {
        let rest = if verb == "run" { " COMMAND" } else { "" };
        return Some(format!(
            "\n\nA name that begins with \"-\" goes behind \"--\": holdline {verb} -- -name{rest}"
        ));
    }
    (verb == "try").then(|| {
        "\n\nTo run a command if the lock is free: holdline run --no-wait NAME -- COMMAND"
            .to_owned()
    })
}

/// The exit code of a verb that only prints.
fn answered(printed: Result<bool, Failure>) -> Exit {
    printed.map_or_else(
        |failure| {
            unparsed().fail(&failure);
            failure.exit
        },
        |_| Exit::DONE,
    )
}

/// Ends the program, and with it the command, on a panic in any thread: a lock that is not renewed
/// or watched is worse than none.
fn end_at_a_bug() {
    std::panic::set_hook(Box::new(|info| {
        let info = info.to_string().replace('\n', " ");
        // Some dependencies panic when no file descriptor is free.
        let failure = if info.contains("Too many open files") {
            let error = std::io::Error::from(rustix::io::Errno::MFILE);
            Failure::resource_shortage("cannot go on", &error)
        } else {
            None
        };
        let failure = failure.unwrap_or_else(|| {
            let message = format!("this is a bug, please report it: {info}");
            Failure::new(Exit::INTERNAL, "internal", message)
        });
        unparsed().fail(&failure);
        Printer::flush();
        std::process::exit(failure.exit.0.into());
    }));
}
