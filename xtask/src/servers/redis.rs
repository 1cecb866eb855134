//! One Redis server, one that tells of its keys, and five that know nothing of each other.

use super::topology::{Node, Probe, Program, Topology};

/// Redis itself; Valkey would do as well.
pub(super) const REDIS: Program = Program {
    binary: "redis-server",
    package: "redis-server",
    elsewhere: "brew install redis, or https://redis.io/docs/latest/operate/oss_and_stack/install",
    folders: &[],
    jars: &[],
    wheel: None,
    apart: None,
};

/// Up when it answers a ping.
pub(super) const PONG: Probe = Probe::Redis(&["PING"], &["PONG"]);

/// A Redis that keeps nothing on disk.
macro_rules! redis_node {
    ($name:literal, $port:literal $(, $arg:expr)*) => {
        Node {
            name: $name,
            program: &REDIS,
            prepare: &[],
            args: &[
                "--port", concat!("{+", $port, "}"), "--bind", "127.0.0.1",
                "--protected-mode", "no", "--dir", "{dir}", "--save", "", "--appendonly", "no"
                $(, $arg)*
            ],
            files: &[],
            ports: &[$port],
            up: PONG,
            not_as_root: false,
        }
    };
}
pub(super) use redis_node;

/// `redis-single`
pub(super) const SINGLE: Topology = Topology {
    name: "redis-single",
    about: "one Redis server",
    env: "HOLDLINE_TEST_REDIS",
    url: "redis://127.0.0.1:{+0}",
    stages: &[&[redis_node!("redis", 0)]],
    setup: None,
    ready: &[(0, PONG)],
};

/// `redis-events`
pub(super) const EVENTS: Topology = Topology {
    name: "redis-events",
    about: "one Redis server that tells of its keys (notify-keyspace-events Kgx)",
    env: "HOLDLINE_TEST_REDIS_EVENTS",
    url: "redis://127.0.0.1:{+6}",
    stages: &[&[redis_node!("redis", 6, "--notify-keyspace-events", "Kgx")]],
    setup: None,
    ready: &[(6, PONG)],
};

/// `redis-five`
pub(super) const FIVE: Topology = Topology {
    name: "redis-five",
    about: "five Redis servers that do not know each other, for a quorum",
    env: "HOLDLINE_TEST_REDIS_FIVE",
    url: "quorum:redis://127.0.0.1:{+1},redis://127.0.0.1:{+2},redis://127.0.0.1:{+3},\
          redis://127.0.0.1:{+4},redis://127.0.0.1:{+5}",
    stages: &[&[
        redis_node!("redis-1", 1),
        redis_node!("redis-2", 2),
        redis_node!("redis-3", 3),
        redis_node!("redis-4", 4),
        redis_node!("redis-5", 5),
    ]],
    setup: None,
    ready: &[(1, PONG), (2, PONG), (3, PONG), (4, PONG), (5, PONG)],
};
