//! A competition: many tasks that want locks at once, for a time.

use crate::Failure;
use crate::stats::{Shares, Waits, seconds};
use holdline::Mutex;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The result of a competition.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Locks per second within the time.
    pub(crate) rate: f64,
    /// All waits, even those that ended after the time: omitting these would flatter.
    pub(crate) waits: Waits,
    /// The number of locks that each client got.
    pub(crate) shares: Shares,
    /// The total number of locks, also before the time and after it.
    pub(crate) locks: usize,
}

/// The time until all have asked.
const GATHER: Duration = Duration::from_millis(60);

/// Each task locks, holds, releases and begins again, until the time is up; tasks that wait then
/// are still admitted. The first lock is held until all have asked, so that none has a head start.
pub(crate) async fn compete(
    locks: Vec<Mutex>,
    time: Duration,
    hold: Duration,
) -> Result<Outcome, Failure> {
    let starter = locks.first().ok_or("nobody competes")?.lock().await?;
    let start = Instant::now() + GATHER;
    let mut tasks = JoinSet::new();
    for lock in locks {
        tasks.spawn(one(lock, start, start + time, hold));
    }
    tokio::time::sleep_until(start.into()).await;
    starter.unlock().await?;
    let (mut waits, mut shares, mut locks) = (Vec::new(), Vec::new(), 1);
    while let Some(task) = tasks.join_next().await {
        let one = task??;
        waits.extend(one.waits);
        shares.push(one.share);
        locks += one.locks;
    }
    Ok(Outcome {
        rate: shares.iter().sum::<usize>() as f64 / seconds(time),
        shares: Shares::of(&shares),
        locks,
        waits: Waits::new(waits),
    })
}

/// One competitor: its waits, the number of its locks within the time, and of all its locks.
#[derive(Debug, Default)]
struct One {
    waits: Vec<f64>,
    share: usize,
    locks: usize,
}

async fn one(lock: Mutex, start: Instant, end: Instant, hold: Duration) -> Result<One, Failure> {
    let mut one = One::default();
    loop {
        let asked = Instant::now().max(start);
        if asked >= end {
            return Ok(one);
        }
        let guard = lock.lock().await?;
        let got = Instant::now();
        one.locks += 1;
        if got >= start {
            one.waits.push(seconds(got.saturating_duration_since(asked)));
            one.share += usize::from(got < end);
        }
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        guard.unlock().await?;
    }
}
