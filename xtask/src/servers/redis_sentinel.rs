//! A Redis primary, its replica, and three sentinels that watch them.

use super::redis::{PONG, REDIS, redis_node};
use super::topology::{Node, Probe, Topology};

/// Ready when the sentinel knows the replica and both of its peers: only then can it fail over.
const KNOWS_ALL: Probe = Probe::Redis(
    &["SENTINEL", "MASTER", "mymaster"],
    &["flags master ", "num-slaves 1 ", "num-other-sentinels 2 ", "quorum 2 "],
);

/// A replica that has caught up once.
const LINKED: Probe =
    Probe::Redis(&["INFO", "replication"], &["role:slave", "master_link_status:up"]);

/// A sentinel. It rewrites its own configuration file, so the file is written anew at each start.
macro_rules! sentinel_node {
    ($name:literal, $port:literal) => {
        Node {
            name: $name,
            program: &REDIS,
            prepare: &[],
            args: &["{dir}/sentinel.conf", "--sentinel"],
            files: &[(
                "sentinel.conf",
                concat!(
                    "port {+",
                    $port,
                    "}\nbind 127.0.0.1\nprotected-mode no\ndir {dir}\n",
                    "sentinel monitor mymaster 127.0.0.1 {+10} 2\n",
                    "sentinel down-after-milliseconds mymaster 1000\n",
                    "sentinel failover-timeout mymaster 5000\n",
                ),
            )],
            ports: &[$port],
            up: PONG,
            not_as_root: false,
        }
    };
}

/// `redis-sentinel`
pub(super) const SENTINEL: Topology = Topology {
    name: "redis-sentinel",
    about: "a Redis primary, a replica and three sentinels; the primary's name is mymaster",
    env: "HOLDLINE_TEST_REDIS_SENTINEL",
    url: "redis+sentinel://127.0.0.1:{+12},127.0.0.1:{+13},127.0.0.1:{+14}/mymaster",
    // One after the other: a sentinel that finds no replica at first asks again only after 10 s.
    stages: &[
        &[redis_node!("primary", 10, "--repl-diskless-sync-delay", "0")],
        &[Node { up: LINKED, ..redis_node!("replica", 11, "--replicaof", "127.0.0.1", "{+10}") }],
        &[
            sentinel_node!("sentinel-1", 12),
            sentinel_node!("sentinel-2", 13),
            sentinel_node!("sentinel-3", 14),
        ],
    ],
    setup: None,
    ready: &[(11, LINKED), (12, KNOWS_ALL), (13, KNOWS_ALL), (14, KNOWS_ALL)],
};
