//! A holder that is cut off knows that it lost the lock before the next one gets in: a hundred
//! trials, each at another moment, by one clock.

use crate::eventually::persist;
use crate::flaky_links::{Cut, FlakyLinks};
use fastrand::Rng;
use futures_util::future::join_all;
use holdline::{Client, Mutex, clock, open};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// What is cut off from what.
#[derive(Debug)]
pub struct Plan {
    /// The URL's scheme.
    pub scheme: &'static str,
    /// The members.
    pub hosts: Vec<String>,
    /// What follows the members in the URL.
    pub options: &'static str,
    /// The lease of those who are cut off.
    pub lease: Duration,
}

const TRIALS: usize = 100;
/// So many at a time: they are to be measured, not to starve each other.
const BATCH: usize = 25;
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(40);

/// What one trial showed, in nanoseconds of the one clock.
struct Trial {
    cut: Cut,
    /// From the cut until the holder knew.
    told: u64,
    /// From then until the next was in; negative if that was earlier.
    ahead: i64,
}

/// A lock, cut off at any moment of its life, with somebody behind it who waits.
async fn trial(plan: &Plan, rival: &Client, number: usize) -> Trial {
    let mut dice = Rng::with_seed(number as u64);
    let cut = Cut::ALL[number % Cut::ALL.len()];
    let flaky = FlakyLinks::to(plan.scheme, &plan.hosts, plan.options);
    let name = format!("trial {number}");
    let lock = Mutex::new(&flaky.client().await, &name).lease(plan.lease);
    let guard = timeout(LIMIT, persist(lock)).await.expect("in time");
    let guard = Arc::new(guard);
    let (waiting, held) = (Mutex::new(rival, &name).lease(plan.lease), Arc::clone(&guard));
    let next = tokio::spawn(async move {
        let next = persist(waiting).await;
        let (at, valid) = (clock::now(), held.is_valid());
        assert!(!valid, "two hold it");
        assert!(next.token() > held.token());
        (next, at)
    });
    while !rival.inspect(&name).await.is_ok_and(|info| info.waiters.len() == 1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(plan.lease.mul_f64(0.6 * dice.f64())).await;
    assert!(guard.is_valid() && !next.is_finished());
    let held = Arc::clone(&guard);
    let losing = tokio::spawn(async move {
        held.lost().await;
        clock::now()
    });
    let began = clock::now();
    flaky.cut(cut);
    let lost = timeout(LIMIT, losing).await.expect("in time").expect("no panic");
    let (next, admitted) = timeout(LIMIT, next).await.expect("in time").expect("no panic");
    next.unlock().await.expect("held");
    flaky.mend();
    let ahead = admitted.0.cast_signed() - lost.0.cast_signed();
    Trial { cut, told: lost.0 - began.0, ahead }
}

/// All of them. Prints the least by which the loss was known before the next holder was in.
///
/// # Panics
///
/// If one holder did not know.
pub async fn hundred(plan: Plan) {
    let url = format!("{}://{}{}", plan.scheme, plan.hosts.join(","), plan.options);
    let rival = open(&url).await.expect("a good URL");
    let mut trials: BTreeMap<Cut, Vec<Trial>> = BTreeMap::new();
    for batch in 0..TRIALS / BATCH {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        for trial in join_all(numbers.map(|at| trial(&plan, &rival, at))).await {
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
