//! The project's program for its own upkeep: `cargo xtask test | servers | tidy | bench | package`.
//!
//! It is a Rust program and not a set of shell scripts so that it behaves the same on every
//! contributor's machine and in CI, and so that it is itself tested.

mod help;
mod package;
mod servers;
mod test;
mod tidy;
mod workspace;

use std::process::{Command, ExitCode};

/// Every error of this program is a sentence: what happened, to what, what to do.
pub(crate) type Outcome<T> = Result<T, String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(64)
        }
    }
}

/// Runs one subcommand. `Ok(false)` means that it ran and found something wrong.
fn dispatch(words: &[&str]) -> Outcome<bool> {
    let asks_help = |rest: &[&str]| rest.iter().any(|word| matches!(*word, "--help" | "-h"));
    match words {
        [] | ["help" | "--help" | "-h"] => Ok(print_help(help::ALL)),
        // Everything after `bench` belongs to the benchmark program, its `--help` too.
        ["bench"] | ["bench", "--help" | "-h"] => Ok(print_help(help::BENCH)),
        ["bench", "--check", rest @ ..] => bench(&[&["check"], rest].concat()),
        ["bench", "models", rest @ ..] => models(rest),
        ["bench", rest @ ..] => bench(rest),
        ["test", rest @ ..] if asks_help(rest) => Ok(print_help(&help::test())),
        ["test", rest @ ..] => test::main(rest),
        ["package", rest @ ..] if asks_help(rest) => Ok(print_help(&help::package())),
        ["package", rest @ ..] => package::main(rest),
        ["tidy", rest @ ..] if asks_help(rest) => Ok(print_help(help::TIDY)),
        ["tidy"] => tidy::main(),
        ["servers", rest @ ..] if rest.is_empty() || asks_help(rest) => {
            Ok(print_help(&help::servers()))
        }
        ["servers", rest @ ..] => servers::main(rest),
        [test::guard::VERB, names @ ..] => Ok(test::guard::main(names)),
        other => Err(format!(
            "I do not know {:?}; `cargo xtask --help` shows what there is.",
            other.join(" ")
        )),
    }
}

fn print_help(text: &str) -> bool {
    println!("{}", text.trim());
    true
}

/// Benchmarks always run optimised: numbers from a debug build mislead.
fn bench(args: &[&str]) -> Outcome<bool> {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "holdline-bench", "--"]).args(args);
    succeeds(&mut command)
}

/// What `bench models` asks of `holdline bench`, unless ARGS say otherwise.
const MODELS: [(&str, &str); 3] = [
    (
        "--mode",
        "listen,poll:fixed,poll:shrinking,poll:jittered,poll-unfair:fixed,poll-unfair:shrinking,\
         poll-unfair:jittered",
    ),
    ("--clients", "4,16,64"),
    ("--hold", "0,1ms,10ms"),
];

/// `holdline bench` with ways to poll beside listening.
fn models(args: &[&str]) -> Outcome<bool> {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package", "holdline-cli", "--features", "full"]);
    command.args(["--", "bench"]).args(args);
    for (flag, value) in MODELS {
        if !args.iter().any(|arg| arg.split('=').next() == Some(flag)) {
            command.args([flag, value]);
        }
    }
    succeeds(&mut command)
}

fn succeeds(command: &mut Command) -> Outcome<bool> {
    let status = command.status().map_err(|e| format!("cargo could not be started: {e}."))?;
    Ok(status.success())
}
