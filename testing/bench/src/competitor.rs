//! What the measurements against other libraries' locks share: a server for both, rounds in which
//! the two take turns, and the verdict.

use crate::report::{Cell, Report, ratio};
use crate::row::Row;
use crate::stats::{Spread, seconds};
use crate::worker::Worker;
use crate::{Common, Failure};
use holdline::{Client, Mutex};
use holdline_testkit::{Deployment, Folder, Node, Private, install_missing};
use std::time::{Duration, Instant};

/// A server to measure on. One of ours ends when this is dropped.
pub(crate) struct Server {
    pub(crate) label: String,
    pub(crate) url: String,
    _own: Option<Private>,
}

impl Server {
    fn own(label: &str, folder: Folder, ours: &dyn Fn() -> Deployment) -> Result<Server, Failure> {
        let own = Private::try_launch_in(folder, ours)?;
        Ok(Server { label: label.to_owned(), url: own.url(), _own: Some(own) })
    }

    fn named(url: &str) -> Server {
        Server { label: url.to_owned(), url: url.to_owned(), _own: None }
    }
}

/// Those that were named, or else one of ours with its data in memory and one with it on disk.
/// Where every write waits for the disk, little else counts. Installs what ours lack.
pub(crate) fn servers(
    common: &Common,
    ours: impl Fn() -> Deployment,
) -> Result<Vec<Server>, Failure> {
    if !common.stores.is_empty() {
        return Ok(common.stores.iter().map(|url| Server::named(url)).collect());
    }
    install_missing(ours().nodes().flat_map(Node::programs));
    let mut servers = Vec::new();
    if let Some(folder) = Folder::in_memory("bench")? {
        servers.push(Server::own("in memory", folder, &ours)?);
    }
    servers.push(Server::own("on disk", Folder::on_disk("bench")?, &ours)?);
    Ok(servers)
}

/// The rounds of two workers that lock and unlock alone, in turns: ours and theirs.
pub(crate) fn in_turns(
    common: &Common,
    mut ours: Worker,
    mut theirs: Worker,
) -> Result<Vec<(Row, Row)>, Failure> {
    theirs.ready()?;
    ours.ready()?;
    let mut rounds = Vec::new();
    for round in 0..=common.rounds() {
        let pair = if round % 2 == 0 {
            let first = one(&mut ours)?;
            (first, one(&mut theirs)?)
        } else {
            let first = one(&mut theirs)?;
            (one(&mut ours)?, first)
        };
        rounds.push(pair);
    }
    rounds.remove(0); // to warm up
    Ok(rounds)
}

fn one(worker: &mut Worker) -> Result<Row, Failure> {
    worker.go()?;
    row(worker)
}

fn row(worker: &mut Worker) -> Result<Row, Failure> {
    Ok(serde_json::from_str(&worker.line()?)?)
}

/// Seconds for each lock.
fn each(row: &Row) -> f64 {
    row.seconds / row.locks as f64
}

/// Of their time, in each round.
pub(crate) fn of_theirs(rounds: &[(Row, Row)]) -> Vec<f64> {
    rounds.iter().map(|(ours, theirs)| each(ours) / each(theirs)).collect()
}

/// The server, the times, their ratios, and the CPU time of each.
pub(crate) fn cells(server: &Server, rounds: &[(Row, Row)]) -> Vec<Cell> {
    let cpu = |row: &Row| row.cpu / row.locks as f64;
    vec![
        server.label.as_str().into(),
        Cell::times(rounds.iter().map(|(ours, _)| each(ours))),
        Cell::times(rounds.iter().map(|(_, theirs)| each(theirs))),
        Cell::ratios(of_theirs(rounds)),
        Cell::times(rounds.iter().map(|(ours, _)| cpu(ours))),
        Cell::times(rounds.iter().map(|(_, theirs)| cpu(theirs))),
    ]
}

/// Whether the median of these ratios is as it must be. `what` ends before the limit.
pub(crate) fn check(
    report: &mut Report,
    what: &str,
    limit: f64,
    ratios: &[f64],
    holds: impl Fn(f64, f64) -> bool,
) {
    let median = Spread::of(ratios.iter().copied()).map_or(f64::NAN, |spread| spread.median);
    report.check(format!("{what} {limit}"), ratio(median), holds(median, limit));
}

/// How fast a crowd was.
pub(crate) struct Drained {
    /// Locks a second.
    pub(crate) rate: f64,
    /// Seconds of CPU time for each lock.
    pub(crate) cpu: f64,
}

/// From the moment at which the lock is let go for which all of them wait until the last of them is
/// done. `in_line` of them stand in the store's line; the others behind these, in their processes.
pub(crate) async fn drained(
    client: &Client,
    name: &str,
    workers: &mut [Worker],
    in_line: usize,
) -> Result<Drained, Failure> {
    let guard = Mutex::new(client, name).lock().await?;
    workers.iter_mut().try_for_each(Worker::go)?;
    while client.inspect(name).await?.waiters.len() < in_line {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // all of them listen by now
    let released = Instant::now();
    guard.unlock().await?;
    let (mut locks, mut cpu) = (0, 0.0);
    for worker in workers {
        let row = row(worker)?;
        locks += row.locks;
        cpu += row.cpu;
    }
    let rate = locks as f64 / seconds(released.elapsed());
    Ok(Drained { rate, cpu: cpu / locks as f64 })
}
