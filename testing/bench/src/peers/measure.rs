//! The measurements, and their results.

use super::driver::Driver;
use super::list::Peer;
use crate::Failure;
use crate::machine::{tree_cpu, tree_memory};
use crate::report::Cell;
use crate::stats::{Shares, seconds};
use crate::target::fresh;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of locks held at once.
pub(super) const HELD: usize = 10_000;

/// The subject of a scenario.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// The time of a lock and unlock.
    Time,
    /// Locks and unlocks per second.
    Rate,
    /// The 99th percentile of the waits.
    P99,
}

/// Tasks that lock, hold and release for a time.
pub(super) struct Scenario {
    pub(super) key: &'static str,
    pub(super) about: &'static str,
    pub(super) processes: usize,
    pub(super) seconds: f64,
    tasks: usize,
    /// The number of names; with more than one, each process has its own.
    names: usize,
    hold_us: u64,
    figure: Figure,
}

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        key: "alone",
        about: "one task on one name, time of a lock and unlock",
        processes: 1,
        seconds: 1.5,
        tasks: 1,
        names: 1,
        hold_us: 0,
        figure: Figure::Time,
    },
    Scenario {
        key: "names",
        about: "64 tasks on 64 names",
        processes: 1,
        seconds: 1.5,
        tasks: 64,
        names: 64,
        hold_us: 0,
        figure: Figure::Rate,
    },
    Scenario {
        key: "names1024",
        about: "4 processes x 256 tasks, a name for each task",
        processes: 4,
        seconds: 1.5,
        tasks: 256,
        names: 256,
        hold_us: 0,
        figure: Figure::Rate,
    },
    Scenario {
        key: "one",
        about: "64 tasks of one process on one name",
        processes: 1,
        seconds: 1.5,
        tasks: 64,
        names: 1,
        hold_us: 0,
        figure: Figure::Rate,
    },
    Scenario {
        key: "spread",
        about: "8 processes x 8 tasks on one name",
        processes: 8,
        seconds: 3.0,
        tasks: 8,
        names: 1,
        hold_us: 0,
        figure: Figure::Rate,
    },
    Scenario {
        key: "crowd",
        about: "100 tasks on one name, held for 1 ms: P99 of the wait",
        processes: 1,
        seconds: 3.0,
        tasks: 100,
        names: 1,
        hold_us: 1000,
        figure: Figure::P99,
    },
];

/// A driver's report of a round.
#[derive(Deserialize)]
struct Said {
    /// The number of locks that each task got in time.
    shares: Vec<usize>,
    /// The number of waits in each bucket, also of those that ended after the time. There are 64
    /// buckets for each power of two of nanoseconds.
    waits: Vec<(u32, u64)>,
}

/// A round.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Locks per second.
    rate: f64,
    /// The 99th percentile of the waits, in seconds.
    p99: f64,
    /// The clients' CPU time for each lock, in seconds.
    pub(super) cpu: f64,
    /// The server's, in seconds.
    pub(super) server: f64,
    pub(super) shares: Shares,
}

impl Scenario {
    /// Runs one round of these processes, on the server with this process id.
    pub(super) fn round(
        &self,
        drivers: &mut [Driver],
        time: f64,
        server: u32,
    ) -> Result<Outcome, Failure> {
        // The prefix tells drivers whether several of their tasks may want the same name.
        let prefix = format!("{}-{}", self.key, fresh("peers"));
        let Scenario { names, tasks, hold_us, .. } = self;
        for (process, driver) in drivers.iter_mut().enumerate() {
            let own = if *names > 1 { format!("-{process}") } else { String::new() };
            driver.say(&format!("run {prefix}{own} {names} {tasks} {time} {hold_us}"))?;
        }
        drivers.iter_mut().try_for_each(|driver| driver.expect("set"))?;
        let cpu =
            |drivers: &[Driver]| drivers.iter().map(|it| tree_cpu(it.pid())).sum::<Duration>();
        let before = (cpu(drivers), tree_cpu(server));
        drivers.iter_mut().try_for_each(|driver| driver.say("go"))?;
        let (mut shares, mut waits) = (Vec::new(), BTreeMap::new());
        for driver in &mut *drivers {
            let said: Said = serde_json::from_str(&driver.answer()?)?;
            shares.extend(said.shares);
            for (bucket, count) in said.waits {
                *waits.entry(bucket).or_insert(0) += count;
            }
        }
        let after = (cpu(drivers), tree_cpu(server));
        let all = waits.values().sum::<u64>().max(1);
        let each = |from: Duration, to: Duration| seconds(to.saturating_sub(from)) / all as f64;
        Ok(Outcome {
            rate: shares.iter().sum::<usize>() as f64 / time,
            p99: percentile(&waits, all, 0.99),
            cpu: each(before.0, after.0),
            server: each(before.1, after.1),
            shares: Shares::of(&shares),
        })
    }

