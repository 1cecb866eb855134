//! Many tasks that want locks at once, for a time.

use crate::Failure;
use crate::machine::own_cpu;
use crate::stats::{Waits, seconds, unevenness};
use holdline::Mutex;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Locks a second, in the time.
    pub(crate) rate: f64,
    /// All waits, also of those who were let in after the time: leaving those out would flatter.
    pub(crate) waits: Waits,
    /// The largest share over the smallest.
    pub(crate) unevenness: f64,
    /// The CPU time that this process spent for each lock.
    pub(crate) cpu_per_lock: f64,
    /// How much of one core this process used.
    pub(crate) cores: f64,
    /// How many locks there were in all.
    pub(crate) locks: usize,
}

/// Each task locks, holds, releases and begins again, until the time is up; those who wait then are
/// still let in.
pub(crate) async fn compete(
    locks: Vec<Mutex>,
    time: Duration,
    hold: Duration,
) -> Result<Outcome, Failure> {
    let cpu = own_cpu();
    let start = Instant::now();
    let end = start + time;
    let mut tasks = JoinSet::new();
    for lock in locks {
        tasks.spawn(one(lock, end, hold));
    }
    let (mut waits, mut shares) = (Vec::new(), Vec::new());
    while let Some(task) = tasks.join_next().await {
        let (mine, share) = task??;
        waits.extend(mine);
        shares.push(share);
    }
    let (cpu, wall) = (seconds(own_cpu().saturating_sub(cpu)), seconds(start.elapsed()));
    Ok(Outcome {
        rate: shares.iter().sum::<usize>() as f64 / seconds(time),
        unevenness: unevenness(&shares),
        cpu_per_lock: cpu / waits.len().max(1) as f64,
        cores: cpu / wall,
        locks: waits.len(),
        waits: Waits::new(waits),
    })
}

/// One competitor: its waits, and how many of its locks came in time.
async fn one(lock: Mutex, end: Instant, hold: Duration) -> Result<(Vec<f64>, usize), Failure> {
    let (mut waits, mut share) = (Vec::new(), 0);
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok((waits, share));
        }
        let guard = lock.lock().await?;
        let got = Instant::now();
        waits.push(seconds(got - asked));
        share += usize::from(got < end);
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        guard.unlock().await?;
    }
}
