//! Breakages of a cluster of three nodes, one at a time, so that there is always a majority; and
//! breakages that cut off clients.

use crate::breakages::{Deed, kind};
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
        badly(&self.nodes, &[Bad::PROCESSES, Bad::BETWEEN].concat())
    }
}

/// A breakage of one of the nodes.
#[derive(Clone, Copy)]
enum Bad {
    LeaderKilled,
    NodeKilled,
    /// For longer than an election takes.
    LeaderStopped,
    LeaderCutOff,
    NodeCutOff,
    /// As with slow disks, agreement takes longer.
    NodesSlow,
}

impl Bad {
    /// The breakages of processes.
    const PROCESSES: [Bad; 3] = [Bad::LeaderKilled, Bad::NodeKilled, Bad::LeaderStopped];
    /// The breakages of the network between nodes.
    const BETWEEN: [Bad; 3] = [Bad::LeaderCutOff, Bad::NodeCutOff, Bad::NodesSlow];

    /// Its name in the history, and its duration in leases.
    fn what(self) -> (FaultKind, (f64, f64)) {
        let (word, token_count) = match self {
            Bad::LeaderKilled => ("leader_killed", (0.2, 1.5)),
            Bad::NodeKilled => ("node_killed", (0.0, 1.0)),
            Bad::LeaderStopped => ("leader_stopped", (0.7, 1.2)),
            Bad::LeaderCutOff => ("leader_cut_off", (0.5, 1.5)),
            Bad::NodeCutOff => ("node_cut_off", (0.2, 1.5)),
            Bad::NodesSlow => ("nodes_slow", (0.5, 1.5)),
        };
        (kind(word), token_count)
    }

    fn begin(self, nodes: &mut Nodes) {
        nodes.victim = match self {
            Bad::NodeKilled | Bad::NodeCutOff => fastrand::usize(..3),
            _ => nodes.cluster.leader(),
        };
        match self {
            Bad::LeaderKilled | Bad::NodeKilled => nodes.cluster.kill(nodes.victim),
            Bad::LeaderStopped => nodes.cluster.servers[nodes.victim].pause(),
            Bad::LeaderCutOff | Bad::NodeCutOff => nodes.cluster.network().cut_off(nodes.victim),
            Bad::NodesSlow => nodes.cluster.network().delay(Duration::from_millis(50)),
        }
    }

    fn end(self, nodes: &mut Nodes) {
        match self {
            Bad::LeaderKilled | Bad::NodeKilled => nodes.cluster.restart(nodes.victim),
            Bad::LeaderStopped => nodes.cluster.servers[nodes.victim].resume(),
            Bad::LeaderCutOff | Bad::NodeCutOff | Bad::NodesSlow => nodes.cluster.network().mend(),
        }
    }
}

/// A breakage of a node, with the nodes.
struct Badly {
    nodes: Arc<Mutex<Nodes>>,
    bad: Bad,
}

/// The breakages of the nodes in each of these ways.
fn badly(nodes: &Arc<Mutex<Nodes>>, ways: &[Bad]) -> Vec<Arc<dyn Breakage>> {
    fn with(badly: &Badly, act: impl FnOnce(&mut Nodes)) {
        act(&mut badly.nodes.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let deed = |bad: &Bad| -> Arc<dyn Breakage> {
        let (kind, token_count) = bad.what();
        Arc::new(Deed {
            kind,
            token_count,
            thing: Arc::new(Badly { nodes: Arc::clone(nodes), bad: *bad }),
            does: |badly| with(badly, |nodes| badly.bad.begin(nodes)),
            undoes: |badly| with(badly, |nodes| badly.bad.end(nodes)),
        })
    };
    ways.iter().map(deed).collect()
}

/// All breakages that cut off the clients of these routes.
pub(crate) fn cut_off(routes: &Arc<FlakyLinks>) -> Vec<Arc<dyn Breakage>> {
    let deed = |kind, does| -> Arc<dyn Breakage> {
        let thing = Arc::clone(routes);
        Arc::new(Deed { kind, token_count: (0.1, 2.0), thing, does, undoes: FlakyLinks::mend })
    };
    vec![
        deed(FaultKind::Partition, |routes| routes.cut(Cut::Closed)),
        deed(kind("silence"), |routes| routes.cut(Cut::Silence)),
        deed(kind("requests_stalled"), |routes| routes.cut(Cut::Requests)),
        deed(kind("replies_stalled"), |routes| routes.cut(Cut::Replies)),
        deed(FaultKind::Slow, |routes| {
            routes.links.iter().for_each(|link| link.delay(Duration::from_millis(40)));
        }),
        deed(kind("replies_lost"), |routes| routes.links.iter().for_each(Link::lose_next_reply)),
    ]
}
