//! Breakages of a cluster of three nodes, one at a time, so that there is always a majority; and
//! breakages that cut off clients.

use crate::breakages::{Reversible, kind};
use crate::inject::Breakage;
use crate::run::Run;
use holdline_checker::{Expect, FaultKind};
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{Link, Private};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The nodes, and the one that is broken.
struct Nodes {
    cluster: Private,
    victim: usize,
}

impl Nodes {
    fn new(cluster: Private) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Nodes { cluster, victim: 0 }))
    }
}

/// Three nodes, and the links of half of the clients.
pub(crate) struct Place {
    nodes: Arc<Mutex<Nodes>>,
    pub(crate) routes: Arc<FlakyLinks>,
    urls: [String; 2],
    lease: Duration,
}

impl Place {
    /// These nodes, with links to them; `options` follow the nodes in the URL.
    pub(crate) fn of(
        servers: Private,
        scheme: &'static str,
        options: &'static str,
        lease: Duration,
    ) -> Self {
        let routes = Arc::new(FlakyLinks::to(scheme, &servers.hosts(), options));
        let urls = [format!("{}{options}", servers.url()), routes.url()];
        Place { nodes: Nodes::new(servers), routes, urls, lease }
    }

    pub(crate) fn run(&self, title: &'static str, expect: Expect) -> Run {
        let (routes, lease) = (self.urls.to_vec(), self.lease);
        Run { routes, lease, pace: 5, ..Run::new(title, self.urls[0].clone(), expect) }
    }

    /// The folders of the nodes.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.cluster.servers.iter().map(|server| server.dir().to_owned()).collect()
    }

    /// All breakages of the nodes.
    pub(crate) fn nodes(&self) -> Vec<Arc<dyn Breakage>> {
        node_faults(&self.nodes, &[NodeFault::PROCESSES, NodeFault::BETWEEN].concat())
    }
}

/// A breakage of one of the nodes.
#[derive(Clone, Copy)]
enum NodeFault {
    LeaderKilled,
    NodeKilled,
    /// For longer than an election takes.
    LeaderStopped,
    LeaderCutOff,
    NodeCutOff,
    /// As with slow disks, agreement takes longer.
    NodesSlow,
}

impl NodeFault {
    /// The breakages of processes.
    const PROCESSES: [NodeFault; 3] =
        [NodeFault::LeaderKilled, NodeFault::NodeKilled, NodeFault::LeaderStopped];
    /// The breakages of the network between nodes.
    const BETWEEN: [NodeFault; 3] =
        [NodeFault::LeaderCutOff, NodeFault::NodeCutOff, NodeFault::NodesSlow];

    /// Its name in the history, and its duration in leases.
    fn what(self) -> (FaultKind, (f64, f64)) {
        let (word, duration) = match self {
            NodeFault::LeaderKilled => ("leader_killed", (0.2, 1.5)),
            NodeFault::NodeKilled => ("node_killed", (0.0, 1.0)),
            NodeFault::LeaderStopped => ("leader_stopped", (0.7, 1.2)),
            NodeFault::LeaderCutOff => ("leader_cut_off", (0.5, 1.5)),
            NodeFault::NodeCutOff => ("node_cut_off", (0.2, 1.5)),
            NodeFault::NodesSlow => ("nodes_slow", (0.5, 1.5)),
        };
        (kind(word), duration)
    }

    fn begin(self, nodes: &mut Nodes) {
        nodes.victim = match self {
            NodeFault::NodeKilled | NodeFault::NodeCutOff => fastrand::usize(..3),
            _ => nodes.cluster.leader(),
        };
        match self {
            NodeFault::LeaderKilled | NodeFault::NodeKilled => nodes.cluster.kill(nodes.victim),
            NodeFault::LeaderStopped => nodes.cluster.servers[nodes.victim].pause(),
            NodeFault::LeaderCutOff | NodeFault::NodeCutOff => {
                nodes.cluster.network().cut_off(nodes.victim);
            }
            NodeFault::NodesSlow => nodes.cluster.network().delay(Duration::from_millis(50)),
        }
    }

    fn end(self, nodes: &mut Nodes) {
        match self {
            NodeFault::LeaderKilled | NodeFault::NodeKilled => nodes.cluster.restart(nodes.victim),
            NodeFault::LeaderStopped => nodes.cluster.servers[nodes.victim].resume(),
            NodeFault::LeaderCutOff | NodeFault::NodeCutOff | NodeFault::NodesSlow => {
                nodes.cluster.network().mend();
            }
        }
    }
}

/// A breakage of a node, with the nodes.
struct FaultOfNodes {
    nodes: Arc<Mutex<Nodes>>,
    fault: NodeFault,
}

/// The breakages of the nodes in each of these ways.
fn node_faults(nodes: &Arc<Mutex<Nodes>>, ways: &[NodeFault]) -> Vec<Arc<dyn Breakage>> {
    fn with(faulty: &FaultOfNodes, act: impl FnOnce(&mut Nodes)) {
        act(&mut faulty.nodes.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let breakage = |fault: &NodeFault| -> Arc<dyn Breakage> {
        let (kind, duration) = fault.what();
        Arc::new(Reversible {
            kind,
            duration,
            part: Arc::new(FaultOfNodes { nodes: Arc::clone(nodes), fault: *fault }),
            breaks: |faulty| with(faulty, |nodes| faulty.fault.begin(nodes)),
            repairs: |faulty| with(faulty, |nodes| faulty.fault.end(nodes)),
        })
    };
    ways.iter().map(breakage).collect()
}

/// All breakages that cut off the clients of these routes.
pub(crate) fn cut_off(routes: &Arc<FlakyLinks>) -> Vec<Arc<dyn Breakage>> {
    let breakage = |kind, breaks| -> Arc<dyn Breakage> {
        let part = Arc::clone(routes);
        Arc::new(Reversible { kind, duration: (0.1, 2.0), part, breaks, repairs: FlakyLinks::mend })
    };
    vec![
        breakage(FaultKind::Partition, |routes| routes.cut(Cut::Closed)),
        breakage(kind("silence"), |routes| routes.cut(Cut::Silence)),
        breakage(kind("requests_stalled"), |routes| routes.cut(Cut::Requests)),
        breakage(kind("replies_stalled"), |routes| routes.cut(Cut::Replies)),
        breakage(FaultKind::Slow, |routes| {
            routes.links.iter().for_each(|link| link.delay(Duration::from_millis(40)));
        }),
        breakage(kind("replies_lost"), |routes| {
            routes.links.iter().for_each(Link::lose_next_reply);
        }),
    ]
}
