//! Locks one after another, in tasks of a worker process that is like a service: alone, or many
//! waiting for one name. The peers' programs have the same two roles, and speak the same way.

use crate::Failure;
use crate::machine::own_cpu;
use crate::stats::seconds;
use crate::worker::{Options, await_line, say};
use holdline::Mutex;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What it came to.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) locks: usize,
    pub(crate) seconds: f64,
    /// Seconds of CPU time, of all threads of the process.
    pub(crate) cpu: f64,
}

impl Row {
    fn since(start: Instant, cpu: Duration, locks: usize) -> Self {
        let cpu = seconds(own_cpu().saturating_sub(cpu));
        Row { locks, seconds: seconds(start.elapsed()), cpu }
    }
}

/// Locks and unlocks with nobody else there: a round for every line of its input.
pub(crate) fn alone(options: &Options) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let client = runtime.block_on(holdline::open(&options.url))?;
    let lock = Mutex::new(&client, &options.name);
    let budget = Duration::from_secs_f64(options.seconds);
    say("ready")?;
    while await_line()? {
        let lock = lock.clone();
        // In a task, where a service has its locks: the main thread is never one of the runtime's.
        let round = runtime.spawn(async move {
            let (start, cpu, mut locks) = (Instant::now(), own_cpu(), 0);
            while start.elapsed() < budget {
                lock.lock().await?.unlock().await?;
                locks += 1;
            }
            Ok::<_, holdline::Error>(Row::since(start, cpu, locks))
        });
        say(&serde_json::to_string(&runtime.block_on(round)??)?)?;
    }
    Ok(())
}

/// Many tasks take the lock once each. Whoever started this holds it until all of them wait.
pub(crate) fn wait(options: &Options) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let client = runtime.block_on(holdline::open(&options.url))?;
    let lock = Mutex::new(&client, &options.name);
    say("ready")?;
    await_line()?;
    let (start, cpu) = (Instant::now(), own_cpu());
    let mut tasks = JoinSet::new();
    for _ in 0..options.waiters {
        let lock = lock.clone();
        tasks.spawn_on(async move { lock.lock().await?.unlock().await }, runtime.handle());
    }
    for result in runtime.block_on(tasks.join_all()) {
        result?;
    }
    say(&serde_json::to_string(&Row::since(start, cpu, options.waiters))?)
}
