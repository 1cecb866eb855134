//! Redis servers: one, one with keyspace events, and five independent ones; a cluster, a primary
//! with sentinels, and other versions; and private servers for tests.

pub mod cluster;
mod private;
pub mod sentinel;
pub mod versions;

pub use private::{
    Server, behind_sentinels, cluster, cluster_with, private, sentinels, several, shifted, start,
};

use super::hosts;
use crate::{Deployment, Node, Probe, Program, Topology};

/// The Redis server; Valkey would work as well.
pub const REDIS: Program = Program::new(
    "redis-server",
    "redis-server",
    "brew install redis, or https://redis.io/docs/latest/operate/oss_and_stack/install",
);

/// The probe for a server that answers a ping.
pub(crate) const PONG: Probe = Probe::Redis(&["PING"], &["PONG"]);

/// A Redis server that keeps nothing on disk.
pub fn node(name: impl Into<String>, port: u16) -> Node {
    Node::new(name, &REDIS, port, PONG).args(["--port", &port.to_string()]).args([
        "--bind",
        "127.0.0.1",
        "--protected-mode",
        "no",
        "--dir",
        "{dir}",
        "--save",
        "",
        "--appendonly",
        "no",
    ])
}

/// `redis-single`
pub const SINGLE: Topology = Topology {
    name: "redis-single",
    about: "one Redis server",
    env: "HOLDLINE_TEST_REDIS",
    ports: 0..1,
    build: |ports| Deployment::new(url(ports[0]), vec![node("redis", ports[0])]),
};

/// `redis-events`
pub const EVENTS: Topology = Topology {
    name: "redis-events",
    about: "one Redis server that tells of its keys (notify-keyspace-events Kgx)",
    env: "HOLDLINE_TEST_REDIS_EVENTS",
    ports: 6..7,
    build: |ports| {
        let node = node("redis", ports[0]).args(["--notify-keyspace-events", "Kgx"]);
        Deployment::new(url(ports[0]), vec![node])
    },
};

/// `redis-five`
pub const FIVE: Topology = Topology {
    name: "redis-five",
    about: "five Redis servers that do not know each other, for a quorum",
    env: "HOLDLINE_TEST_REDIS_FIVE",
    ports: 1..6,
    build: |ports| {
        let named = (1..).zip(ports).map(|(at, port)| node(format!("redis-{at}"), *port));
        Deployment::new(quorum(ports), named.collect())
    },
};

/// The URL of a quorum of servers on these ports, or of the only server.
fn quorum(ports: &[u16]) -> String {
    let urls: Vec<String> = ports.iter().map(|port| url(*port)).collect();
    if let [only] = &urls[..] { only.clone() } else { format!("quorum:{}", urls.join(",")) }
}

/// The URL of a server on this port.
pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}
