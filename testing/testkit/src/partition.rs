//! A disconnected holder knows that it lost the lock before the next one is admitted: a hundred
//! trials, each at another moment, by one clock.

use crate::contested::contested;
use crate::eventually::soon;
use crate::flaky_links::{Cut, FlakyLinks};
use fastrand::Rng;
use futures_util::future::join_all;
use holdline::{Client, Mutex, clock, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The plan of the trials: what is disconnected from what.
#[derive(Debug)]
pub struct Plan {
    /// The URL's scheme.
    pub scheme: &'static str,
    /// The members.
    pub hosts: Vec<String>,
    /// The part of the URL after the members.
    pub options: &'static str,
    /// The lease of the disconnected holders.
    pub lease: Duration,
}

const TRIALS: usize = 100;
/// The trials in parallel: they are to be measured, not to starve each other.
const BATCH: usize = 25;
/// The most attempts of one trial.
const TRIES: usize = 3;

/// The result of one trial, in nanoseconds of the one clock.
struct Trial {
    cut: Cut,
    /// From the cut until the holder knew.
    told: u64,
    /// From then until the next one was admitted; negative if that was earlier.
    ahead: i64,
}

/// Disconnects a holder at any moment of its lock's life, with a waiter behind it.
async fn trial(plan: &Plan, rival: &Client, number: usize) -> Trial {
    let mut rng = Rng::with_seed(number as u64);
    let cut = Cut::ALL[number % Cut::ALL.len()];
    let flaky = FlakyLinks::to(plan.scheme, &plan.hosts, plan.options);
    let name = format!("trial {number}");
    let lock = Mutex::new(&flaky.client().await, &name).lease(plan.lease);
    let time = plan.lease.mul_f64(0.6 * rng.f64());
    let (guard, next) = contested(&lock, &Mutex::new(rival, &name), rival, time).await;
    let held = Arc::clone(&guard);
    let losing = tokio::spawn(async move {
        held.lost().await;
        clock::now().0
    });
    let began = clock::now().0;
    flaky.cut(cut);
    let lost = soon("the loss", losing).await.expect("no panic");
    let (next, admitted) = soon("the next", next).await.expect("no panic");
    next.unlock().await.expect("held");
    flaky.mend();
    Trial { cut, told: lost - began, ahead: admitted.cast_signed() - lost.cast_signed() }
}

/// The same, repeated if the holder was notified late: a busy machine may be late, but not each
/// time. By the clock the lock was lost in time all the same, or the trial has failed.
async fn fair_trial(plan: &Plan, rival: &Client, number: usize) -> Trial {
    let mut shown = trial(plan, rival, number).await;
    for _ in 1..TRIES {
        if shown.ahead > 0 {
            break;
        }
        shown = trial(plan, rival, number).await;
    }
    shown
}

/// Runs all trials. Prints the shortest time between a known loss and the next holder's admission.
///
/// # Panics
///
/// If one holder did not know.
pub async fn hundred(plan: Plan) {
    // With the usual session and lease, which a busy machine does not lose.
    let url = format!("{}://{}", plan.scheme, plan.hosts.join(","));
    let rival = open(&url).await.expect("a good URL");
    let mut trials: BTreeMap<Cut, Vec<Trial>> = BTreeMap::new();
    for batch in 0..TRIALS / BATCH {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        for trial in join_all(numbers.map(|at| fair_trial(&plan, &rival, at))).await {
            trials.entry(trial.cut).or_default().push(trial);
        }
    }
    for (cut, trials) in &trials {
        let least = trials.iter().map(|trial| trial.ahead / 1_000_000).min().expect("some");
        let latest = trials.iter().map(|trial| trial.told / 1_000_000).max().expect("some");
        let count = trials.len();
        println!("{cut:?}: {count} trials, told within {latest} ms, at least {least} ms ahead");
    }
    let all: Vec<&Trial> = trials.values().flatten().collect();
    let good = all.iter().filter(|trial| trial.ahead > 0).count();
    println!("told before the next was in: {good} of {}", all.len());
    assert_eq!((good, all.len()), (TRIALS, TRIALS));
}
