//! The cost of the program: its start compared with flock(1), and its waiting.

use crate::machine::{cpu_of, output};
use crate::report::{Cell, Report, Table, ratio};
use crate::stats::{Spread, seconds};
use crate::target::{Target, Targets, fresh};
use crate::{Common, Failure, runtime};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The highest accepted ratio of `holdline run` to flock(1).
const LIMIT: f64 = 3.0;
/// The share of a core that a waiting `holdline run` may use.
const WAITING: f64 = 0.005;
/// The number of runs of each program.
const RUNS: usize = 50;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The program `holdline`. Default: built with optimisation, and taken from beside this one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(crate) fn run(
    common: &Common,
    targets: &Targets,
    options: &Options,
    report: &mut Report,
) -> Result<(), Failure> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => built()?,
    };
    let columns = ["store", "true", "flock FILE true", "holdline run x -- true", "ratio to flock"];
    let mut starts = Table::new(format!("Start, {RUNS} runs each, in turns"), &columns);
    let mut waits = Table::new("A waiting `holdline run`", &["store", "over", "of one core"]);
    for target in targets.between_processes() {
        starts.row(start(&program, target, targets, report)?);
        waits.row(wait(&program, common, target, report)?);
    }
    report.table(starts);
    report.table(waits);
    if targets.between_processes().next().is_none() {
        Report::skip("the program", "a store in memory is not shared by processes");
    }
    Ok(())
}

/// Builds the program in the same way as this one.
pub(crate) fn built() -> Result<PathBuf, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build =
        ["build", "--release", "--quiet", "--package", "holdline-cli", "--features", "full"];
    if !Command::new(cargo).args(build).status().is_ok_and(|status| status.success()) {
        return Err("the program could not be built; build it, and name it with --program".into());
    }
    let program = std::env::current_exe()?.with_file_name("holdline");
    if !program.is_file() {
        let message =
            format!("{} is not there; name the program with --program", program.display());
        return Err(message.into());
    }
    Ok(program)
}

fn start(
    program: &Path,
    target: &Target,
    targets: &Targets,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let file = targets.folder.path().join("flock");
    std::fs::write(&file, "")?;
    let flock = output("flock", &["--version"]).is_some();
    let name = fresh("startup");
    let (mut bare, mut theirs, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=RUNS {
        let mut times = [timed(&mut Command::new("true"))?, 0.0, 0.0];
        if flock {
            times[1] = timed(Command::new("flock").arg(&file).arg("true"))?;
        }
        times[2] = timed(&mut holdline(program, target, &name, &["true"]))?;
        if round > 0 {
            // The first run is a warm-up.
            bare.push(times[0]);
            theirs.push(times[1]);
            ours.push(times[2]);
        }
    }
    let what = format!("{}: `holdline run x -- true` costs at most {LIMIT} x flock", target.label);
    let median = |times: &[f64]| Spread::of(times.iter().copied()).unwrap_or_default().median;
    let ratio_to_flock = flock.then(|| median(&ours) / median(&theirs));
    // flock(1) works on a local file; servers are shown beside it, but not judged by it.
    match ratio_to_flock {
        _ if target.file().is_none() => {}
        Some(times) => report.check(what, ratio(times), times <= LIMIT),
        None => report.unchecked(what, "there is no flock(1); it is part of util-linux"),
    }
    Ok(vec![
        target.label.as_str().into(),
        Cell::times(bare),
        if flock { Cell::times(theirs) } else { Cell::none() },
        Cell::times(ours),
        ratio_to_flock.map_or_else(Cell::none, Cell::ratio),
    ])
}

fn holdline(program: &Path, target: &Target, name: &str, job: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env("HOLDLINE_STORE", &target.url).env_remove("HOLDLINE_NAME");
    command.args(["run", name, "--"]).args(job).stdin(Stdio::null());
    command
}

/// The duration of a command, in seconds.
pub(crate) fn timed(command: &mut Command) -> Result<f64, Failure> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let time = seconds(start.elapsed());
    if status.success() { Ok(time) } else { Err(format!("{command:?} failed: {status}").into()) }
}

/// The share of a core that a `holdline run` uses while another one has the lock.
fn wait(
    program: &Path,
    common: &Common,
    target: &Target,
    report: &mut Report,
) -> Result<Vec<Cell>, Failure> {
    let runtime = runtime()?;
    let client = runtime.block_on(target.open())?;
    let name = fresh("waiting");
    let look = || runtime.block_on(client.inspect(&name));
    let _holder = Running(holdline(program, target, &name, &["sleep", "600"]).spawn()?);
    until(|| Ok(!look()?.holders.is_empty()))?;
    let waiter = Running(holdline(program, target, &name, &["true"]).spawn()?);
    until(|| Ok(!look()?.waiters.is_empty()))?;
    std::thread::sleep(Duration::from_millis(500)); // the start is over
    let over = Duration::from_secs_f64(common.seconds(10.0));
    let (start, before) = (Instant::now(), cpu_of(waiter.0.id()));
    std::thread::sleep(over);
    let (wall, after) = (start.elapsed(), cpu_of(waiter.0.id()));
    let what = format!("{}: a waiting `holdline run` uses less than 0.5 % of a core", target.label);
    let Some((before, after)) = before.zip(after) else {
        report.unchecked(what, "this system does not say what a process uses");
        return Ok(vec![target.label.as_str().into(), Cell::none(), Cell::none()]);
    };
    let part = seconds(after.saturating_sub(before)) / seconds(wall);
    report.check(what, format!("{:.3} %", part * 100.0), part < WAITING);
    Ok(vec![target.label.as_str().into(), Cell::time(seconds(wall)), Cell::percent(part)])
}

/// Polls every few milliseconds, for ten seconds at most.
fn until(mut done: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    for _ in 0..2_000 {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err("`holdline run` did not get, or did not wait for, the lock within ten seconds".into())
}

/// A process that is killed and waited for when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
