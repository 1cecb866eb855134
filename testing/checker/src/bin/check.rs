//! Prints the verdict of the rules on a history file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use holdline_checker::{Expect, Fences, Handoff, History, check};

/// Check a history of a lock system: did every holder hold rightly?
///
/// Prints a table of all rules, and for each violation the events that prove it. Exits with 0 if
/// every rule that applies passes, with 1 if one fails or could not be judged, and with 2 if the
/// history or the flags cannot be read.
///
/// Flags change what is expected; --expect reads the same from a JSON file, and flags win over it.
#[derive(Debug, Parser)]
#[command(name = "holdline-check", version)]
#[allow(clippy::struct_excessive_bools)] // Each is a flag.
struct Args {
    /// The history: one JSON event per line.
    #[arg(required_unless_present = "print_expect")]
    history: Option<PathBuf>,
    /// A JSON file with expectations, as --print-expect shows them.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Print the expectations in use as JSON instead of checking.
    #[arg(long)]
    print_expect: bool,
    /// The capacity of all locks, or of one as NAME=N. May be given more than once.
    #[arg(long, value_name = "[NAME=]N")]
    capacity: Vec<String>,
    /// How good the store's fencing tokens are.
    #[arg(long, value_enum)]
    fences: Option<Quality>,
    /// Waiters are served in order.
    #[arg(long)]
    fifo: bool,
    /// Nothing was broken in this run: no lock and no update may be lost.
    #[arg(long)]
    calm: bool,
    /// A live holder that no fault touches keeps its lock.
    #[arg(long)]
    keeps_leases: bool,
    /// The client does not notify its user of a lost lock.
    #[arg(long)]
    no_loss_signal: bool,
    /// The history has no renewals, because a library does them by itself.
    #[arg(long)]
    hidden_renewals: bool,
    /// The fewest grants that make a run count.
    #[arg(long, value_name = "N")]
    min_acquires: Option<usize>,
    /// The fewest lost locks that make a run count.
    #[arg(long, value_name = "N")]
    min_expiries: Option<usize>,
    /// The smallest share of contended attempts, in percent.
    #[arg(long, value_name = "PERCENT")]
    min_contention: Option<u32>,
    /// The bound on hand-offs in milliseconds, for 99 of 100 of them.
    #[arg(long, value_name = "MS")]
    handoff: Option<u64>,
    /// How soon a fresh client acquires every lock after the last heal, in milliseconds.
    #[arg(long, value_name = "MS")]
    liveness: Option<u64>,
    /// How late a request may still reach the store, in milliseconds.
    #[arg(long, value_name = "MS")]
    late: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Quality {
    None,
    BestEffort,
    Strict,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    let expect = expectations(args)?;
    if args.print_expect {
        let text = serde_json::to_string_pretty(&expect).map_err(|e| e.to_string())?;
        println!("{text}");
        return Ok(true);
    }
    let Some(path) = &args.history else { return Ok(true) };
    let history = History::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let report = check(&history, &expect);
    println!("{report}");
    Ok(report.ok())
}

fn expectations(args: &Args) -> Result<Expect, String> {
    let mut expect = match &args.expect {
        None => Expect::default(),
        Some(path) => {
            let text = std::fs::read(path).map_err(|e| format!("{}: {e}.", path.display()))?;
            serde_json::from_slice(&text).map_err(|e| format!("{}: {e}.", path.display()))?
        }
    };
    for capacity in &args.capacity {
        let (name, number) = capacity.rsplit_once('=').unwrap_or(("", capacity));
        let number = number.parse().map_err(|_| {
            format!("--capacity {capacity}: give a number, or NAME=NUMBER for one lock.")
        })?;
        if name.is_empty() {
            expect.capacity = number;
        } else {
            expect.capacities.insert(name.to_owned(), number);
        }
    }
    expect.fences = match args.fences {
        None => expect.fences,
        Some(Quality::None) => Fences::None,
        Some(Quality::BestEffort) => Fences::BestEffort,
        Some(Quality::Strict) => Fences::Strict,
    };
    expect.fifo |= args.fifo;
    expect.calm |= args.calm;
    expect.keeps_leases |= args.keeps_leases;
    expect.tells_loss &= !args.no_loss_signal;
    expect.renewals_recorded &= !args.hidden_renewals;
    expect.min_acquires = args.min_acquires.unwrap_or(expect.min_acquires);
    expect.min_expiries = args.min_expiries.unwrap_or(expect.min_expiries);
    expect.min_contention_percent = args.min_contention.unwrap_or(expect.min_contention_percent);
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    let handoff = args.handoff.map(|ms| Handoff { bound_ns: ns(ms), percent: 99 });
    expect.handoff = handoff.or(expect.handoff);
    expect.liveness_ns = args.liveness.map(ns).or(expect.liveness_ns);
    expect.late_ns = args.late.map_or(expect.late_ns, ns);
    Ok(expect)
}
