//! Fault runs on a quorum of five Redis servers. One or two of them may be broken at a time, in any
//! way, and one may come back without its data: every promise must be kept.

use crate::breakages::{Nodes, forgets};
use crate::inject::{Breakage, Fault};
use crate::redis::{KEEPS, Place, place, strict};
use crate::run::Run;
use crate::{Case, cases};
use holdline_checker::Expect;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CASES: &[Case] = cases![quorum_mixed];

/// The downtime of a node that forgets. It takes a vote from each lock, so it has to stay down
/// until no lock counts on that vote, which takes the longest lease: Redlock's "delayed restart".
/// See `one_node_that_forgets_too_soon_lets_two_in` for what happens otherwise.
const AWAY: (f64, f64) = (1.1, 1.6);

/// The URLs: direct, and over links.
fn routes(nodes: &[Place]) -> Vec<String> {
    let url = |at: usize| {
        let routes: Vec<String> = nodes.iter().map(|node| node.routes()[at].clone()).collect();
        format!("quorum:{}", routes.join(","))
    };
    vec![url(0), url(1)]
}

/// Every breakage of a server, on one or two of them in turn.
fn faults(nodes: &[Place]) -> Vec<Arc<dyn Breakage>> {
    let of_each = nodes.iter().map(|node| {
        let forgets = forgets(&node.server, AWAY);
        node.faults().into_iter().chain([forgets]).collect::<Vec<_>>()
    });
    let of_each: Vec<_> = of_each.collect();
    let ways = 0..of_each[0].len();
    let of_all = |way: usize| of_each.iter().map(|node| Arc::clone(&node[way])).collect();
    ways.map(|way| Nodes::up_to_two(of_all(way))).collect()
}

fn quorum_mixed() {
    let nodes: Option<Vec<_>> = (0..5).map(|_| place("quorum_mixed", &KEEPS)).collect();
    let Some(nodes) = nodes else { return };
    let routes = routes(&nodes);
    // Tries seldom find a free majority.
    let expect = Expect { fifo: false, min_share_percent: 0, ..strict() };
    let run = Run { routes: routes.clone(), ..Run::new("quorum_mixed", routes[0].clone(), expect) };
    let store = Fault::Store(faults(&nodes));
    let faults = vec![Fault::Kill, Fault::Pause, Fault::Pause, Fault::Force, store];
    let (lease, work) = (Duration::from_millis(800), Duration::from_millis(60));
    Run { faults, work, lease, pace: 3, ..run }.rounds(20);
}
