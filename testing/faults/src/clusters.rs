//! Fault runs on stores with several nodes: each store is one row of promises.
//!
//! Half of the clients reach the nodes over links of their own, which break, the others directly.
//! The nodes reach each other over links as well. Whatever happens, no client may be admitted
//! beside a holder that has not been notified of its loss, and tokens must rise.

use crate::Case;
use crate::copies;
use crate::inject::{Breakage, Fault};
use crate::nodes::{Place, cut_off};
use crate::run::{Run, WOKEN};
use holdline_checker::{Expect, Handoff, Rule, Unpromised};
use holdline_testkit::{Private, etcd, zookeeper};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The runs, named after their stores.
pub(crate) const CASES: &[Case] = &[
    ("etcd_calm", || ETCD.calm("etcd_calm")),
    ("etcd_kill", || ETCD.kill("etcd_kill")),
    ("etcd_pause", || ETCD.pause("etcd_pause")),
    ("etcd_nodes", || ETCD.nodes("etcd_nodes", 16)),
    ("etcd_links", || ETCD.links("etcd_links", 20)),
    ("etcd_mixed", || ETCD.mixed("etcd_mixed", 20)),
    ("zookeeper_calm", || ZOOKEEPER.calm("zookeeper_calm")),
    ("zookeeper_kill", || ZOOKEEPER.kill("zookeeper_kill")),
    ("zookeeper_pause", || ZOOKEEPER.pause("zookeeper_pause")),
    ("zookeeper_nodes", || ZOOKEEPER.nodes("zookeeper_nodes", 20)),
    ("zookeeper_mixed", || ZOOKEEPER.mixed("zookeeper_mixed", 32)),
];

/// etcd counts leases in whole seconds, 2 s at least, and checks for expired ones twice a second. A
/// change of leader renews all leases.
const ETCD: Row = Row {
    scheme: "etcd",
    options: "",
    start: || Some(etcd::start_apart(3)?.0),
    handoff: Some(WOKEN),
    calm: 0.6,
    liveness: 8_000_000_000,
    late: [2_500_000_000, 5_000_000_000],
    settle: 3_000_000_000,
    grants: 60,
    share: 1,
    pace: [5, 2],
    longest_pause: 2.5,
    differ: |_| None,
};

/// ZooKeeper removes a dead client's entries with its session, and an election renews all sessions.
/// A node takes seconds to come back.
const ZOOKEEPER: Row = Row {
    scheme: "zookeeper",
    options: "?session=5s",
    start: || Some(zookeeper::start_apart(3)?.members),
    handoff: None,
    calm: 1.0,
    liveness: 12_000_000_000,
    late: [4_500_000_000, 8_000_000_000],
    settle: 5_000_000_000,
    grants: 30,
    share: 0,
    pace: [3, 1],
    longest_pause: 3.5,
    differ: copies::differ,
};

/// A lease near the longest that a session of 5 s can guarantee.
const LEASE: Duration = Duration::from_millis(1500);

/// A store on three nodes, and its promises. Times are in nanoseconds.
struct Row {
    scheme: &'static str,
    /// The part of the URL after the nodes.
    options: &'static str,
    /// Three nodes that can be cut off from each other; `None` if they are not installed.
    start: fn() -> Option<Private>,
    /// How fast waiters are woken in the calm run, if it has enough of them to measure.
    handoff: Option<Handoff>,
    /// The length of the calm run, relative to the usual one.
    calm: f64,
    /// The longest wait of a client.
    liveness: u64,
    /// The longest that anything of a dead client stays beyond its lease, with healthy nodes and
    /// with broken ones.
    late: [u64; 2],
    /// The recovery time after a fault.
    settle: u64,
    /// The minimum number of grants of a run in which clients or nodes break.
    grants: usize,
    /// The minimum share of grants, in percent, of each client while nodes or links break.
    share: u32,
    /// The minimum number of grants per second, while clients break and while everything does.
    pace: [u64; 2],
    /// The longest time for which a client is stopped, in leases.
    longest_pause: f64,
    /// The way in which the nodes' copies of the data came to differ, from their folders.
    differ: fn(&[PathBuf]) -> Option<String>,
}

