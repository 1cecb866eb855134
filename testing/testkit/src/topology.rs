//! A topology: a set of servers with a name, which tests and benchmarks use together.

use crate::Outcome;
use crate::node::{Node, Wrap};
use crate::ports::{Ports, free_port};
use crate::private::Private;
use crate::probe::Probe;
use crate::program::Program;
use crate::server::{Lifetime, Server, check_ports, wait_for};
use std::ops::Range;
use std::path::Path;

/// A set of servers with a name: a row of [`TOPOLOGIES`](crate::servers::TOPOLOGIES).
#[derive(Debug)]
pub struct Topology {
    /// The name on the command line, such as `redis-single`.
    pub name: &'static str,
    /// One line for `--help`.
    pub about: &'static str,
    /// The environment variable that passes the URL to tests.
    pub env: &'static str,
    /// The offsets of its ports from the base. No two topologies share one.
    pub ports: Range<u16>,
    /// The deployment on these ports: as many as there are offsets, in their order.
    pub build: fn(&[u16]) -> Deployment,
}

/// The setup of servers that listen on these ports.
pub type Setup = fn(&[u16]) -> Outcome<()>;

/// A deployment: nodes with their ports, and the URL of the store.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The store's URL.
    pub url: String,
    /// Nodes of one stage start together; the next stage starts when all of them are up.
    pub stages: Vec<Vec<Node>>,
    /// The setup of the nodes (by their ports) before they serve, for instance as a cluster.
    pub setup: Option<Setup>,
    /// The ports that must answer, and their probes, before the deployment is ready.
    pub ready: Vec<(u16, Probe)>,
    /// For members that elect a leader: whether the member on this port leads.
    pub leads: Option<fn(u16) -> bool>,
}

impl Deployment {
    /// Nodes that start together and are ready when all of them are up.
    pub fn new(url: impl Into<String>, nodes: Vec<Node>) -> Self {
        Self { url: url.into(), stages: vec![nodes], setup: None, ready: Vec::new(), leads: None }
    }

    /// Adds nodes that start when the previous ones are up.
    pub fn then(mut self, nodes: Vec<Node>) -> Self {
        self.stages.push(nodes);
        self
    }

    /// Sets the setup, which gets the nodes' ports for clients when all of them are up.
    pub fn setup(mut self, setup: Setup) -> Self {
        self.setup = Some(setup);
        self
    }

    /// Adds a probe of these ports, which must succeed before the deployment is ready.
    pub fn ready(mut self, ports: &[u16], probe: Probe) -> Self {
        self.ready.extend(ports.iter().map(|port| (*port, probe)));
        self
    }

    /// Sets the check whether the member on a port leads.
    pub fn leads(mut self, leads: fn(u16) -> bool) -> Self {
        self.leads = Some(leads);
        self
    }

    /// Runs all processes by commands that this makes: see [`Node::run_by`].
    pub fn run_by(mut self, wrap: Wrap) -> Self {
        for node in self.stages.iter_mut().flatten() {
            *node = node.clone().run_by(wrap);
        }
        self
    }

    /// Every node, in the order of starting.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.stages.iter().flatten()
    }

    /// Starts all nodes, with the data in this folder, and returns when they serve. `started` is
    /// called with each process, which outlives this program.
    ///
    /// # Errors
    ///
    /// A sentence; some of the processes may be running then.
    pub fn start_for_others(
        self,
        folder: &Path,
        started: &mut dyn FnMut(&Server) -> Outcome<()>,
    ) -> Outcome<Vec<Server>> {
        self.start(folder, Lifetime::OfItsOwn, started)
    }

    pub(crate) fn start(
        self,
        folder: &Path,
        life: Lifetime,
        started: &mut dyn FnMut(&Server) -> Outcome<()>,
    ) -> Outcome<Vec<Server>> {
        for node in self.nodes() {
            node.programs().try_for_each(|program| program.find().map(drop))?;
            check_ports(node)?;
        }
        let mut servers = Vec::new();
        for stage in self.stages {
            let before = servers.len();
            for node in stage {
                servers.push(Server::spawn(node, folder, life)?);
                started(&servers[servers.len() - 1])?;
            }
            let ups: Vec<_> = servers[before..].iter().map(|server| server.node().up).collect();
            for (port, up) in ups {
                wait_for(up, port, &mut servers)?;
            }
        }
        if let Some(setup) = self.setup {
            setup(&servers.iter().map(Server::port).collect::<Vec<_>>())?;
        }
        for (port, probe) in self.ready {
            wait_for(probe, port, &mut servers)?;
        }
        Ok(servers)
    }
}

impl Topology {
    /// The deployment on ports above the base.
    pub fn deployment(&self, ports: Ports) -> Deployment {
        let ports: Vec<u16> = self.ports.clone().map(|offset| ports.at(offset)).collect();
        (self.build)(&ports)
    }

    /// The deployment on free ports.
    pub fn on_free_ports(&self) -> Deployment {
        let ports: Vec<u16> = self.ports.clone().map(|_| free_port()).collect();
        (self.build)(&ports)
    }

    /// All programs that the topology needs.
    pub fn programs(&self) -> Vec<&'static Program> {
        let ports: Vec<u16> = self.ports.clone().collect();
        (self.build)(&ports).nodes().flat_map(Node::programs).collect()
    }

    /// What the topology lacks, if anything, and how to get it.
    pub fn missing(&self) -> Option<String> {
        self.programs().into_iter().find_map(|program| program.find().err())
    }

    /// Starts a private one for a test, on free ports; `None` if its program is missing, which is
    /// noted by `missing()`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn private(&self) -> Option<Private> {
        Private::launch(self.name, || self.on_free_ports())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{CLUSTER_BUS, PORTS};
    use crate::servers::TOPOLOGIES;
    use std::collections::{BTreeSet, HashMap};

    #[test]
    fn no_two_topologies_share_a_port_a_name_or_a_variable() {
        let mut owners = HashMap::new();
        for topology in TOPOLOGIES {
            for word in [topology.name.to_owned(), topology.env.to_owned()] {
                assert!(owners.insert(word, topology.name).is_none(), "{}", topology.name);
            }
            for offset in topology.ports.clone() {
                let other = owners.insert(offset.to_string(), topology.name);
                assert_eq!(other, None, "{}: +{offset} is used twice", topology.name);
                assert!(offset < PORTS, "{}: +{offset} is too high", topology.name);
            }
        }
    }

    #[test]
    fn nodes_use_only_the_ports_of_their_topology_each_once() {
        let base = Ports::parse("21000").unwrap();
        for topology in TOPOLOGIES {
            let deployment = topology.deployment(base);
            let ports = deployment.nodes().flat_map(Node::ports).copied();
            let (bus, ports): (BTreeSet<u16>, BTreeSet<u16>) =
                ports.partition(|port| *port > base.at(PORTS));
            let given: BTreeSet<u16> = topology.ports.clone().map(|at| base.at(at)).collect();
            assert!(ports.is_subset(&given), "{}: {ports:?}", topology.name);
            assert!(bus.iter().all(|port| given.contains(&(port - CLUSTER_BUS))));
            let count: usize = deployment.nodes().map(|node| node.ports().len()).sum();
            assert_eq!(count, ports.len() + bus.len(), "{}", topology.name);
            let names: BTreeSet<_> = deployment.nodes().map(Node::name).collect();
            assert_eq!(names.len(), deployment.nodes().count(), "{}", topology.name);
        }
    }
}