    /// The ratio in favour of this library: more than 1 is better, whatever is measured.
    pub(super) fn ahead(&self, ours: &Outcome, theirs: &Outcome) -> f64 {
        match self.figure {
            Figure::Time | Figure::Rate => ours.rate / theirs.rate,
            Figure::P99 => theirs.p99 / ours.p99,
        }
    }

    pub(super) fn cell(&self, rounds: &[&Outcome]) -> Cell {
        match self.figure {
            Figure::Time => Cell::times(rounds.iter().map(|it| 1.0 / it.rate)),
            Figure::Rate => Cell::rates(rounds.iter().map(|it| it.rate)),
            Figure::P99 => Cell::times(rounds.iter().map(|it| it.p99)),
        }
        .short()
    }
}

/// The middle of this percentile's bucket, in seconds.
fn percentile(waits: &BTreeMap<u32, u64>, all: u64, part: f64) -> f64 {
    let rank = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    let found = waits.iter().find(|(_, count)| {
        seen += **count;
        seen >= rank
    });
    found.map_or(f64::NAN, |(bucket, _)| ((f64::from(*bucket) + 0.5) / 64.0).exp2() / 1e9)
}

/// Many locks that are held for a while.
pub(super) struct Held {
    take: f64,
    cpu: f64,
    memory: f64,
    server_cpu: f64,
    server_memory: f64,
}

impl Held {
    pub(super) fn measure(driver: &mut Driver, time: f64, server: u32) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Took {
            seconds: f64,
        }
        driver.ready()?;
        // Warm-up: everything is loaded, and the garbage collector has run a little.
        driver.say(&format!("hold hold-{} 100", fresh("warm")))?;
        driver.answer()?;
        let memory = (tree_memory(driver.pid()), tree_memory(server));
        driver.say(&format!("hold hold-{} {HELD}", fresh("held")))?;
        let took: Took = serde_json::from_str(&driver.answer()?)?;
        let (start, before) = (Instant::now(), (tree_cpu(driver.pid()), tree_cpu(server)));
        std::thread::sleep(Duration::from_secs_f64(time));
        let (wall, after) = (start.elapsed(), (tree_cpu(driver.pid()), tree_cpu(server)));
        let part = |from: Duration, to: Duration| seconds(to.saturating_sub(from)) / seconds(wall);
        let more = |from: f64, pid| (tree_memory(pid) - from).max(0.0) / HELD as f64;
        let held = Held {
            take: took.seconds / HELD as f64,
            cpu: part(before.0, after.0),
            memory: more(memory.0, driver.pid()),
            server_cpu: part(before.1, after.1),
            server_memory: more(memory.1, server),
        };
        driver.say("drop")?;
        driver.answer()?;
        Ok(held)
    }

    pub(super) fn row(&self, peer: &Peer) -> Vec<Cell> {
        vec![
            peer.name.into(),
            Cell::time(self.take),
            Cell::percent(self.cpu),
            Cell::bytes(self.memory),
            Cell::percent(self.server_cpu),
            Cell::bytes(self.server_memory),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_within_a_bucket() {
        // 99 waits of 1 us, and one of 1 ms.
        let bucket = |nanoseconds: f64| (nanoseconds.log2() * 64.0) as u32;
        let waits = BTreeMap::from([(bucket(1e3), 99), (bucket(1e6), 1)]);
        assert!((percentile(&waits, 100, 0.99) / 1e-6 - 1.0).abs() < 0.02);
        assert!((percentile(&waits, 100, 1.0) / 1e-3 - 1.0).abs() < 0.02);
    }
}
