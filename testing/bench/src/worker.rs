//! Worker processes of a measurement, and the handles of their parent.
//!
//! A worker prints `ready`, waits for a line, does its work, and prints its result as one line of
//! JSON. Times are on the library's clock, which all processes of a machine share.

use crate::{Failure, renewals};
use clap::{Args, ValueEnum};
use holdline::{Client, Mutex, clock};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Locks, holds, releases, again.
    Compete,
    /// Locks, and holds until its input ends.
    Hold,
    /// Holds many locks for several leases.
    Renew,
}

/// The order of a worker.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[arg(long)]
    pub(crate) role: Role,
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long, default_value_t = 0)]
    pub(crate) hold_us: u64,
    #[arg(long, default_value_t = 10_000)]
    pub(crate) lease_ms: u64,
    /// Ends after this many locks of each task, or when the time is up.
    #[arg(long, default_value_t = usize::MAX)]
    pub(crate) locks: usize,
    /// The number of tasks.
    #[arg(long, default_value_t = 1)]
    pub(crate) tasks: usize,
    /// The time limit, in seconds.
    #[arg(long, default_value_t = 3600.0)]
    pub(crate) seconds: f64,
    /// A file with a number, to read, raise and write under the lock.
    #[arg(long)]
    pub(crate) counter: Option<PathBuf>,
}

/// One grant, as its holder saw it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) asked: u64,
    pub(crate) got: u64,
    pub(crate) left: u64,
    /// The counter's previous value.
    pub(crate) count: u64,
    /// The number of the task in its process.
    pub(crate) task: usize,
}

impl Grant {
    pub(crate) fn wait(&self) -> f64 {
        self.got.saturating_sub(self.asked) as f64 / 1e9
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match options.role {
        Role::Compete => {
            let grants = runtime.block_on(compete(options))?;
            say(&serde_json::to_string(&grants)?)
        }
        Role::Hold => runtime.block_on(hold(options)),
        Role::Renew => say(&serde_json::to_string(&runtime.block_on(renewals::hold(options))?)?),
    }
}

/// Prints a line and flushes it.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits for a line of the input; returns whether there was one.
pub(crate) fn await_line() -> Result<bool, Failure> {
    Ok(stdin().lock().read_line(&mut String::new())? > 0)
}

fn lock(options: &Options, client: &Client) -> Mutex {
    Mutex::new(client, &options.name).lease(Duration::from_millis(options.lease_ms))
}

async fn compete(options: &Options) -> Result<Vec<Grant>, Failure> {
    let client = holdline::open(&options.url).await?;
    say("ready")?;
    await_line()?;
    let mut tasks = JoinSet::new();
    for task in 0..options.tasks {
        tasks.spawn(one(options.clone(), client.clone(), task));
    }
    let mut grants = Vec::new();
    while let Some(task) = tasks.join_next().await {
        grants.extend(task??);
    }
    client.settle().await;
    grants.sort_by_key(|grant: &Grant| grant.got);
    Ok(grants)
}

async fn one(options: Options, client: Client, task: usize) -> Result<Vec<Grant>, Failure> {
    let lock = lock(&options, &client);
    let end = clock::now().after(Duration::from_secs_f64(options.seconds));
    let hold = Duration::from_micros(options.hold_us);
    let mut grants = Vec::new();
    while grants.len() < options.locks {
        let asked = clock::now();
        if asked >= end {
            break;
        }
        let guard = lock.lock().await?;
        let got = clock::now().0;
        let count = options.counter.as_deref().map_or(Ok(0), raise)?;
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        let (token, left) = (guard.token(), clock::now().0);
        guard.unlock().await?;
        grants.push(Grant { token, asked: asked.0, got, left, count, task });
    }
    Ok(grants)
}

/// Increments a counter with a read and a write, which goes wrong if two do it at once.
fn raise(file: &Path) -> Result<u64, Failure> {
    let count: u64 = std::fs::read_to_string(file)?.trim().parse()?;
    std::fs::write(file, format!("{}\n", count + 1))?;
    Ok(count)
}

async fn hold(options: &Options) -> Result<(), Failure> {
    let client = holdline::open(&options.url).await?;
    let guard = lock(options, &client).lock().await?;
    say("ready")?;
    await_line()?;
    guard.unlock().await?;
    Ok(())
}

/// A process that this one started. It is killed and waited for when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this program again with these arguments.
    pub(crate) fn start(args: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        // Makes the C library's allocator return large blocks to the system when they are freed, so
        // that resident memory is memory in use.
        command.env("MALLOC_MMAP_THRESHOLD_", "65536").arg("worker").args(args);
        Worker::spawn(&mut command)
    }

    /// Starts a program that follows the same protocol.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("a worker has no output")?);
        let input = child.stdin.take();
        Ok(Worker { child, input, output })
    }

    /// Waits until it is ready.
    pub(crate) fn ready(&mut self) -> Result<(), Failure> {
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("a worker said \"{other}\" instead of ready").into()),
        }
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) -> Result<(), Failure> {
        Ok(self.input.as_mut().ok_or("a worker has no input")?.write_all(b"go\n")?)
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a worker ended early; its message is above".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Kills it, as kill -9 does.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill()?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Arguments of a worker.
pub(crate) fn args(role: &str, url: &str, name: &str, more: &[(&str, String)]) -> Vec<String> {
    let mut args: Vec<String> =
        ["--role", role, "--url", url, "--name", name].map(str::to_owned).to_vec();
    for (flag, value) in more {
        args.push((*flag).to_owned());
        args.push(value.clone());
    }
    args
}

/// Lets this many workers compete from the same moment on; returns the grants of each.
pub(crate) fn workers(size: usize, args: &[String]) -> Result<Vec<Vec<Grant>>, Failure> {
    let mut workers =
        (0..size).map(|_| Worker::start(args)).collect::<Result<Vec<_>, Failure>>()?;
    workers.iter_mut().try_for_each(Worker::ready)?;
    workers.iter_mut().try_for_each(Worker::go)?;
    let grants = workers.iter_mut().map(|worker| Ok(serde_json::from_str(&worker.line()?)?));
    grants.collect()
}
