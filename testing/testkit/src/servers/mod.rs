//! The servers: a file for each kind describes its processes and their topologies.

pub mod etcd;
pub mod mysql;
pub mod postgres;
pub mod redis;
pub mod zookeeper;

use crate::{Outcome, Topology};

/// Everything that `cargo xtask servers` can start. A new topology is a constant in the file of its
/// servers, and a line here.
pub const TOPOLOGIES: &[&Topology] = &[
    &redis::SINGLE,
    &redis::EVENTS,
    &redis::FIVE,
    &redis::versions::OLDEST,
    &redis::versions::VALKEY,
    &redis::sentinel::SENTINEL,
    &redis::cluster::CLUSTER,
    &etcd::SINGLE,
    &etcd::THREE,
    &zookeeper::SINGLE,
    &zookeeper::THREE,
    &postgres::SINGLE,
    &postgres::POOLED,
    &mysql::MARIADB,
    &mysql::MYSQL,
];

/// The topology with this name.
///
/// # Errors
///
/// If there is none; it lists the known names.
pub fn topology(name: &str) -> Outcome<&'static Topology> {
    TOPOLOGIES.iter().find(|topology| topology.name == name).copied().ok_or_else(|| {
        let known: Vec<&str> = TOPOLOGIES.iter().map(|topology| topology.name).collect();
        format!("There is no topology {name:?}; there are {}.", known.join(", "))
    })
}

/// `127.0.0.1` with each of these ports.
fn hosts(ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
}
