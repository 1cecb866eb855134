//! The clients of an outage run, in processes of their own, and their progress.

use super::role::{PART, Part, election, mutex};
use crate::judge::Folder;
use crate::workers::{process, soon};
use holdline_checker::{Event, Op, Phase, Reason};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
const WAITERS: usize = 16;
const STANDBYS: usize = 8;
const OBSERVERS: usize = 4;

/// The processes, killed when this is dropped.
pub(super) struct Clients {
    children: Vec<Child>,
    names: Vec<String>,
    /// The events of waiters and standbys.
    history: Progress,
    /// The events of observers.
    observed: Progress,
    /// A time longer than any step that ends.
    limit: Duration,
}

/// A growing file of events, and its content so far.
struct Progress {
    file: File,
    rest: Vec<u8>,
    /// When each client was last served.
    served: BTreeMap<String, u64>,
    /// The processes that reported the store as unavailable.
    unexpected: Vec<String>,
    last: u64,
}

impl Progress {
    fn of(path: &Path) -> Self {
        let file = File::options().create(true).append(true).read(true).open(path).unwrap();
        let (served, unexpected) = (BTreeMap::new(), Vec::new());
        Progress { file, rest: Vec::new(), served, unexpected, last: 0 }
    }

    fn read(&mut self) {
        self.file.read_to_end(&mut self.rest).unwrap();
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.take(serde_json::from_slice(line).unwrap());
        }
    }

    fn take(&mut self, event: Event) {
        self.last = self.last.max(event.t);
        match (event.op, event.ph, event.reason) {
            (Op::Acquire, Phase::Ok, _) => _ = self.served.insert(event.process, event.t),
            (Op::Acquire, _, Some(Reason::Other(error))) => {
                self.unexpected.push(format!("{}: {error}", event.process));
            }
            _ => {}
        }
    }
}

impl Clients {
    pub(super) fn start(folder: &Folder, run: &str, url: &str, lease: Duration) -> Self {
        let [history, observed] =
            ["history.jsonl", "observed.jsonl"].map(|name| folder.path().join(name));
        let names = |word: &str, all: usize, of: usize| -> Vec<String> {
            (of..all).step_by(PROCESSES).map(|at| format!("{word}{at}")).collect()
        };
        let parts = (0..PROCESSES).map(|of| Part {
            url: url.to_owned(),
            run: run.to_owned(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap(),
            waiters: names("w", WAITERS, of),
            standbys: names("s", STANDBYS, of),
            observers: names("o", OBSERVERS, of),
            history: history.clone(),
            observed: observed.clone(),
        });
        let mut all = Vec::new();
        let started = |part: Part| {
            all.extend([&part.waiters[..], &part.standbys, &part.observers].concat());
            process(PART, &serde_json::to_string(&part).unwrap())
        };
        let children = parts.map(started).collect();
        let [history, observed] = [&history, &observed].map(|path| Progress::of(path));
        // Each lock goes round once, after some leases have expired.
        let limit = Duration::from_secs(60) + lease * 4;
        Clients { children, names: all, history, observed, limit }
    }

    /// Waits until this client has just succeeded again.
    pub(super) fn served_now(&mut self, name: &str) {
        let since = holdline::clock::now().0;
        let until = Instant::now() + self.limit;
        while self.history.served.get(name).is_none_or(|at| *at < since) {
            assert!(Instant::now() < until, "{name} is never served");
            std::thread::sleep(Duration::from_millis(10));
            self.history.read();
        }
    }

    /// Waits until each client has succeeded again from now on.
    pub(super) fn all_served(&mut self, when: &str, url: &str) {
        let since = holdline::clock::now().0;
        let until = Instant::now() + self.limit;
        loop {
            self.history.read();
            self.observed.read();
            let served = |name: &String| {
                let last = self.history.served.get(name).or(self.observed.served.get(name));
                last.is_some_and(|at| *at > since)
            };
            let missing: Vec<_> = self.names.iter().filter(|name| !served(name)).collect();
            if missing.is_empty() {
                return;
            }
            let unexpected = self.unexpected();
            assert!(
                Instant::now() < until,
                "{when}: never served again: {missing:?}; {unexpected:#?}; the store shows {:#?}",
                look(url, when.split(',').next().unwrap())
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The processes that reported the store as unavailable.
    pub(super) fn unexpected(&self) -> Vec<&str> {
        let all = self.history.unexpected.iter().chain(&self.observed.unexpected);
        all.map(|text| text.get(..400).unwrap_or(text)).collect()
    }

    /// Lets all clients finish.
    pub(super) fn end(&mut self, run: &str) {
        self.children.iter_mut().for_each(|child| drop(child.stdin.take()));
        for child in &mut self.children {
            assert!(soon(|| child.try_wait().unwrap().is_some()), "{run}: a client does not end");
            assert!(child.wait().unwrap().success(), "{run}: a client failed");
        }
        self.history.read();
        self.observed.read();
    }
}

/// The store's view of the locks, as text.
fn look(url: &str, run: &str) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = match holdline::open(url).await {
            Ok(client) => client,
            Err(error) => return vec![format!("{error:#}")],
        };
        let mut seen = Vec::new();
        for lock in [mutex(run), election(run)] {
            seen.push(match client.inspect(&lock).await {
                Ok(info) => {
                    let say = |participant: &holdline::Participant| {
                        let name = participant.note.label.clone().unwrap_or_default();
                        format!("{name} {} for {:?}", participant.token, participant.expires_in)
                    };
                    let holders: Vec<_> = info.holders.iter().map(say).collect();
                    let waiters: Vec<_> = info.waiters.iter().map(say).collect();
                    format!("{lock}: {holders:?} hold, {waiters:?} wait")
                }
                Err(error) => format!("{lock}: {error:#}"),
            });
        }
        seen
    })
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
