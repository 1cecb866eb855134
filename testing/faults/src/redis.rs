//! Fault runs on one Redis server, and on one with a failover.
//!
//! Half of the clients reach the server over a link that breaks, the others directly. A server that
//! keeps its data promises everything. [`forgetful`] has what a server does not promise when it
//! loses them; even then every stale token must be refused.

use crate::breakages::{self, INSTANT, Reversible, Shared, lock};
use crate::inject::{Breakage, Fault};
use crate::run::{Run, WOKEN};
use crate::{Case, cases};
use holdline_checker::{Expect, FaultKind, Rule, Unpromised};
use holdline_testkit::Link;
use holdline_testkit::redis::{Server, private};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const CASES: &[Case] = cases![
    redis_calm,
    redis_kill,
    redis_pause,
    redis_force,
    redis_mixed,
    redis_string,
    redis_forgets
];

/// The promises of a server that keeps its data: everything.
pub(crate) fn strict() -> Expect {
    Expect {
        fifo: true,
        keeps_leases: true,
        liveness_ns: Some(5_000_000_000),
        // A crash blocks the lock for a lease, and the machine may be busy.
        min_acquires: 100,
        // Messages stalled on the way to the server arrive when the link is repaired.
        late_ns: 1_500_000_000,
        ..Expect::default()
    }
}

/// The rules not promised under a fault that makes the store forget places: that no client is
/// admitted beside their holders, which learn of it when they renew; and their order. Tokens still
/// rise, and stale ones are refused.
pub(crate) fn forgetful(fault: FaultKind) -> Unpromised {
    Unpromised::to_all(fault, [Rule::R1, Rule::R4, Rule::R5, Rule::R6, Rule::R9, Rule::R12])
}

/// The arguments of a server that syncs everything before it acknowledges it.
pub(crate) const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server, and the link over which every other client reaches it.
pub(crate) struct Place {
    pub(crate) server: Shared<Server>,
    link: Arc<Link>,
    url: String,
}

pub(crate) fn place(test: &str, args: &[&str]) -> Option<Place> {
    let server = private(test, args)?;
    let link = Link::to(("127.0.0.1", server.port())).unwrap();
    let url = server.url().to_owned();
    Some(Place { server: Arc::new(Mutex::new(server)), link: Arc::new(link), url })
}

impl Place {
    /// A run on it; `options` are appended to the URLs.
    fn run(&self, title: &'static str, options: &str, expect: Expect) -> Run {
        let routes = self.routes().map(|route| format!("{route}{options}"));
        Run { routes: routes.to_vec(), pace: 5, ..Run::new(title, routes[0].clone(), expect) }
    }

    /// The URLs: direct, and over the link.
    pub(crate) fn routes(&self) -> [String; 2] {
        [self.url.clone(), format!("redis://{}", self.link.address())]
    }

    fn ask(&self, kind: FaultKind, breaks: fn(&Mutex<Server>)) -> Arc<dyn Breakage> {
        let part = Arc::clone(&self.server);
        Arc::new(Reversible { kind, duration: INSTANT, part, breaks, repairs: |_| {} })
    }

    /// All breakages that make the server forget no place.
    pub(crate) fn faults(&self) -> Vec<Arc<dyn Breakage>> {
        let mut all = vec![
            breakages::restarts(&self.server),
            self.ask(breakages::kind("script_flush"), |server| {
                lock(server).query::<()>(&["SCRIPT", "FLUSH"]);
            }),
            self.ask(breakages::kind("notices_cut"), |server| {
                lock(server).query::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }),
        ];
        all.extend(breakages::stops(&self.server));
        all.extend(breakages::links(&self.link));
        all
    }
}

/// A lease short enough for many locks to expire in a few seconds.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

fn redis_calm() {
    let Some(place) = place("redis_calm", &[]) else { return };
    let handoff = Some(WOKEN);
    let run = place.run("redis_calm", "", Expect { handoff, ..strict() });
    Run { time: run.time.mul_f64(0.6), ..run }.go().must_be_ok();
}

fn redis_kill() {
    let Some(place) = place("redis_kill", &[]) else { return };
    // The last client to be started may be too late for a share.
    let run = place.run("redis_kill", "", Expect { min_share_percent: 0, ..strict() });
    Run { faults: vec![Fault::Kill; 2], lease: LEASE, ..run }.go().must_be_ok();
}

fn redis_pause() {
    let Some(place) = place("redis_pause", &[]) else { return };
    let run = place.run("redis_pause", "", Expect { min_expiries: 3, ..strict() });
    Run { faults: vec![Fault::Pause; 3], lease: LEASE, gap_ms: 200, ..run }.go().must_be_ok();
}

fn redis_force() {
    let Some(place) = place("redis_force", &[]) else { return };
    let run = place.run("redis_force", "", strict());
    let time = run.time.mul_f64(0.6);
    let outcome = Run { faults: vec![Fault::Force; 2], time, gap_ms: 150, ..run }.go();
    if outcome.tally.lost < 5 {
        return outcome.must(false, "too few victims of force were told of it");
    }
    outcome.must_be_ok();
}

/// Everything at once, on a server that keeps what it has acknowledged: so everything is promised.
fn redis_mixed() {
    let Some(place) = place("redis_mixed", &KEEPS) else { return };
    let expect = Expect { min_expiries: 1, min_share_percent: 0, ..strict() };
    let run = place.run("redis_mixed", "", expect);
    let store = Fault::Store(place.faults());
    let faults = vec![Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force, store];
    Run { faults, lease: LEASE, ..run }.rounds(16);
}

/// The same with string keys: mutexes only, no tokens, no order.
fn redis_string() {
    let Some(place) = place("redis_string", &KEEPS) else { return };
    let expect = Expect { fifo: false, min_share_percent: 0, ..strict() };
    let run = place.run("redis_string", "?scheme=string&prefix=lock:", expect);
    let store = Fault::Store(place.faults());
    let faults = vec![Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force, store];
    let work = Duration::from_millis(40);
    Run { faults, work, lease: LEASE, ..run }.rounds(12);
}

/// The server loses its data, again and again.
fn redis_forgets() {
    let Some(place) = place("redis_forgets", &[]) else { return };
    let flush = place.ask(FaultKind::StoreFlush, |server| {
        lock(server).query::<()>(&["FLUSHALL"]);
    });
    let forgets = breakages::forgets(&place.server, (0.0, 0.5));
    let unpromised = vec![forgetful(flush.kind()), forgetful(forgets.kind())];
    let run = place.run("redis_forgets", "", Expect { unpromised, ..strict() });
    let store = Fault::Store(vec![flush, forgets]);
    let outcome = Run { faults: vec![store], lease: LEASE, ..run }.go();
    if outcome.tally.lost == 0 {
        return outcome.must(false, "nobody was told that the server forgot its lock");
    }
    outcome.must_be_ok();
}