/// The number of runs that may end with differing copies.
const DIFFERENT: usize = 3;

impl Row {
    fn place(&self) -> Option<Place> {
        Some(Place::of((self.start)()?, self.scheme, self.options, LEASE))
    }

    /// The promises of healthy nodes: everything.
    fn strict(&self) -> Expect {
        Expect {
            fifo: true,
            keeps_leases: true,
            min_acquires: 60,
            liveness_ns: Some(self.liveness),
            late_ns: self.late[0],
            ..Expect::default()
        }
    }

    /// The promises of broken nodes: an election takes part of so short a lease.
    fn shaken(&self, ways: &[Arc<dyn Breakage>]) -> Expect {
        let excuse = |way: &Arc<dyn Breakage>| Unpromised::to_all(way.kind(), [Rule::R12]);
        let unpromised = ways.iter().map(excuse).collect();
        let (late_ns, settle_ns) = (self.late[1], self.settle);
        let min_share_percent = self.share;
        self.fewer(Expect { unpromised, late_ns, settle_ns, min_share_percent, ..self.strict() })
    }

    /// The places of a killed client may be kept for a session.
    fn fewer(&self, expect: Expect) -> Expect {
        Expect { min_acquires: self.grants, ..expect }
    }

    fn calm(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        let run = place.run(title, Expect { handoff: self.handoff, ..self.strict() });
        Run { time: run.time.mul_f64(self.calm), ..run }.go().must_be_ok();
    }

    fn kill(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        // The last client to be started may be too late for a share.
        let expect = Expect { min_share_percent: 0, ..self.fewer(self.strict()) };
        let run = place.run(title, expect);
        Run { faults: vec![Fault::Kill; 2], pace: self.pace[0], ..run }.go().must_be_ok();
    }

    fn pause(&self, title: &'static str) {
        let Some(place) = self.place() else { return };
        let run = place.run(title, Expect { min_expiries: 1, ..self.strict() });
        let faults = vec![Fault::Pause; 3];
        // Long sections, so that a client seen to hold still does when it is stopped.
        let work = Duration::from_millis(60);
        let (pause, pace) = ((0.3, self.longest_pause), self.pace[0]);
        Run { faults, work, pause, gap_ms: 200, pace, ..run }.go().must_be_ok();
    }

    fn nodes(&self, title: &'static str, seconds: u64) {
        self.rounds(seconds, |place| {
            let ways = place.nodes();
            let run = place.run(title, self.shaken(&ways));
            Run { faults: vec![Fault::Store(ways)], pace: 3, ..run }
        });
    }

    /// Runs it on nodes of its own. A bad verdict does not count if the nodes have broken their own
    /// promise, and disagree: then the run is repeated.
    fn rounds(&self, seconds: u64, run: impl Fn(&Place) -> Run) {
        for _ in 0..DIFFERENT {
            let Some(place) = self.place() else { return };
            let work = AssertUnwindSafe(|| run(&place).rounds(seconds));
            let Err(failure) = catch_unwind(work) else { return };
            let Some(difference) = (self.differ)(&place.folders()) else { resume_unwind(failure) };
            println!("the nodes disagree, so that says nothing: {difference}");
        }
        panic!("the nodes disagreed in {DIFFERENT} runs");
    }

    fn links(&self, title: &'static str, seconds: u64) {
        let Some(place) = self.place() else { return };
        let ways = cut_off(&place.routes);
        let run = place.run(title, self.shaken(&ways));
        Run { faults: vec![Fault::Store(ways)], pace: 3, ..run }.rounds(seconds);
    }

    /// Everything at once.
    fn mixed(&self, title: &'static str, seconds: u64) {
        self.rounds(seconds, |place| {
            let (nodes, links) = (place.nodes(), cut_off(&place.routes));
            let expect = self.shaken(&[&nodes[..], &links[..]].concat());
            let run = place.run(title, Expect { min_share_percent: 0, ..expect });
            let faults = [Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force];
            let faults =
                faults.into_iter().chain([Fault::Store(nodes), Fault::Store(links)]).collect();
            let (pause, pace) = ((0.2, 2.0), self.pace[1]);
            Run { faults, pause, gap_ms: 600, pace, ..run }
        });
    }
}
