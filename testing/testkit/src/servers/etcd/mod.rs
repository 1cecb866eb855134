//! etcd: one member, a cluster of three, and private clusters for tests.

#[cfg(feature = "links")]
mod network;
mod private;

#[cfg(feature = "links")]
pub use private::start_apart;
pub use private::{
    Calls, Servers, start, start_forgetful, start_mutual, start_on_disk, start_small, start_tls,
};

use super::hosts;
use crate::probe::http_get;
use crate::{Deployment, Node, Probe, Program, Topology};

/// The server, without its client program.
pub const ETCD: Program = Program::new(
    "etcd",
    "etcd-server",
    "brew install etcd, or https://etcd.io/docs/latest/install",
);

/// `etcd-single`
pub const SINGLE: Topology = Topology {
    name: "etcd-single",
    about: "one etcd member",
    env: "HOLDLINE_TEST_ETCD",
    ports: 100..102,
    build: deployment,
};

/// `etcd-three`
pub const THREE: Topology = Topology {
    name: "etcd-three",
    about: "an etcd cluster of three members",
    env: "HOLDLINE_TEST_ETCD_THREE",
    ports: 110..116,
    build: deployment,
};

/// The settings of a member.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The scheme for clients: `http` or `https`.
    pub scheme: &'static str,
    /// More arguments.
    pub args: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { scheme: "http", args: Vec::new() }
    }
}

impl Settings {
    /// Adds arguments.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }
}

/// As many members as there are pairs of ports, for clients and for peers.
pub fn deployment(ports: &[u16]) -> Deployment {
    let (ports, _) = ports.as_chunks::<2>();
    let peers: Vec<u16> = ports.iter().map(|[_, peer]| *peer).collect();
    members(ports, &peers, &Settings::default())
}

/// Members with these ports for clients and peers. They reach each other at their `fronts`.
fn members(ports: &[[u16; 2]], fronts: &[u16], settings: &Settings) -> Deployment {
    let clients: Vec<u16> = ports.iter().map(|[client, _]| *client).collect();
    let nodes = (0..ports.len()).map(|at| member(at, ports[at], fronts, settings)).collect();
    Deployment::new(url(&clients), nodes).leads(leads)
}

/// Whether the member with its metrics at this port is the leader.
fn leads(port: u16) -> bool {
    http_get(port, "/metrics").is_ok_and(|text| text.contains("\netcd_server_is_leader 1"))
}

/// The store's URL.
fn url(clients: &[u16]) -> String {
    format!("etcd://{}", hosts(clients).join(","))
}

/// A member that listens on two ports, for clients and for peers. `fronts` are the ports at which
/// the members reach each other: their ports for peers, or those of proxies.
fn member(at: usize, [client, peer]: [u16; 2], fronts: &[u16], settings: &Settings) -> Node {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let clients = format!("{}://127.0.0.1:{client}", settings.scheme);
    let members = fronts.iter().enumerate().map(|(at, front)| format!("m{at}={}", url(*front)));
    let members = members.collect::<Vec<_>>().join(",");
    let name = format!("m{at}");
    Node::new(&name, &ETCD, client, Probe::Etcd)
        .also_listens([peer])
        .args(["--name", &name, "--data-dir", "{dir}/data", "--logger", "zap"])
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &url(peer)])
        .args(["--initial-advertise-peer-urls", &url(fronts[at])])
        .args(["--initial-cluster", &members, "--initial-cluster-state", "new"])
        .args(&settings.args)
}
