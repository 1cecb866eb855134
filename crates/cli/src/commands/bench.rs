//! `holdline bench`: experiments with stores and ways of waiting.

use crate::child;
use crate::context::Session;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::{Level, Printer, redact_word};
use crate::signals;
use clap::{Args, builder::PossibleValuesParser};
use holdline_experiments::{Cell, Error, Host, Mode, PRESETS, Plan, Preset, Progress, Report};
use holdline_experiments::{Scenario, run, work};
use rustix::process::Signal;
use serde_json::json;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ABOUT: &str = "\
Every store is measured with every way to wait and every load, in turns, in several rounds.

STORE is a URL (redis://HOST, etcd://HOST:PORT, sqlite:PATH, ...), or memory, or file (a new
one), or servers that are started for the run, if they are installed, and stopped after it:
redis, redis-five (a quorum), etcd, etcd-three, zookeeper, zookeeper-three, postgres, mariadb,
mysql. Without STORE it is the store of --store or HOLDLINE_STORE; without those, memory and file.

Ways to wait (--mode):
  listen         has a place in the line, and is told when its turn has come
  listen-shared  the same; the clients of a process share one connection and one place
  handoff        the same; a process hands the lock on to its own waiters, for at most 50 ms
  listen-unfair  no place: all waiters are told, the fastest gets it (Redis, layout of Redisson)
  poll           has a place in the line, and asks whether its turn has come
  poll-unfair    no place: asks, and gets the lock if it is free at that moment
  poll-string    the same with a bare key, SET NX PX (Redis): what `polling` mostly means
  A way that polls has a schedule: poll:fixed=50ms, poll:shrinking=50ms (1 ms less each time,
  down to 10), poll:jittered=5ms..100ms (doubles, spread by half). Default: fixed=50ms.

What a store does not have is not run, and its row says why. Without a delay a load is between
processes of one machine; --delay puts a proxy before every server.

Read the shares beside the speed: a way to wait that gives all locks to a few lucky clients looks
fast. The report calls that `starves`.";

const EXAMPLES: &str = "\
Examples:
  holdline bench --quick                           no server, some seconds
  holdline bench redis etcd --clients 10,100       starts both, compares listening and polling
  holdline bench --preset polling --html a.html    polling or listening? 8 minutes, a report
  holdline bench redis://cache:6379 --mode listen,poll-string --delay 0,5ms --csv a.csv
  holdline bench redis etcd zookeeper --scenario crash --lease 5s
";

/// The refusal of a picture.
const NO_RATE: &str = "--svg shows locks a second, of which this run has none";

/// Compare stores and ways of waiting on this machine
#[derive(Args, Debug)]
#[command(long_about = format!("Measure stores and ways to wait beside each other\n\n{ABOUT}"))]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{}", presets()))]
pub(crate) struct Bench {
    /// Stores: URLs, memory, file, or servers to start: redis, etcd, zookeeper, postgres, ...
    #[arg(value_name = "STORE")]
    stores: Vec<String>,

    /// A predefined experiment, with stores and loads of its own (see below)
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(names()),
          conflicts_with_all = ["stores", "scenario", "mode", "clients", "processes", "names",
                                "hold", "delay", "rate", "lease", "quick"])]
    preset: Option<String>,

    /// Two rounds of half a second: for a first impression, not for a decision
    #[arg(long, conflicts_with_all = ["rounds", "time"])]
    quick: bool,

    /// What the clients do: mutex, rwlock=10%, semaphore=4, burst, crash, leader
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "mutex")]
    scenario: Vec<Scenario>,

    /// Ways of waiting
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "listen,poll,poll-unfair"
    )]
    mode: Vec<Mode>,

    /// How many clients compete; each has its own connections
    /// [default: 4,16]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    clients: Vec<usize>,

    /// How many processes they are in
    /// [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    processes: Vec<usize>,

    /// How many names they use: client n uses name n modulo this [default: 1]
    #[arg(long, value_name = "N")]
    names: Option<usize>,

    /// How long each client holds the lock [default: 1ms]
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = duration::parse)]
    hold: Vec<Duration>,

    /// Extra delay of a round trip to the servers
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "0",
          value_parser = duration::parse)]
    delay: Vec<Duration>,

    /// Request this many locks per second, over all clients, instead of as many as possible
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// The lease of the locks
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    lease: Duration,

    /// How often each combination is measured; results are medians [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// How long a round lasts [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    time: Option<Duration>,

    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write a page with charts, which can be read offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the chart of locks per second and shares, for the first load, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Is a process of another `holdline bench`
    #[arg(long, hide = true)]
    worker: bool,
}

fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

fn presets() -> String {
    let line = |preset: &Preset| {
        let minutes =
            format!("{} minute{}", preset.minutes, if preset.minutes == 1 { "" } else { "s" });
        format!("  {:<12} {} ({minutes})", preset.name, preset.about)
    };
    let lines = PRESETS.iter().map(line);
    format!("Known experiments (--preset):\n{}", lines.collect::<Vec<_>>().join("\n"))
}

impl Bench {
    /// Whether it measures the store of `--store`, if there is one.
    pub(crate) fn uses_store(&self) -> bool {
        !self.worker && self.preset.is_none() && self.stores.is_empty()
    }

    pub(crate) fn run(self: Box<Self>, session: &Session) -> Result<Exit, Failure> {
        if self.worker {
            work(stdin().lock(), stdout().lock()).map_err(|error| failure(&error))?;
            return Ok(Exit::DONE);
        }
        // Checked now, and not after everything has been measured.
        for file in self.csv.iter().chain(&self.html).chain(&self.svg) {
            let opened = File::options().create(true).append(true).open(file);
            opened.map_err(|error| unwritten(file, &error))?;
        }
        let plan = self.plan(&session.store)?;
        if self.svg.is_some() && !plan.cells.iter().any(Cell::has_rate) {
            return Err(Failure::usage(NO_RATE));
        }
        let printer = session.printer;
        let told = run(&plan, &host()?, |progress| tell(printer, progress));
        if printer.is_live() {
            Printer::live(|_| String::new());
        }
        let report = told.map_err(|error| failure(&error))?;
        // What was measured for minutes is not lost with a full disk, or without a reader.
        let answered = if printer.json {
            Printer::answer(&report.json().to_string())
        } else {
            Printer::answer(report.table().trim_end())
        };
        self.write(&report)?;
        answered?;
        match report.failure() {
            Some(error) => Err(failure(&error)),
            None => Ok(Exit::DONE),
        }
    }

    fn plan(&self, store: &str) -> Result<Plan, Failure> {
        let mut plan = match self.preset.as_deref().and_then(Preset::named) {
            Some(preset) => preset.plan(),
            None => self.cross(store)?,
        };
        if self.quick {
            (plan.rounds, plan.time) = (2, Duration::from_millis(500));
        }
        plan.rounds = self.rounds.unwrap_or(plan.rounds);
        plan.time = self.time.unwrap_or(plan.time);
        Ok(plan)
    }

    /// The values, or the default. Crashes have one holder and one waiter, and no choice.
    fn or<T: Copy>(&self, values: &[T], default: &[T], flag: &str) -> Result<Vec<T>, Failure> {
        match (self.crashes(), values.is_empty()) {
            (true, true) => Ok(default[..1].to_vec()),
            (false, true) => Ok(default.to_vec()),
            (false, false) => Ok(values.to_vec()),
            (true, false) => Err(Failure::usage(format!(
                "--{flag} means nothing to crash and leader, which have one holder and one waiter"
            ))),
        }
    }

    fn crashes(&self) -> bool {
        self.scenario.iter().any(|scenario| matches!(scenario, Scenario::Crash | Scenario::Leader))
    }

