//! A Redis Cluster of three primaries without replicas.

use super::hosts;
use crate::probe::redis_command;
use crate::{CLUSTER_BUS, Deployment, Node, Outcome, Probe, Topology};

/// The number of slots is part of the protocol.
const SLOTS: u16 = 16_384;

/// Ready when the node sees all slots served and knows all three.
const WHOLE: Probe = Probe::Redis(
    &["CLUSTER", "INFO"],
    &["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3"],
);

/// `redis-cluster`
pub const CLUSTER: Topology = Topology {
    name: "redis-cluster",
    about: "a Redis Cluster of three primaries",
    env: "HOLDLINE_TEST_REDIS_CLUSTER",
    ports: 30..33,
    build: |ports| three(ports, &[]),
};

/// A cluster of three, whose servers get these arguments too.
pub(crate) fn three(ports: &[u16], args: &[&str]) -> Deployment {
    let named = (1..).zip(ports).map(|(at, port)| node(format!("node-{at}"), *port));
    let nodes = named.map(|node| node.args(args.iter().copied())).collect();
    let url = format!("redis+cluster://{}", hosts(ports).join(","));
    Deployment::new(url, nodes).setup(join).ready(ports, WHOLE)
}

fn node(name: String, port: u16) -> Node {
    // The second port is the cluster bus.
    super::node(name, port).also_listens([port + CLUSTER_BUS]).args([
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        "nodes.conf",
        "--cluster-node-timeout",
        "2000",
    ])
}

/// Assigns the slots and introduces the nodes to each other, without `redis-cli`, and with
/// `ADDSLOTS`, because only Redis 7 has the shorter `ADDSLOTSRANGE`.
fn join(ports: &[u16]) -> Outcome<()> {
    let share = SLOTS.div_ceil(ports.len() as u16);
    for (index, port) in (0u16..).zip(ports) {
        let slots: Vec<String> = (index * share..((index + 1) * share).min(SLOTS))
            .map(|slot| slot.to_string())
            .collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        say(*port, &command)?;
        // Different epochs from the start; otherwise the nodes must first resolve a tie.
        say(*port, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
    }
    for other in &ports[1..] {
        say(ports[0], &["CLUSTER", "MEET", "127.0.0.1", &other.to_string()])?;
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
