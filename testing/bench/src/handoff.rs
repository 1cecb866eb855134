//! The time that a free lock stays free: from the release in one process, or its kill -9, to the
//! acquisition in another.

use crate::redis;
use crate::report::{Cell, Report, Table, ratio, time};
use crate::stats::{Spread, Waits, seconds};
use crate::target::{Target, Targets, fresh};
use crate::worker::{Grant, Worker, args, workers};
use crate::{Common, Failure, runtime};
use holdline::{Client, Mutex};
use std::time::{Duration, Instant};

/// The median from release to acquisition on the file store.
const RELEASE: f64 = 0.001;
/// On Redis: the median in round trips of that link; and the 99th percentile.
const TRIPS: f64 = 2.0;
const SLOW: f64 = 0.01;
/// From kill -9 to acquisition on the file store.
const KILL: f64 = 0.1;
/// The number of locks that each of two processes takes in a round.
const LOCKS: usize = 200;

pub(crate) fn run(common: &Common, targets: &Targets, report: &mut Report) -> Result<(), Failure> {
    let columns = ["store", "mean", "P50", "P90", "P99", "handoffs", "round trip", "P50 in those"];
    let mut table = Table::new("From release in one process to acquisition in another", &columns);
    for target in targets.between_processes() {
        table.row(release(common, target, report)?);
    }
    table.note("Two processes in turns; each holds for 2 ms, so that the other waits by then.");
    report.table(table);
    let columns = ["store", "lease", "P50", "slowest", "kills"];
    let mut table = Table::new("From kill -9 of the holder to acquisition by another", &columns);
    for target in targets.between_processes() {
        table.row(kill(common, target, report)?);
    }
    report.table(table);
    if targets.between_processes().next().is_none() {
        Report::skip("handoff", "a store in memory is not shared by processes");
    }
    Ok(())
}

fn release(common: &Common, target: &Target, report: &mut Report) -> Result<Vec<Cell>, Failure> {
    let locks = (common.seconds(LOCKS as f64) as usize).max(50);
    let more = [("--locks", locks.to_string()), ("--hold-us", "2000".to_owned())];
    let (mut rounds, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..common.rounds() {
        let name = fresh("handoff");
        trips.extend(round_trip(target)?);
        rounds.push(latencies(&workers(2, &args("compete", &target.url, &name, &more))?));
    }
    let of = |what: &dyn Fn(&Waits) -> f64| Cell::times(rounds.iter().map(what));
    let medians = Spread::of(rounds.iter().map(|round| round.percentile(50.0)));
    if target.file().is_some() {
        let median = medians.map_or(f64::INFINITY, |spread| spread.median);
        report.check(
            format!("{}: handed over between processes: median under 1 ms", target.label),
            time(median),
            median < RELEASE,
        );
    }
    let in_trips: Vec<f64> =
        rounds.iter().zip(&trips).map(|(round, trip)| round.percentile(50.0) / trip).collect();
    if let Some(spread) = Spread::of(in_trips.iter().copied()) {
        report.check(
            format!("{}: handed over: median at most {TRIPS} round trips", target.label),
            ratio(spread.median),
            spread.median <= TRIPS,
        );
        let slow = Spread::of(rounds.iter().map(|round| round.percentile(99.0)));
        let slow = slow.unwrap_or_default().median;
        let what = format!("{}: handed over: 99 of 100 within 10 ms", target.label);
        report.check(what, time(slow), slow <= SLOW);
    }
    Ok(vec![
        target.label.as_str().into(),
        of(&Waits::mean),
        of(&|round| round.percentile(50.0)),
        of(&|round| round.percentile(90.0)),
        of(&|round| round.percentile(99.0)),
        rounds.iter().map(Waits::count).sum::<usize>().into(),
        Cell::times(trips),
        Cell::ratios(in_trips),
    ])
}

/// The time of one request on this link, in a process with one thread like the others.
fn round_trip(target: &Target) -> Result<Option<f64>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match redis::Bare::beside(target).await? {
            Some(mut bare) => bare.round_trip().await.map(Some),
            None => Ok(None),
        }
    })
}

/// The times between a release and the next acquisition, if the other process made it and was
/// already waiting. Tokens give the order.
fn latencies(workers: &[Vec<Grant>]) -> Waits {
    let mut grants: Vec<(usize, &Grant)> = Vec::new();
    for (process, of) in workers.iter().enumerate() {
        grants.extend(of.iter().map(|grant| (process, grant)));
    }
    grants.sort_by_key(|(_, grant)| grant.token);
    let pairs = grants.windows(2).filter(|pair| {
        let [(before, leaving), (after, coming)] = pair else { return false };
        before != after && coming.asked < leaving.left
    });
    Waits::new(
        pairs.map(|pair| pair[1].1.got.saturating_sub(pair[0].1.left) as f64 / 1e9).collect(),
    )
}

fn kill(common: &Common, target: &Target, report: &mut Report) -> Result<Vec<Cell>, Failure> {
    let runtime = runtime()?;
    let client = runtime.block_on(target.open())?;
    let promised = client.capabilities().crash_release;
    // If the store notices a crash at once, the lease must not end the lock first.
    let lease = Duration::from_secs(if promised { 10 } else { 1 });
    let kills = if promised && !common.quick { 20 } else { 5 };
    let times = (0..kills)
        .map(|_| runtime.block_on(one_kill(target, &client, lease)))
        .collect::<Result<Vec<_>, _>>()?;
    let waits = Waits::new(times);
    if target.file().is_some() {
        let slowest = waits.percentile(100.0);
        report.check(
            format!("{}: a waiter goes on within 100 ms of the holder's kill -9", target.label),
            format!("slowest of {kills}: {}", time(slowest)),
            slowest < KILL,
        );
    }
    let how = if promised { "freed by the crash" } else { "freed by its lease" };
    Ok(vec![
        target.label.as_str().into(),
        format!("{} s, {how}", lease.as_secs()).into(),
        Cell::time(waits.percentile(50.0)),
        Cell::time(waits.percentile(100.0)),
        waits.count().into(),
    ])
}

async fn one_kill(target: &Target, client: &Client, lease: Duration) -> Result<f64, Failure> {
    let name = fresh("kill");
    let more = [("--lease-ms", lease.as_millis().to_string())];
    let mut holder = Worker::start(&args("hold", &target.url, &name, &more))?;
    holder.ready()?;
    let lock = Mutex::new(client, &name).lease(lease);
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await?;
        let got = Instant::now();
        guard.unlock().await.map(|()| got)
    });
    while client.inspect(&name).await?.waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await; // it is listening by now
    let killed = Instant::now();
    holder.kill()?;
    Ok(seconds(waiter.await??.saturating_duration_since(killed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handoffs_to_a_waiter_count() {
        let grant = |token, asked, got, left| Grant { token, asked, got, left, count: 0, task: 0 };
        let first = vec![grant(1, 0, 1, 100), grant(4, 700, 800, 900)];
        let second = vec![grant(2, 50, 150, 200), grant(3, 300, 350, 600)];
        // 1 -> 2 counts; 2 -> 3 stays in one process; 4 was not waiting at the release.
        let waits = latencies(&[first, second]);
        assert_eq!(waits.count(), 1);
        assert!((waits.mean() - 50e-9).abs() < 1e-12);
    }
}
