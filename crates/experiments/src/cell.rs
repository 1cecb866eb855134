//! One measured combination: a [`Plan`](crate::Plan) is a list of these.

use crate::error::{Error, Result};
use crate::mode::Mode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest hold, delay and round.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest number of clients, and of names.
const MOST: usize = 1_000_000;

/// The workload of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scenario {
    /// Each client locks, holds, releases and begins again.
    Mutex,
    /// The same with a read-write lock; this percentage are writes.
    ReadWrite(u8),
    /// The same with a semaphore of this many permits, one for each client.
    Semaphore(u32),
    /// All clients ask once, at the same time.
    Burst,
    /// The holder's process is killed while another client waits: how long until that client holds.
    Crash,
    /// The leader of the store's cluster is killed: how long until the next lock is granted.
    Leader,
}

/// One combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The workload of the clients.
    pub scenario: Scenario,
    /// A URL, or the name of a server that is started for the run.
    pub store: String,
    /// How the clients wait.
    pub mode: Mode,
    /// The number of clients in all processes together.
    pub clients: usize,
    /// The number of client processes.
    pub processes: usize,
    /// The number of names: client number i always uses name number i modulo this.
    pub names: usize,
    /// How long a client holds the lock.
    pub hold: Duration,
    /// The delay added to a round trip to the server.
    pub delay: Duration,
    /// Locks requested per second by all clients together; `None`: each asks again at once.
    pub rate: Option<f64>,
    /// The lease of the locks.
    pub lease: Duration,
}

impl Scenario {
    /// Whether the lock has at most one holder at a time.
    pub(crate) fn is_exclusive(self) -> bool {
        !matches!(self, Scenario::ReadWrite(_) | Scenario::Semaphore(_))
    }

    /// Whether it is a crash, which has one figure: the time until the next client holds.
    pub(crate) fn is_crash(self) -> bool {
        matches!(self, Scenario::Crash | Scenario::Leader)
    }

    /// Whether it needs weights other than 1, which only some stores have.
    pub(crate) fn is_weighted(self) -> bool {
        !self.is_exclusive()
    }

    /// A label for people.
    pub(crate) fn label(self) -> String {
        match self {
            Scenario::Mutex => "mutex".to_owned(),
            Scenario::ReadWrite(writes) => format!("read-write lock, {writes}% writes"),
            Scenario::Semaphore(permits) => format!("semaphore of {permits}"),
            Scenario::Burst => "burst: all ask once, at once".to_owned(),
            Scenario::Crash => "the holder's process is killed".to_owned(),
            Scenario::Leader => "the cluster's leader is killed".to_owned(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Mutex => f.write_str("mutex"),
            Scenario::ReadWrite(writes) => write!(f, "rwlock={writes}%"),
            Scenario::Semaphore(permits) => write!(f, "semaphore={permits}"),
            Scenario::Burst => f.write_str("burst"),
            Scenario::Crash => f.write_str("crash"),
            Scenario::Leader => f.write_str("leader"),
        }
    }
}

impl FromStr for Scenario {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let scenario = match (name, value) {
            ("mutex", None) => Some(Scenario::Mutex),
            ("burst", None) => Some(Scenario::Burst),
            ("crash", None) => Some(Scenario::Crash),
            ("leader", None) => Some(Scenario::Leader),
            ("rwlock", None) => Some(Scenario::ReadWrite(10)),
            ("rwlock", Some(writes)) => {
                let writes = writes.strip_suffix('%').and_then(|writes| writes.parse().ok());
                writes.filter(|writes| *writes <= 100).map(Scenario::ReadWrite)
            }
            ("semaphore", None) => Some(Scenario::Semaphore(4)),
            ("semaphore", Some(permits)) => {
                let permits = permits.parse().ok();
                permits.filter(|permits| (1..=10_000).contains(permits)).map(Scenario::Semaphore)
            }
            _ => None,
        };
        scenario.ok_or_else(|| {
            Error::usage(format!(
                "{text:?} is no scenario; known are mutex, rwlock (rwlock=10% writes), semaphore \
                 (semaphore=4 permits), burst, crash and leader"
            ))
        })
    }
}

impl Cell {
    /// The load: contestants in one chart share it, and differ in the rest.
    pub(crate) fn load(&self) -> String {
        let mut words = vec![self.scenario.label()];
        if self.scenario.is_crash() {
            words.push(format!("lease {} s", self.lease.as_secs_f64()));
        } else {
            words.push(format!("{} clients", self.clients));
            words.extend((self.processes > 1).then(|| format!("{} processes", self.processes)));
            words.extend((self.names > 1).then(|| format!("{} names", self.names)));
            words.push(format!("held {} ms", self.hold.as_secs_f64() * 1e3));
        }
        words.push(format!("delay {} ms", self.delay.as_secs_f64() * 1e3));
        words.extend(self.rate.map(|rate| format!("{rate} asked a second")));
        words.join(", ")
    }

    /// Whether it is measured in locks a second, and not in the time after a crash.
    pub fn has_rate(&self) -> bool {
        !self.scenario.is_crash()
    }

    /// The same load with any number of clients: one chart against contenders.
    pub(crate) fn load_but_clients(&self) -> String {
        Cell { clients: 0, ..self.clone() }.load().replace("0 clients, ", "")
    }

    /// Refuses a cell that makes no sense on any store.
    pub(crate) fn check(&self) -> Result<()> {
        if self.clients == 0 || self.processes == 0 || self.names == 0 {
            return Err(Error::usage("there is at least one client, one process and one name"));
        }
        if self.processes > self.clients {
            return Err(Error::usage(format!(
                "{} processes need at least as many clients, not {}",
                self.processes, self.clients
            )));
        }
        if self.clients > MOST || self.names > MOST {
            return Err(Error::usage(format!("there are at most {MOST} clients and names")));
        }
        if self.rate.is_some_and(|rate| !(1e-3..=1e7).contains(&rate)) {
            return Err(Error::usage("a rate is from 0.001 to 10,000,000 a second"));
        }
        if self.hold > LONGEST || self.delay > LONGEST {
            return Err(Error::usage("a lock is held, or a request delayed, for a day at most"));
        }
        if self.scenario.is_crash() && !self.delay.is_zero() {
            return Err(Error::usage("crash and leader are measured without a delay"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_read_as_they_are_written() {
        for text in ["mutex", "rwlock=25%", "semaphore=3", "burst", "crash", "leader"] {
            assert_eq!(text.parse::<Scenario>().unwrap().to_string(), text);
        }
        for text in ["", "rwlock=200%", "rwlock=3", "semaphore=0", "burst=2"] {
            assert!(text.parse::<Scenario>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let good = crate::Preset::named("polling").unwrap().plan().cells.swap_remove(0);
        good.check().unwrap();
        let ages = Duration::from_secs(100_000_000_000_000);
        for (bad, word) in [
            (Cell { hold: ages, ..good.clone() }, "held"),
            (Cell { delay: ages, ..good.clone() }, "delayed"),
            (Cell { rate: Some(1e-300), ..good.clone() }, "rate"),
            (Cell { rate: Some(f64::NAN), ..good.clone() }, "rate"),
            (Cell { clients: usize::MAX, ..good.clone() }, "clients"),
            (Cell { names: usize::MAX, ..good.clone() }, "names"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
