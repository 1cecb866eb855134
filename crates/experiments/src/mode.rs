//! The ways to wait for a lock, and the stores that support each.

use crate::error::{Error, Result};
use holdline::store::Capabilities;
use holdline::{Backoff, Mutex, RwLock, Semaphore};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A way to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mode {
    /// The behaviour of a waiter.
    pub way: Way,
    /// How often it asks, if it polls.
    pub schedule: Option<Schedule>,
}

/// How a waiter waits for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It has a place in the line, and is notified when its turn comes.
    Listen,
    /// As above, but all clients of a process share one connection and one place in the store's
    /// line.
    ListenShared,
    /// As above, and a process hands the lock on to its own waiters, 64 times or 50 ms at most.
    Handoff,
    /// It has no place: all waiters are notified when the lock is free, and the fastest gets it.
    ListenUnfair,
    /// It has a place in the line, and asks whether its turn has come.
    Poll,
    /// It has no place in a store that has lines: the client that asks at the right moment gets the
    /// lock.
    PollUnfair,
    /// As above, on a single string key: `SET NX PX`, and a script that compares and deletes.
    PollString,
}

/// The pauses of a waiter that polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The same pause each time.
    Fixed(Duration),
    /// 1 ms shorter each time, down to 10 ms.
    Shrinking(Duration),
    /// Twice as long each time, between these bounds, with a jitter of half.
    Jittered(Duration, Duration),
}

const WAYS: [(&str, Way); 7] = [
    ("listen", Way::Listen),
    ("listen-shared", Way::ListenShared),
    ("handoff", Way::Handoff),
    ("listen-unfair", Way::ListenUnfair),
    ("poll", Way::Poll),
    ("poll-unfair", Way::PollUnfair),
    ("poll-string", Way::PollString),
];

const FIFTY: Duration = Duration::from_millis(50);
/// The maximum number of consecutive holders of one process, and their time.
const HANDOFF: (u32, Duration) = (64, FIFTY);

impl Way {
    fn polls(self) -> bool {
        matches!(self, Way::Poll | Way::PollUnfair | Way::PollString)
    }

    /// Whether the clients of a process share one connection.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Way::ListenShared | Way::Handoff)
    }
}

impl Mode {
    /// The URL of a store with this way to wait: Redis has separate layouts for some.
    pub(crate) fn url(self, url: &str) -> Result<String> {
        let scheme = match self.way {
            Way::ListenUnfair => "redisson",
            Way::PollString => "string",
            _ => return Ok(url.to_owned()),
        };
        let joined = |url: &str| {
            if !url.starts_with("redis") {
                let what = if self.way == Way::PollString { "string keys" } else { "such notices" };
                return Err(Error::usage(format!(
                    "{self} needs {what}, and only Redis has them; of this store there are {}",
                    "listen, poll and poll-unfair"
                )));
            }
            if url.contains("scheme=") {
                return Err(Error::usage(format!(
                    "{self} chooses the layout itself; leave `scheme=` out of the URL"
                )));
            }
            Ok(format!("{url}{}scheme={scheme}", if url.contains('?') { '&' } else { '?' }))
        };
        match url.strip_prefix("quorum:") {
            Some(nodes) if self.way == Way::PollString => {
                let nodes = nodes.split(',').map(joined).collect::<Result<Vec<_>>>()?;
                Ok(format!("quorum:{}", nodes.join(",")))
            }
            _ => joined(url),
        }
    }

    /// Whether the store supports this way to wait, or why not.
    pub(crate) fn check(self, capabilities: Capabilities) -> Result<()> {
        let Capabilities { fair_queue, notifications, token_ranges, .. } = capabilities;
        let lacks = |what: &str| Err(Error::usage(format!("{self}: the store has no {what}")));
        match self.way {
            Way::Listen | Way::ListenShared if !fair_queue => lacks("line to have a place in"),
            Way::Listen | Way::ListenShared | Way::ListenUnfair if !notifications => {
                lacks("notices, so waiters poll")
            }
            Way::Handoff if !token_ranges => lacks("local handoff"),
            Way::Poll if !fair_queue => lacks("line to have a place in; use poll-unfair"),
            _ => Ok(()),
        }
    }

    /// A label for people: the store's actual behaviour.
    pub(crate) fn label(self) -> String {
        let pauses = self.schedule.map_or(String::new(), |schedule| format!(" {schedule}"));
        match self.way {
            Way::Listen => "listen, fair".to_owned(),
            Way::ListenShared => "listen, fair, one connection a process".to_owned(),
            Way::Handoff => "listen, handed on within a process".to_owned(),
            Way::ListenUnfair => "listen, unfair (redisson layout)".to_owned(),
            Way::Poll => format!("poll{pauses}, fair"),
            Way::PollUnfair => format!("poll{pauses}, unfair"),
            Way::PollString => format!("poll{pauses}, string key, unfair"),
        }
    }

    pub(crate) fn mutex(self, mutex: Mutex) -> Mutex {
        let mutex = match self.schedule {
            Some(schedule) => mutex.poll(schedule.backoff()),
            None => mutex,
        };
        match self.way {
            Way::PollUnfair => mutex.unfair(),
            Way::Handoff => mutex.handoff(HANDOFF.0, HANDOFF.1),
            _ => mutex,
        }
    }

