//! A cron job, without async: if the last run is still going, this one ends quietly, and so does
//! one that another host starts. It has a fixed time limit, after which the next run may begin.
//!
//! `*/5 * * * * cron_job`; or try it: `cargo run -p holdline-examples --bin cron_job -- 60000 100`,
//! with the limit in milliseconds and the number of steps, in two terminals. A third number is the
//! minimum time, also in milliseconds.
//!
//! Environment: `HOLDLINE_STORE` (a URL; the file store unless given).
//!
//! Exit codes: 0 done, or busy; 69 the store is unusable; 76 the lock was lost, so the work is
//! unfinished. (A job that is a command needs no code at all: `holdline run -n`.)

use holdline::{Error, blocking};
use std::env;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

const UNAVAILABLE: u8 = 69;
const LOST: u8 = 76;

/// Stands for one piece of the work: a file, a row, a batch. Short beside the margin of the lock.
fn step(_number: u64) {
    thread::sleep(Duration::from_millis(20));
}

/// Does the work, and returns the number of steps; `None` if another run is in progress.
fn run(limit: Duration, steps: u64, least: Duration) -> Result<Option<u64>, Error> {
    let client = match env::var_os("HOLDLINE_STORE") {
        None => blocking::open_default()?,
        Some(url) => blocking::open(&url.to_string_lossy())?,
    };
    // A fixed lease is never renewed: a run that hangs cannot keep all later ones out.
    let job = client.mutex("cleanup").fixed_lease(limit).label("cron");
    let began = Instant::now();
    let Some(guard) = job.try_lock()? else {
        return Ok(None);
    };
    for number in 1..=steps {
        // A thread cannot be stopped from outside, so the job asks at every step whether it still
        // holds the lock. The error is of kind `Lost`.
        guard.protect(|| step(number))?;
    }
    // A host whose clock is behind starts the same run a little later. It must find the lock held:
    // the minimum time is longer than the clocks differ, and shorter than the limit.
    thread::sleep(least.saturating_sub(began.elapsed()));
    // Dropping the guard waits for the release. `unlock` would report an error as well, which would
    // change nothing: the work is done.
    drop(guard);
    Ok(Some(steps))
}

fn main() -> ExitCode {
    let number = |n, default| env::args().nth(n).map_or(Ok(default), |text| text.parse());
    let numbers = (number(1, 60_000), number(2, 100), number(3, 10_000));
    let (Ok(limit), Ok(steps), Ok(least)) = numbers else {
        eprintln!("usage: cron_job [LIMIT_MS [STEPS [LEAST_MS]]]");
        return ExitCode::from(64);
    };
    match run(Duration::from_millis(limit), steps, Duration::from_millis(least)) {
        Ok(Some(steps)) => println!("done: {steps} steps"),
        Ok(None) => {} // cron mails what a job prints: nothing happened, nothing is said
        Err(error) => {
            eprintln!("cleanup: {error:#}");
            return ExitCode::from(if error.is_lost() { LOST } else { UNAVAILABLE });
        }
    }
    ExitCode::SUCCESS
}
