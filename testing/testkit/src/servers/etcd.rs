//! etcd: one member, and a cluster of three.

use super::hosts;
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

/// As many members as there are pairs of ports, for clients and for peers.
pub fn deployment(ports: &[u16]) -> Deployment {
    let (members, _) = ports.as_chunks::<2>();
    let peers: Vec<u16> = members.iter().map(|[_, peer]| *peer).collect();
    let clients: Vec<u16> = members.iter().map(|[client, _]| *client).collect();
    let nodes = (0..members.len()).map(|at| member(at, members[at], &peers)).collect();
    Deployment::new(format!("etcd://{}", hosts(&clients).join(",")), nodes)
}

/// A member that listens on two ports, for clients and for peers. `fronts` is where each member is
/// reached by the others: its port for peers, or a proxy's.
pub(crate) fn member(at: usize, [client, peer]: [u16; 2], fronts: &[u16]) -> Node {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let members = fronts.iter().enumerate().map(|(at, front)| format!("m{at}={}", url(*front)));
    let members = members.collect::<Vec<_>>().join(",");
    let name = format!("m{at}");
    Node::new(&name, &ETCD, client, Probe::Etcd)
        .also_listens([peer])
        .args(["--name", &name, "--data-dir", "{dir}/data", "--logger", "zap"])
        .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
        .args(["--listen-peer-urls", &url(peer)])
        .args(["--initial-advertise-peer-urls", &url(fronts[at])])
        .args(["--initial-cluster", &members, "--initial-cluster-state", "new"])
}
