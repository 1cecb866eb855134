//! The loop that is measured, and the lines that ask for it.

/// Tokio's own timer would hold a lock for 1 ms for up to two.
#[path = "../../../../../crates/experiments/src/timer.rs"]
mod timer;

use crate::{Failure, Library};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Waits for each bucket: 64 of these for each power of two, in nanoseconds.
type Waits = BTreeMap<u32, u64>;

/// Answers lines until there are no more.
pub(crate) async fn serve<L: Library>(library: L) -> Result<(), Failure> {
    let library = Arc::new(library);
    let mut held = Vec::new();
    say("ready")?;
    while let Some(line) = read()? {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["run", prefix, names, tasks, seconds, hold] => {
                let seconds = Duration::from_secs_f64(seconds.parse()?);
                let hold = Duration::from_micros(hold.parse()?);
                let (names, tasks) = (names.parse()?, tasks.parse()?);
                run(&library, prefix, [names, tasks], seconds, hold).await?;
            }
            ["hold", prefix, count] => {
                let start = Instant::now();
                let count: usize = count.parse()?;
                for at in 0..count {
                    let mut lock = library.lock(&format!("{prefix}-{at}")).await?;
                    let got = library.acquire(&mut lock).await?;
                    held.push((lock, got));
                }
                say(&json!({ "seconds": start.elapsed().as_secs_f64() }).to_string())?;
            }
            ["drop"] => {
                for (mut lock, got) in held.drain(..) {
                    library.release(&mut lock, got).await?;
                }
                say(&json!({}).to_string())?;
            }
            _ => return Err(format!("I do not know the line {line:?}").into()),
        }
    }
    Ok(())
}

async fn run<L: Library>(
    library: &Arc<L>,
    prefix: &str,
    [names, tasks]: [usize; 2],
    seconds: Duration,
    hold: Duration,
) -> Result<(), Failure> {
    let mut locks = Vec::new();
    for task in 0..tasks {
        locks.push(library.lock(&format!("{prefix}-{}", task % names)).await?);
    }
    say("set")?;
    read()?;
    let end = Instant::now() + seconds;
    let mut all = JoinSet::new();
    for lock in locks {
        all.spawn(one(library.clone(), lock, end, hold));
    }
    let (mut shares, mut waits) = (Vec::new(), Waits::new());
    while let Some(task) = all.join_next().await {
        let (share, own) = task??;
        shares.push(share);
        for (bucket, count) in own {
            *waits.entry(bucket).or_default() += count;
        }
    }
    let waits: Vec<(u32, u64)> = waits.into_iter().collect();
    say(&json!({ "shares": shares, "waits": waits }).to_string())
}

/// One task, until the time is over: how many it got in time, and all of its waits.
async fn one<L: Library>(
    library: Arc<L>,
    mut lock: L::Lock,
    end: Instant,
    hold: Duration,
) -> Result<(u64, Waits), Failure> {
    let (mut share, mut waits) = (0, Waits::new());
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok((share, waits));
        }
        let held = library.acquire(&mut lock).await?;
        let got = Instant::now();
        let wait = (got - asked).as_nanos().max(1) as f64;
        *waits.entry((wait.log2() * 64.0) as u32).or_default() += 1;
        share += u64::from(got < end);
        if !hold.is_zero() {
            timer::until(timer::now() + hold.as_nanos() as u64).await;
        }
        library.release(&mut lock, held).await?;
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn read() -> Result<Option<String>, Failure> {
    let mut line = String::new();
    Ok((stdin().read_line(&mut line)? > 0).then_some(line))
}
