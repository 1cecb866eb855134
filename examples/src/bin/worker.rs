//! Workers under a common limit: however many processes there are, at most N jobs run at once, as
//! when a mail server accepts N connections.
//!
//! `cargo run -p holdline-examples --bin worker -- 2 anna ben carla dora` in several terminals.
//!
//! Environment: `HOLDLINE_STORE`, such as `redis://127.0.0.1`; default: the file store. `JOB_MS`.

use holdline::{Client, Semaphore, open};
use std::collections::VecDeque;
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Stands for a queue of jobs: a table, a stream, a topic.
#[derive(Clone, Default)]
struct Jobs(Arc<Mutex<VecDeque<String>>>);

impl Jobs {
    fn next(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn add(&self, job: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
    }
}

async fn work(job: &str, time: Duration) {
    println!("start {job}");
    tokio::time::sleep(time).await;
    println!("end {job}");
}

/// Runs jobs until there are no more.
async fn worker(permits: Semaphore, jobs: Jobs, time: Duration) -> holdline::Result<()> {
    loop {
        // The permit comes first. A job that is taken first would wait here, invisible, while other
        // workers have permits and nothing to do.
        let permit = permits.acquire(1).await?;
        let Some(job) = jobs.next() else { return Ok(()) };
        match permit.protect(work(&job, time)).await {
            // Dropping the permit returns it in the background, even if a job panics.
            Ok(()) => drop(permit),
            // Another job may run in its stead by now, so this one was stopped. It will be done
            // again: jobs must tolerate that, as with any queue.
            Err(lost) => {
                println!("stopped {job}: {lost}");
                jobs.add(job);
            }
        }
    }
}

/// Starts the workers of this process, and waits for them.
async fn run(client: &Client, limit: u32, jobs: Jobs, time: Duration) -> holdline::Result<()> {
    // All processes must give the same number: a different one is refused with a clear error.
    let permits = Semaphore::new(client, "mail-server", limit)
        .lease(Duration::from_secs(5)) // so long a crashed worker's permit is missing, at most
        .label("worker");
    let mut workers = JoinSet::new();
    // More workers than permits would only wait in line.
    for _ in 0..limit {
        workers.spawn(worker(permits.clone(), jobs.clone(), time));
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("no worker panics")?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let limit = arguments.next().ok_or("usage: worker LIMIT JOB...")?.parse()?;
    let jobs = Jobs::default();
    arguments.for_each(|job| jobs.add(job));
    let time = env::var("JOB_MS").map_or(Ok(500), |text| text.parse())?;

    let client = match env::var("HOLDLINE_STORE") {
        Err(env::VarError::NotPresent) => holdline::open_default()?,
        url => open(&url?).await?,
    };
    let done = run(&client, limit, jobs, Duration::from_millis(time)).await;
    client.settle().await; // what was dropped is given back before the process ends
    Ok(done?)
}
