//! Runs seeds, and tells the story of the first that breaks a rule.

use holdline_sim::{Bug, Class, Config, Report, Stats, run};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "\
holdline-sim: seeded simulation of locks under faults

  --seeds N        run so many seeds (300)
  --from S         begin with this seed (0)
  --seed S         run this seed only
  --verbose        print the whole story of each seed
  --class NAME     Faults, Wipes or Jumps, instead of what the seed chooses
  --bug NAME       plant a mistake: see README.md
  --exclusion      demand exclusion also where it is not promised";

struct Options {
    from: u64,
    seeds: u64,
    verbose: bool,
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
    let mut options = Options { from: 0, seeds: 300, verbose: false, config: Config::default() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => options.seeds = number(args.next())?,
            "--from" => options.from = number(args.next())?,
            "--seed" => (options.from, options.seeds) = (number(args.next())?, 1),
            "--verbose" => options.verbose = true,
            "--exclusion" => options.config.exclusion_anyway = true,
            "--bug" => options.config.bug = Some(named(args.next(), &Bug::ALL)?),
            "--class" => {
                let all = [Class::Faults, Class::Wipes, Class::Jumps];
                options.config.class = Some(named(args.next(), &all)?);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

/// Runs a broken seed again to tell its story: all of it, or its end.
fn tell(config: Config, report: &Report, verbose: bool) {
    let Some(violation) = &report.violation else { return };
    let again = run(Config { keep_trace: true, ..config });
    let all = again.trace.len();
    let shown = if verbose { 0 } else { all.saturating_sub(60) };
    println!("{}", again.trace.first().map_or("", String::as_str));
    println!("... {shown} lines before; --verbose prints them ...");
    for line in again.trace.iter().skip(shown.max(1)) {
        println!("{line}");
    }
    let (seed, class) = (report.seed, report.class);
    println!("\nseed {seed} ({class:?}) broke `{}`: {}", violation.invariant, violation.what);
    let class = config.class.map_or(String::new(), |class| format!(" --class {class:?}"));
    let bug = config.bug.map_or(String::new(), |bug| format!(" --bug {bug:?}"));
    let exclusion = if config.exclusion_anyway { " --exclusion" } else { "" };
    println!(
        "replay it exactly: cargo run --release -p holdline-sim -- \
         --seed {seed}{class}{bug}{exclusion} --verbose"
    );
    if again.trace_hash != report.trace_hash {
        println!("THE REPLAY DIFFERS, which is a bug of the simulation itself");
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
            println!("{line}");
        }
        if options.verbose {
            println!("seed {seed}: trace {:016x}, {:?}", report.trace_hash, report.stats);
        }
    }
    println!("{} seeds held, in {:.1} s: {total:?}", options.seeds, start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