    /// The plan with every combination.
    fn cross(&self, store: &str) -> Result<Plan, Failure> {
        let (names, one) = (Vec::from_iter(self.names), Duration::from_millis(1));
        let names = self.or(&names, &[1], "names")?[0];
        let holds = self.or(&self.hold, &[one], "hold")?;
        let processes = self.or(&self.processes, &[1], "processes")?;
        let clients = self.or(&self.clients, &[4, 16], "clients")?;
        self.or(&Vec::from_iter(self.rate), &[0.0], "rate")?;
        self.or(&Vec::from_iter(self.time), &[one], "time")?;
        let stores = match (self.stores.is_empty(), store) {
            (true, "") => vec!["memory".to_owned(), "file".to_owned()],
            (true, store) => vec![store.to_owned()],
            (false, _) => self.stores.clone(),
        };
        let mut plan = Plan {
            title: "Locks: stores and ways to wait".to_owned(),
            cells: Vec::new(),
            rounds: 3,
            time: Duration::from_secs(2),
        };
        let cell = Cell {
            scenario: Scenario::Mutex,
            store: String::new(),
            mode: self.mode[0],
            clients: 0,
            processes: 1,
            names,
            hold: Duration::ZERO,
            delay: Duration::ZERO,
            rate: self.rate,
            lease: self.lease,
        };
        let mut cells = vec![cell];
        cells = each(&cells, &self.scenario, |cell, scenario| cell.scenario = *scenario);
        cells = each(&cells, &holds, |cell, hold| cell.hold = *hold);
        cells = each(&cells, &self.delay, |cell, delay| cell.delay = *delay);
        cells = each(&cells, &processes, |cell, processes| cell.processes = *processes);
        cells = each(&cells, &clients, |cell, clients| cell.clients = *clients);
        cells = each(&cells, &stores, |cell, store| cell.store.clone_from(store));
        plan.cells = each(&cells, &self.mode, |cell, mode| cell.mode = *mode);
        Ok(plan)
    }

    /// Writes the files that were asked for.
    fn write(&self, report: &Report) -> Result<(), Failure> {
        let svg = self.svg.as_ref().and_then(|file| Some((file, report.svg()?)));
        let no_picture = self.svg.is_some() && svg.is_none();
        let csv = self.csv.as_ref().map(|file| (file, report.csv()));
        let html = self.html.as_ref().map(|file| (file, report.html()));
        for (file, text) in [csv, html, svg].into_iter().flatten() {
            fs::write(file, text).map_err(|error| unwritten(file, &error))?;
        }
        // If all failed, that is the failure.
        if no_picture && report.failure().is_none() {
            return Err(Failure::usage(NO_RATE));
        }
        Ok(())
    }
}

/// Every cell with each of these values.
fn each<T>(cells: &[Cell], values: &[T], set: impl Fn(&mut Cell, &T)) -> Vec<Cell> {
    let with = |cell: &Cell, value: &T| {
        let mut cell = cell.clone();
        set(&mut cell, value);
        cell
    };
    cells.iter().flat_map(|cell| values.iter().map(|value| with(cell, value))).collect()
}

/// The parts of this program that the experiments use.
fn host() -> Result<Host, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Exit::INTERNAL, "internal", format!("this program is not found: {error}"))
    })?;
    let args = std::env::args_os().skip(1);
    // Whole words: a password may contain a quotation mark.
    let words = args.map(|word| redact_word(&word.to_string_lossy()));
    Ok(Host {
        worker: ["bench", "--worker"].map(OsString::from).into_iter().fold(
            vec![program.into_os_string()],
            |mut words, word| {
                words.push(word);
                words
            },
        ),
        wrap: |argv| child::command_that_ends_with_us(Path::new(&argv[0]), argv, false),
        command: format!("holdline {}", words.collect::<Vec<_>>().join(" ")),
        ending_signals: signals::heeded(&[Signal::INT, Signal::TERM, Signal::HUP]),
    })
}

fn tell(printer: Printer, progress: &Progress) {
    let Progress { done, all, left, what } = progress;
    let line = match all {
        0 => what.clone(),
        _ => format!("{done}/{all}, {} left: {what}", duration::show(*left)),
    };
    if printer.is_live() {
        Printer::live(|_| format!("holdline: {line}"));
    } else {
        let fields = json!({ "done": done, "all": all, "seconds_left": left.as_secs_f64() });
        printer.say(Level::Verbosely, "progress", &line, fields);
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Usage(message) => Failure::usage(message),
        Error::Failed(message) => Failure::new(Exit::STORE, "store", message),
        Error::Stopped(signal) => {
            Failure::new(Exit::signal(*signal), "interrupted", error.to_string()).expected()
        }
    }
}

fn unwritten(file: &Path, error: &std::io::Error) -> Failure {
    let message = format!("{} cannot be written: {error}", file.display());
    Failure::new(Exit::OUTPUT, "output", message)
}
