//! Fault runs over three nodes of ZooKeeper.
//!
//! Half of the clients reach the nodes over links of their own, which break, the others directly.
//! The nodes reach each other over links as well.

use crate::inject::{Breakage, Fault};
use crate::nodes::{Place, cut_off};
use crate::run::Run;
use crate::{Case, cases};
use holdline_checker::{Expect, Rule, Unpromised};
use holdline_testkit::zookeeper::start_apart;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CASES: &[Case] =
    cases![zookeeper_calm, zookeeper_kill, zookeeper_pause, zookeeper_nodes, zookeeper_mixed];

/// Near the longest that a session of 5 s vouches for.
const LEASE: Duration = Duration::from_millis(1500);
const SESSION: &str = "?session=5s";

fn place() -> Option<Place> {
    Some(Place::of(start_apart(3)?.members, "zookeeper", SESSION, LEASE))
}

/// What an ensemble promises while its nodes are well: everything. What a dead client has left goes
/// with its session.
fn strict() -> Expect {
    Expect {
        fifo: true,
        keeps_leases: true,
        min_acquires: 60,
        liveness_ns: Some(12_000_000_000),
        late_ns: 4_500_000_000,
        ..Expect::default()
    }
}

/// An election takes part of a lease this short; and gives all sessions anew.
fn shaken(ways: &[Arc<dyn Breakage>]) -> Expect {
    let excuse = |way: &Arc<dyn Breakage>| Unpromised { fault: way.kind(), rules: vec![Rule::R12] };
    let unpromised = ways.iter().map(excuse).collect();
    Expect { unpromised, late_ns: 8_000_000_000, settle_ns: 5_000_000_000, ..strict() }
}

/// Whatever a client that is killed had is kept for its session, and who was started last may have
/// come too late for a share.
fn fewer(expect: Expect) -> Expect {
    Expect { min_acquires: 30, min_share_percent: 0, ..expect }
}

fn zookeeper_calm() {
    let Some(place) = place() else { return };
    place.run("zookeeper_calm", strict()).go().must_be_ok();
}

fn zookeeper_kill() {
    let Some(place) = place() else { return };
    let run = place.run("zookeeper_kill", fewer(strict()));
    Run { faults: vec![Fault::Kill; 2], pace: 3, ..run }.go().must_be_ok();
}

fn zookeeper_pause() {
    let Some(place) = place() else { return };
    let run = place.run("zookeeper_pause", Expect { min_expiries: 1, ..strict() });
    let faults = vec![Fault::Pause; 3];
    // Long sections, so that who is found to hold still does when it is stopped.
    let work = Duration::from_millis(60);
    Run { faults, work, pause: (0.3, 3.5), gap_ms: 200, pace: 3, ..run }.go().must_be_ok();
}

fn zookeeper_nodes() {
    let Some(place) = place() else { return };
    let ways = place.nodes();
    let run = place.run("zookeeper_nodes", fewer(shaken(&ways)));
    Run { faults: vec![Fault::Store(ways)], pace: 3, ..run }.rounds(20);
}

fn zookeeper_mixed() {
    let Some(place) = place() else { return };
    let (nodes, links) = (place.nodes(), cut_off(&place.routes));
    let run = place.run("zookeeper_mixed", fewer(shaken(&[&nodes[..], &links[..]].concat())));
    let faults = [Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force];
    let faults = faults.into_iter().chain([Fault::Store(nodes), Fault::Store(links)]).collect();
    // Twelve ways to break it, and a node takes seconds to come back.
    Run { faults, pause: (0.2, 2.0), gap_ms: 600, pace: 1, ..run }.rounds(32);
}
