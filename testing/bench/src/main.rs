//! The benchmarks of holdline: `cargo xtask bench SUBCOMMAND`.
//!
//! Every figure is a median over several rounds, shown with the lowest and the highest. Figures to
//! be compared are measured in the same run, interleaved, and given as a ratio, because ratios are
//! meaningful on other machines. The requirements are listed at the end; if one is not met, the
//! exit code is 1.

mod all;
mod compete;
mod counting_store;
mod handoff;
mod kernel;
mod machine;
mod peers;
mod processes;
mod recorded;
mod redis;
mod renewals;
mod report;
mod startup;
mod stats;
mod target;
mod tasks;
mod uncontended;
mod without;
mod worker;

use clap::{Args, Parser, Subcommand};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use target::Targets;

/// The reason why a run ended early.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Benchmarks of holdline: figures with their spread, ratios, and what must hold.
#[derive(Debug, Parser)]
#[command(name = "holdline-bench", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    common: Common,
}

/// What every subcommand takes.
#[derive(Clone, Debug, Args)]
struct Common {
    /// A store to measure, by URL; may be given several times. Default: memory, a new file, and
    /// Redis (that of HOLDLINE_TEST_REDIS, or one that is started for the run).
    #[arg(long = "store", global = true, value_name = "URL")]
    stores: Vec<String>,
    /// Makes a round trip to a Redis server so much longer: a number and ms, as in 2ms.
    #[arg(long, global = true, value_name = "TIME", value_parser = milliseconds)]
    link: Option<Duration>,
    /// Writes all figures to this file as well.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many rounds each median is taken over.
    #[arg(long, global = true, default_value_t = 5)]
    rounds: usize,
    /// Shorter rounds: enough to see that it works.
    #[arg(long, global = true)]
    quick: bool,
}

impl Common {
    /// How many rounds: at least one.
    fn rounds(&self) -> usize {
        self.rounds.max(1)
    }

    /// How long one round lasts, in seconds.
    fn seconds(&self, usual: f64) -> f64 {
        if self.quick { usual / 3.0 } else { usual }
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// The kernel's operations, without any store.
    Kernel,
    /// Acquire and release by one task that nobody competes with.
    Uncontended,
    /// 64 tasks of one process on one name and on 64 names.
    Tasks,
    /// 8 processes on one name, and a counter that only the lock protects.
    Processes,
    /// From the release in one process, or its kill -9, to the acquisition in another.
    Handoff,
    /// The program's start, against flock(1), and what its waiting costs.
    Startup(startup::Options),
    /// 100,000 held locks in one process.
    Renewals(renewals::Options),
    /// Updates by version instead of under a lock, and one owner for each key.
    Without,
    /// The ratios to the bare idioms, against the recorded ones: whether something became slower.
    Check(recorded::Options),
    /// Beside other libraries' locks, each in its own language, on the same servers.
    Peers(peers::Options),
    /// All of it, quickly, with the list of what must hold.
    All(startup::Options),
    /// One process of a measurement, started by the others.
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("holdline-bench: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Runs the subcommand, and returns whether all requirements are met.
fn run(cli: Cli) -> Result<bool, Failure> {
    let Cli { what, common } = cli;
    let what = match what {
        What::Worker(options) => return worker::run(&options).map(|()| true),
        what => what,
    };
    let targets = || Targets::new(&common.stores, common.link);
    let about = machine::about();
    machine::print(&about);
    let mut report = Report::default();
    match &what {
        What::Kernel => kernel::run(&common, &mut report),
        What::Uncontended => uncontended::run(&common, &targets()?, &mut report)?,
        What::Tasks => tasks::run(&common, &targets()?, &mut report)?,
        What::Processes => processes::run(&common, &targets()?, &mut report)?,
        What::Handoff => handoff::run(&common, &targets()?, &mut report)?,
        What::Startup(options) => startup::run(&common, &targets()?, options, &mut report)?,
        What::Renewals(options) => renewals::run(&common, &targets()?, options, &mut report)?,
        What::Without => without::run(&common, &targets()?, &mut report)?,
        What::Check(options) => recorded::run(&common, &targets()?, options, &mut report)?,
        What::Peers(options) => peers::run(&common, options, &mut report)?,
        What::All(options) => all::run(&common, &targets()?, options, &mut report)?,
        What::Worker(_) => {}
    }
    let holds = report.verdict();
    if let Some(path) = &common.json {
        let text = serde_json::to_string_pretty(&report.json(&about))?;
        std::fs::write(path, text + "\n")
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(holds)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix("ms").and_then(|number| number.trim().parse::<f64>().ok());
    let number = number.filter(|number| (0.0..60_000.0).contains(number));
    number.map(|ms| Duration::from_secs_f64(ms / 1e3)).ok_or("a number and ms, as in 2ms".into())
}

/// A runtime like a service's: as many threads as cores.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
