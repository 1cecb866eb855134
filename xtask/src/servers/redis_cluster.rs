//! A Redis Cluster of three primaries without replicas.

use super::probe::redis_command;
use super::redis::{PONG, REDIS, redis_node};
use super::topology::{Node, Ports, Probe, Topology};
use crate::Outcome;

/// The nodes' ports above the base.
const NODES: [u16; 3] = [30, 31, 32];

/// The number of slots is part of the protocol.
const SLOTS: u16 = 16_384;

/// Ready when the node sees all slots served and knows all three.
const WHOLE: Probe = Probe::Redis(
    &["CLUSTER", "INFO"],
    &["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3"],
);

/// The second port is the bus, on which the nodes talk to each other.
macro_rules! cluster_node {
    ($name:literal, $port:literal, $bus:literal) => {
        Node {
            ports: &[$port, $bus],
            ..redis_node!(
                $name,
                $port,
                "--cluster-enabled",
                "yes",
                "--cluster-config-file",
                "nodes.conf",
                "--cluster-node-timeout",
                "2000"
            )
        }
    };
}

/// `redis-cluster`
pub(super) const CLUSTER: Topology = Topology {
    name: "redis-cluster",
    about: "a Redis Cluster of three primaries",
    env: "HOLDLINE_TEST_REDIS_CLUSTER",
    url: "redis+cluster://127.0.0.1:{+30},127.0.0.1:{+31},127.0.0.1:{+32}",
    stages: &[&[
        cluster_node!("node-1", 30, 10030),
        cluster_node!("node-2", 31, 10031),
        cluster_node!("node-3", 32, 10032),
    ]],
    setup: Some(join),
    ready: &[(30, WHOLE), (31, WHOLE), (32, WHOLE)],
};

/// Deals out the slots and introduces the nodes. By hand, so that `redis-cli` is not needed, and
/// with `ADDSLOTS` and not the shorter `ADDSLOTSRANGE`, which only Redis 7 has.
fn join(ports: Ports) -> Outcome<()> {
    let share = SLOTS.div_ceil(NODES.len() as u16);
    for (index, offset) in (0u16..).zip(NODES) {
        let port = ports.at(offset);
        let slots: Vec<String> = (index * share..((index + 1) * share).min(SLOTS))
            .map(|slot| slot.to_string())
            .collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        say(port, &command)?;
        // Different epochs from the start, else the nodes must first settle a tie.
        say(port, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
    }
    for other in &NODES[1..] {
        let port = ports.at(*other).to_string();
        say(ports.at(NODES[0]), &["CLUSTER", "MEET", "127.0.0.1", &port])?;
    }
    Ok(())
}

fn say(port: u16, command: &[&str]) -> Outcome<()> {
    match redis_command(port, command).as_deref().map(str::trim) {
        Ok("OK") => Ok(()),
        answer => Err(format!(
            "The Redis node on port {port} refused `{}`: {answer:?}.",
            command[..2].join(" ")
        )),
    }
}
