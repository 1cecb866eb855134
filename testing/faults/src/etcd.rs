//! Fault runs over three nodes of etcd.
//!
//! Half of the clients reach the nodes over links of their own, which break, the others directly.
//! The nodes reach each other over links as well. Whatever happens, nobody may be let in beside a
//! holder that has not been told, and tokens must rise.

use crate::inject::{Breakage, Fault};
use crate::nodes::{Place, cut_off};
use crate::run::{Run, WOKEN};
use crate::{Case, cases};
use holdline_checker::{Expect, Rule, Unpromised};
use holdline_testkit::etcd::start_apart;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CASES: &[Case] =
    cases![etcd_calm, etcd_kill, etcd_pause, etcd_nodes, etcd_links, etcd_mixed];

/// etcd keeps it for 2 s, its least.
const LEASE: Duration = Duration::from_millis(1500);

fn place() -> Option<Place> {
    Some(Place::of(start_apart(3)?.0, "etcd", "", LEASE))
}

/// What a cluster promises while its nodes are well: everything. etcd counts leases in whole
/// seconds, and looks twice a second for those that have run out.
fn strict() -> Expect {
    Expect {
        fifo: true,
        keeps_leases: true,
        min_acquires: 60,
        liveness_ns: Some(8_000_000_000),
        late_ns: 2_500_000_000,
        ..Expect::default()
    }
}

/// A change of leaders takes part of a lease this short; and gives all leases anew.
fn shaken(ways: &[Arc<dyn Breakage>]) -> Expect {
    let excuse = |way: &Arc<dyn Breakage>| Unpromised { fault: way.kind(), rules: vec![Rule::R12] };
    let unpromised = ways.iter().map(excuse).collect();
    Expect { unpromised, late_ns: 5_000_000_000, settle_ns: 3_000_000_000, ..strict() }
}

fn etcd_calm() {
    let Some(place) = place() else { return };
    let handoff = Some(WOKEN);
    let run = place.run("etcd_calm", Expect { handoff, ..strict() });
    Run { time: run.time.mul_f64(0.6), ..run }.go().must_be_ok();
}

fn etcd_kill() {
    let Some(place) = place() else { return };
    // Who was started last may have come too late for a share.
    let run = place.run("etcd_kill", Expect { min_share_percent: 0, ..strict() });
    Run { faults: vec![Fault::Kill; 2], ..run }.go().must_be_ok();
}

fn etcd_pause() {
    let Some(place) = place() else { return };
    let run = place.run("etcd_pause", Expect { min_expiries: 1, ..strict() });
    let faults = vec![Fault::Pause; 3];
    // Long sections, so that who is found to hold still does when it is stopped.
    let work = Duration::from_millis(60);
    Run { faults, work, pause: (0.3, 2.5), gap_ms: 200, ..run }.go().must_be_ok();
}

fn etcd_nodes() {
    let Some(place) = place() else { return };
    let ways = place.nodes();
    let run = place.run("etcd_nodes", shaken(&ways));
    Run { faults: vec![Fault::Store(ways)], pace: 3, ..run }.rounds(16);
}

fn etcd_links() {
    let Some(place) = place() else { return };
    let ways = cut_off(&place.routes);
    let run = place.run("etcd_links", shaken(&ways));
    Run { faults: vec![Fault::Store(ways)], pace: 3, ..run }.rounds(20);
}

/// Everything at once.
fn etcd_mixed() {
    let Some(place) = place() else { return };
    let (nodes, links) = (place.nodes(), cut_off(&place.routes));
    let expect = Expect { min_share_percent: 0, ..shaken(&[&nodes[..], &links[..]].concat()) };
    let run = place.run("etcd_mixed", expect);
    let faults = [Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force];
    let faults = faults.into_iter().chain([Fault::Store(nodes), Fault::Store(links)]).collect();
    Run { faults, pause: (0.2, 2.0), gap_ms: 600, pace: 2, ..run }.rounds(20);
}