    pub(crate) fn rwlock(self, lock: RwLock) -> RwLock {
        let lock = match self.schedule {
            Some(schedule) => lock.poll(schedule.backoff()),
            None => lock,
        };
        if self.way == Way::PollUnfair { lock.unfair() } else { lock }
    }

    pub(crate) fn semaphore(self, lock: Semaphore) -> Semaphore {
        let lock = match self.schedule {
            Some(schedule) => lock.poll(schedule.backoff()),
            None => lock,
        };
        if self.way == Way::PollUnfair { lock.unfair() } else { lock }
    }
}

impl Schedule {
    fn backoff(self) -> Backoff {
        match self {
            Schedule::Fixed(pause) => Backoff::fixed(pause),
            Schedule::Shrinking(from) => Backoff::shrinking(from),
            Schedule::Jittered(from, most) => Backoff::exponential(from, most).jitter(50),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once('=').map_or((text, None), |(k, v)| (k, Some(v)));
        let millis = |text: &str| {
            let number: f64 = text.strip_suffix("ms")?.parse().ok()?;
            (0.1..=60_000.0).contains(&number).then(|| Duration::from_secs_f64(number / 1e3))
        };
        match (kind, value) {
            ("fixed", None) => Some(Schedule::Fixed(FIFTY)),
            ("fixed", Some(value)) => millis(value).map(Schedule::Fixed),
            ("shrinking", None) => Some(Schedule::Shrinking(FIFTY)),
            ("shrinking", Some(value)) => millis(value).map(Schedule::Shrinking),
            ("jittered", None) => {
                Some(Schedule::Jittered(Duration::from_millis(5), Duration::from_millis(100)))
            }
            ("jittered", Some(value)) => {
                let (from, most) = value.split_once("..")?;
                let (from, most) = (millis(from)?, millis(most)?);
                (from <= most).then_some(Schedule::Jittered(from, most))
            }
            _ => None,
        }
    }

    fn word(self) -> String {
        let ms = |time: Duration| format!("{}ms", time.as_secs_f64() * 1e3);
        match self {
            Schedule::Fixed(pause) => format!("fixed={}", ms(pause)),
            Schedule::Shrinking(from) => format!("shrinking={}", ms(from)),
            Schedule::Jittered(from, most) => format!("jittered={}..{}", ms(from), ms(most)),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        match self {
            Schedule::Fixed(pause) => write!(f, "{} ms", ms(pause)),
            Schedule::Shrinking(from) => write!(f, "{} to 10 ms", ms(from)),
            Schedule::Jittered(from, most) => write!(f, "{} to {} ms ± 50%", ms(from), ms(most)),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WAYS.iter().find(|(_, way)| *way == self.way).map_or("", |(name, _)| name);
        match self.schedule {
            Some(schedule) => write!(f, "{name}:{}", schedule.word()),
            None => f.write_str(name),
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, schedule) = text.split_once(':').map_or((text, None), |(n, s)| (n, Some(s)));
        let way = WAYS.iter().find(|(known, _)| *known == name).map(|(_, way)| *way);
        let way = way.ok_or_else(|| {
            let known: Vec<&str> = WAYS.iter().map(|(name, _)| *name).collect();
            Error::usage(format!("{name:?} is no way to wait; known are {}", known.join(", ")))
        })?;
        match (way.polls(), schedule) {
            (false, Some(_)) => {
                Err(Error::usage(format!("{text}: a client that listens has no schedule")))
            }
            (false, None) => Ok(Mode { way, schedule: None }),
            (true, None) => Ok(Mode { way, schedule: Some(Schedule::Fixed(FIFTY)) }),
            (true, Some(words)) => {
                let schedule = Schedule::parse(words).ok_or_else(|| {
                    Error::usage(format!(
                        "{words:?} is no schedule; examples: fixed, fixed=50ms, shrinking, \
                         shrinking=50ms, jittered, jittered=5ms..100ms"
                    ))
                })?;
                Ok(Mode { way, schedule: Some(schedule) })
            }
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

impl TryFrom<String> for Mode {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in ["listen", "handoff", "poll:fixed=20ms", "poll-unfair:jittered=5ms..100ms"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
        assert_eq!("poll-string".parse::<Mode>().unwrap().to_string(), "poll-string:fixed=50ms");
        assert_eq!("poll:shrinking".parse::<Mode>().unwrap().label(), "poll 50 to 10 ms, fair");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in ["", "spin", "listen:fixed", "poll:fixed=0ms", "poll:jittered=9ms..1ms"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }

    #[test]
    fn layouts_are_chosen_for_redis_alone() {
        let mode: Mode = "poll-string".parse().unwrap();
        assert_eq!(mode.url("redis://h/1?a=b").unwrap(), "redis://h/1?a=b&scheme=string");
        let quorum = mode.url("quorum:redis://a,redis://b").unwrap();
        assert_eq!(quorum, "quorum:redis://a?scheme=string,redis://b?scheme=string");
        assert!(mode.url("etcd://h").is_err());
        assert!(mode.url("redis://h?scheme=redisson").is_err());
    }
}
