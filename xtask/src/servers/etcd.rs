//! One etcd, and a cluster of three.

use super::topology::{Node, Probe, Program, Topology};

/// The server, without its client program.
const ETCD: Program = Program {
    binary: "etcd",
    package: "etcd-server",
    elsewhere: "brew install etcd, or https://etcd.io/docs/latest/install",
    folders: &[],
    jars: &[],
    wheel: None,
    apart: None,
};

/// A member: its name, its clients' port, its peers' port, and all members.
macro_rules! etcd_node {
    ($name:literal, $client:literal, $peer:literal, $members:literal) => {
        Node {
            name: $name,
            program: &ETCD,
            prepare: &[],
            args: &[
                "--name",
                $name,
                "--data-dir",
                "{dir}/data",
                "--listen-client-urls",
                concat!("http://127.0.0.1:{+", $client, "}"),
                "--advertise-client-urls",
                concat!("http://127.0.0.1:{+", $client, "}"),
                "--listen-peer-urls",
                concat!("http://127.0.0.1:{+", $peer, "}"),
                "--initial-advertise-peer-urls",
                concat!("http://127.0.0.1:{+", $peer, "}"),
                "--initial-cluster",
                $members,
                "--initial-cluster-state",
                "new",
                "--logger",
                "zap",
            ],
            files: &[],
            ports: &[$client, $peer],
            up: Probe::Listens,
            not_as_root: false,
        }
    };
}

/// `etcd-single`
pub(super) const SINGLE: Topology = Topology {
    name: "etcd-single",
    about: "one etcd member",
    env: "HOLDLINE_TEST_ETCD",
    url: "etcd://127.0.0.1:{+100}",
    stages: &[&[etcd_node!("single", 100, 101, "single=http://127.0.0.1:{+101}")]],
    setup: None,
    ready: &[(100, Probe::Etcd)],
};

/// `etcd-three`
pub(super) const THREE: Topology = Topology {
    name: "etcd-three",
    about: "an etcd cluster of three members",
    env: "HOLDLINE_TEST_ETCD_THREE",
    url: "etcd://127.0.0.1:{+110},127.0.0.1:{+112},127.0.0.1:{+114}",
    stages: &[&[
        etcd_node!(
            "a",
            110,
            111,
            "a=http://127.0.0.1:{+111},b=http://127.0.0.1:{+113},c=http://127.0.0.1:{+115}"
        ),
        etcd_node!(
            "b",
            112,
            113,
            "a=http://127.0.0.1:{+111},b=http://127.0.0.1:{+113},c=http://127.0.0.1:{+115}"
        ),
        etcd_node!(
            "c",
            114,
            115,
            "a=http://127.0.0.1:{+111},b=http://127.0.0.1:{+113},c=http://127.0.0.1:{+115}"
        ),
    ]],
    setup: None,
    ready: &[(110, Probe::Etcd), (112, Probe::Etcd), (114, Probe::Etcd)],
};
