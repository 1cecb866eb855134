//! Fault runs on locks in databases: each store is one row of promises.
//!
//! Half of the clients reach the server over a link that breaks, the others directly.

use crate::breakages::{self, INSTANT, Reversible, Shared, kind, lock};
use crate::contention::contend;
use crate::inject::{Breakage, Fault};
use crate::redis::{LEASE, strict};
use crate::run::Run;
use holdline_checker::{Expect, FaultKind, Rule, Unpromised};
use holdline_testkit::{Link, Private, Server, WallClock, Way};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A scheme of locks in a database, and its promises.
pub(crate) struct Row {
    /// A server that keeps what it has acknowledged, whose URL has its port once; `None`, with a
    /// note, if it is not installed.
    pub(crate) start: fn() -> Option<Private>,
    /// The options of a store's URL.
    pub(crate) options: &'static str,
    /// Ends the sessions of all stores on this port.
    pub(crate) end_sessions: fn(u16),
    pub(crate) holders: Holders,
}

/// How locks are held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holders {
    /// By leases, in a queue.
    Leases,
    /// By leases that no queue orders.
    UnqueuedLeases,
    /// By sessions or transactions, without a queue: when they end, the lock is free at once.
    Sessions,
    /// The same, but the store does not know the tickets of other clients' locks.
    SessionsUnnamed,
}

/// The rules that sessions do not promise when they end: that a holder is notified before a rival
/// is admitted. Its socket notifies it at once, but the rival's does so too.
const OF_SESSIONS: [Rule; 6] = [Rule::R1, Rule::R4, Rule::R5, Rule::R6, Rule::R9, Rule::R12];

/// The rules that a lease table does not promise when a crash undoes the last departures, whose
/// commits are not waited for: that a released lock is free, and that a client admitted by a
/// departure that was not yet durable keeps the lock.
const OF_DEPARTURES: [Rule; 2] = [Rule::R6, Rule::R12];

/// A database's server.
struct Database {
    servers: Private,
    end_sessions: fn(u16),
}

impl Deref for Database {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.servers.servers[0]
    }
}

impl DerefMut for Database {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.servers.servers[0]
    }
}

/// A server, and the link over which every other client reaches it.
struct Place<'a> {
    row: &'a Row,
    server: Shared<Database>,
    link: Arc<Link>,
    routes: [String; 2],
}

impl Row {
    fn place(&self) -> Option<Place<'_>> {
        let servers = (self.start)()?;
        let port = servers.servers[0].port();
        let link = Link::to(("127.0.0.1", port)).unwrap();
        let direct = format!("{}{}", servers.url(), self.options);
        let over_link =
            direct.replace(&format!(":{port}/"), &format!(":{}/", link.address().port()));
        assert_ne!(direct, over_link);
        let server = Database { servers, end_sessions: self.end_sessions };
        let server = Arc::new(Mutex::new(server));
        Some(Place { row: self, server, link: Arc::new(link), routes: [direct, over_link] })
    }

    /// Nothing breaks.
    pub(crate) fn calm(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        let run = place.run(title, self.strict());
        Run { time: run.time.mul_f64(0.6), ..run }.go().must_be_ok();
    }

    /// Clients are killed and stopped, and most of their wall clocks are wrong by minutes.
    pub(crate) fn clients(&self, title: &'static str) {
        let (Some(place), Some(clocks)) = (self.place(), WallClock::new()) else { return };
        let expect = Expect { min_share_percent: 0, min_expiries: 1, ..self.strict() };
        let run = Run { clocks: Some(Arc::new(clocks)), lease: LEASE, ..place.run(title, expect) };
        Run { faults: vec![Fault::Kill, Fault::Pause, Fault::Pause], ..run }.go().must_be_ok();
    }

    /// Everything breaks at once.
    pub(crate) fn mixed(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        let store = place.faults();
        let excuse = |way: &Arc<dyn Breakage>| {
            let rules = self.unpromised(&way.kind());
            (!rules.is_empty()).then(|| Unpromised::to_all(way.kind(), rules))
        };
        let unpromised = store.iter().filter_map(excuse).collect();
        let expect = Expect { min_expiries: 1, min_share_percent: 0, unpromised, ..self.strict() };
        let mut faults = vec![Fault::Kill, Fault::Pause, Fault::Pause, Fault::Store(store)];
        if self.holders == Holders::Leases {
            faults.push(Fault::Force);
        }
        let (lease, work) = (LEASE, Duration::from_millis(20));
        Run { lease, work, faults, ..place.run(title, expect) }.rounds(16);
    }

    /// See [`contend`].
    pub(crate) fn contend(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        contend(title, &place.routes[0]);
    }

    /// The promises of a healthy, reachable server: everything.
    fn strict(&self) -> Expect {
        Expect { fifo: self.holders == Holders::Leases, ..strict() }
    }

    fn unpromised(&self, fault: &FaultKind) -> Vec<Rule> {
        match self.holders {
            Holders::Leases if *fault == FaultKind::StoreRestart => OF_DEPARTURES.to_vec(),
            Holders::Leases => Vec::new(),
            _ if ends_sessions(fault) => OF_SESSIONS.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// Whether a fault ends the sessions of live clients.
fn ends_sessions(fault: &FaultKind) -> bool {
    match fault {
        FaultKind::Partition | FaultKind::StoreRestart => true,
        FaultKind::Other(word) => ENDS_SESSIONS.contains(&word.as_str()),
        _ => false,
    }
}

const ENDS_SESSIONS: [&str; 3] = ["sessions_ended", "link_reset", "replies_lost"];

impl Place<'_> {
    fn run(&self, title: &'static str, expect: Expect) -> Run {
        let run = Run::new(title, self.routes[0].clone(), expect);
        let names_holders = self.row.holders != Holders::SessionsUnnamed;
        Run { routes: self.routes.to_vec(), pace: 5, names_holders, ..run }
    }

    /// All breakages of the server and of the link to it.
    fn faults(&self) -> Vec<Arc<dyn Breakage>> {
        let mut all = vec![breakages::restarts(&self.server), self.sessions_ended()];
        all.extend(breakages::stops(&self.server));
        all.extend(breakages::links(&self.link));
        all.push(self.link("silence", (0.1, 1.5), |link| link.stall(Way::Both)));
        all.push(self.link("link_reset", INSTANT, Link::reset));
        all
    }

    fn sessions_ended(&self) -> Arc<dyn Breakage> {
        Arc::new(Reversible {
            kind: kind("sessions_ended"),
            duration: INSTANT,
            part: Arc::clone(&self.server),
            breaks: |server| {
                let server = lock(server);
                (server.end_sessions)(server.port());
            },
            repairs: |_| {},
        })
    }

    fn link(&self, word: &str, duration: (f64, f64), breaks: fn(&Link)) -> Arc<dyn Breakage> {
        let (kind, part) = (kind(word), Arc::clone(&self.link));
        Arc::new(Reversible { kind, duration, part, breaks, repairs: Link::mend })
    }
}
