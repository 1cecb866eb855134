//! The simulation's program: runs seeds, and prints the trace of the first that violates an
//! invariant.

use holdline_sim::{Bug, Class, Config, INVARIANTS, Report, Stats, run};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "\
holdline-sim: seeded simulation of locks under faults

  --seeds N        run so many seeds (300)
  --from S         begin with this seed (0)
  --seed S         run this seed only
  --verbose        print the whole story of each seed
  --class NAME     Faults, Wipes, Jumps, Quorum, QuorumWipes, QuorumJumps or Entries, instead of
                   what the seed chooses
  --bug NAME       plant a mistake: see README.md
  --exclusion      demand exclusion also where it is not promised
  --bad N          let so many servers forget or jump, instead of what the seed chooses
  --only RULE      judge by one invariant alone
  --table          print how many seeds each invariant needs for each planted mistake";

/// Prints a line; a closed stdout is no error.
macro_rules! say {
    ($($what:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($what)*);
    }};
}

struct Options {
    from: u64,
    seeds: u64,
    verbose: bool,
    table: bool,
    config: Config,
}

fn number(value: Option<String>) -> Result<u64, String> {
    let value = value.ok_or("a number is missing")?;
    value.parse().map_err(|_| format!("{value} is not a number"))
}

fn named<T: std::fmt::Debug + Copy>(value: Option<String>, all: &[T]) -> Result<T, String> {
    let value = value.ok_or("a name is missing")?;
    let found = all.iter().find(|one| format!("{one:?}") == value);
    found.copied().ok_or_else(|| format!("{value} is not one of {all:?}"))
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let config = Config::default();
    let mut options = Options { from: 0, seeds: 300, verbose: false, table: false, config };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => options.seeds = number(args.next())?,
            "--from" => options.from = number(args.next())?,
            "--seed" => (options.from, options.seeds) = (number(args.next())?, 1),
            "--verbose" => options.verbose = true,
            "--exclusion" => options.config.exclusion_anyway = true,
            "--table" => options.table = true,
            "--only" => {
                let rule = args.next().unwrap_or_default();
                let found = INVARIANTS.iter().find(|name| **name == rule);
                options.config.only = Some(found.ok_or(format!("no invariant {rule:?}"))?);
            }
            "--bad" => options.config.bad = Some(number(args.next())? as usize),
            "--bug" => options.config.bug = Some(named(args.next(), &Bug::ALL)?),
            "--class" => {
                options.config.class = Some(named(args.next(), &Class::ALL)?);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

/// Runs a failed seed again and prints its trace: all of it, or its end.
fn tell(config: Config, report: &Report, verbose: bool) {
    let Some(violation) = &report.violation else { return };
    let again = run(Config { keep_trace: true, ..config });
    let all = again.trace.len();
    let shown = if verbose { 0 } else { all.saturating_sub(60) };
    say!("{}", again.trace.first().map_or("", String::as_str));
    say!("... {shown} lines before; --verbose prints them ...");
    for line in again.trace.iter().skip(shown.max(1)) {
        say!("{line}");
    }
    let (seed, class) = (report.seed, report.class);
    say!("\nseed {seed} ({class:?}) broke `{}`: {}", violation.invariant, violation.what);
    let class = config.class.map_or(String::new(), |class| format!(" --class {class:?}"));
    let bug = config.bug.map_or(String::new(), |bug| format!(" --bug {bug:?}"));
    let exclusion = if config.exclusion_anyway { " --exclusion" } else { "" };
    let bad = config.bad.map_or(String::new(), |bad| format!(" --bad {bad}"));
    let only = config.only.map_or(String::new(), |only| format!(" --only {only}"));
    say!(
        "replay it exactly: cargo run --release -p holdline-sim -- \
         --seed {seed}{class}{bug}{bad}{exclusion}{only} --verbose"
    );
    if again.trace_hash != report.trace_hash {
        say!("THE REPLAY DIFFERS, which is a bug of the simulation itself");
    }
}

/// The number of seeds that one invariant, or all, need to catch a bug. A bug may also break the
/// kernel's arithmetic before any invariant detects it.
fn needed(options: &Options, bug: Bug, only: Option<&'static str>) -> String {
    for seed in options.from..options.from + options.seeds {
        let config = Config { seed, bug: Some(bug), only, ..options.config };
        match std::panic::catch_unwind(|| run(config).violation.is_some()) {
            Ok(false) => {}
            Ok(true) => return (seed - options.from + 1).to_string(),
            Err(_) => return "panics".to_owned(),
        }
    }
    "-".to_owned()
}

/// Prints the number of seeds that each invariant, on its own, needs to catch each planted bug.
fn table(options: &Options) {
    std::panic::set_hook(Box::new(|_| {}));
    say!("| planted mistake | all | {} |", INVARIANTS.join(" | "));
    say!("| --- | --- |{}", " --- |".repeat(INVARIANTS.len()));
    for bug in Bug::ALL {
        let rules = std::iter::once(None).chain(INVARIANTS.map(Some));
        let row: Vec<_> = rules.map(|only| needed(options, bug, only)).collect();
        say!("| `{bug:?}` | {} |", row.join(" | "));
    }
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(64);
        }
    };
    if options.table {
        table(&options);
        return ExitCode::SUCCESS;
    }
    let (start, mut total) = (Instant::now(), Stats::default());
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let config = Config { seed, ..options.config };
        let report = run(Config { keep_trace: options.verbose, ..config });
        total.add(&report.stats);
        if report.violation.is_some() {
            tell(config, &report, options.verbose);
            return ExitCode::FAILURE;
        }
        for line in &report.trace {
            say!("{line}");
        }
        if options.verbose {
            say!("seed {seed}: trace {:016x}, {:?}", report.trace_hash, report.stats);
        }
    }
    say!("{} seeds held, in {:.1} s: {total:?}", options.seeds, start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
