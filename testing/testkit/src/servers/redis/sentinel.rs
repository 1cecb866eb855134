//! A Redis primary, its replica, and three sentinels that watch them.

use super::{PONG, REDIS, hosts};
use crate::servers::redis;
use crate::{Deployment, Node, Probe, Topology};

/// Ready when the sentinel knows the replica and both of its peers: only then can it fail over.
const KNOWS_ALL: Probe = Probe::Redis(
    &["SENTINEL", "MASTER", "mymaster"],
    &["flags master ", "num-slaves 1 ", "num-other-sentinels 2 ", "quorum 2 "],
);

/// A replica that has caught up once.
const LINKED: Probe =
    Probe::Redis(&["INFO", "replication"], &["role:slave", "master_link_status:up"]);

/// `redis-sentinel`
pub const SENTINEL: Topology = Topology {
    name: "redis-sentinel",
    about: "a Redis primary, a replica and three sentinels; the primary's name is mymaster",
    env: "HOLDLINE_TEST_REDIS_SENTINEL",
    ports: 10..15,
    build: |ports| deployment(ports, [1000, 5000]),
};

/// The primary on the first port, the replica on the second, sentinels on the others.
pub(crate) fn deployment(ports: &[u16], times: [u32; 2]) -> Deployment {
    let [primary, replica] = [ports[0], ports[1]];
    let of = ["--replicaof", "127.0.0.1", &primary.to_string()];
    let diskless = ["--repl-diskless-sync-delay", "0"];
    let watchers = watchers_of(primary, &ports[2..], times);
    // In stages: a sentinel that finds no replica at first asks again only after 10 s.
    let mut stages = vec![
        vec![redis::node("primary", primary).args(diskless)],
        vec![redis::node("replica", replica).args(of).up(replica, LINKED)],
    ];
    stages.extend(watchers.stages);
    Deployment { stages, ..watchers }
}

/// Sentinels on these ports, for a running primary with one replica. It is named `mymaster`, and is
/// down if two of them agree.
pub(crate) fn watchers_of(primary: u16, ports: &[u16], times: [u32; 2]) -> Deployment {
    let named = (1..).zip(ports);
    let nodes = named.map(|(at, port)| sentinel(format!("sentinel-{at}"), *port, primary, times));
    let url = format!("redis+sentinel://{}/mymaster", hosts(ports).join(","));
    Deployment::new(url, nodes.collect()).ready(ports, KNOWS_ALL)
}

/// A sentinel. After these times in milliseconds it considers the silent primary down, and another
/// sentinel's failover failed.
fn sentinel(name: String, port: u16, primary: u16, [down, failover]: [u32; 2]) -> Node {
    // It rewrites its file, so the file is created again before each start.
    Node::new(name, &REDIS, port, PONG).args(["{dir}/sentinel.conf", "--sentinel"]).file(
        "sentinel.conf",
        format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {{dir}}\n\
             sentinel monitor mymaster 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds mymaster {down}\n\
             sentinel failover-timeout mymaster {failover}\n"
        ),
    )
}
