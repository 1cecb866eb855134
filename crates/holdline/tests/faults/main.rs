//! Fault runs: processes use the library's locks while they are killed, stopped and robbed of their
//! locks; they write down what they see, and the history checker judges it.
//!
//! The harness knows no store: [`run::Run`] takes a URL, faults, times, a seed and what to expect.
//! `docs/faults/README.md` says how to run it for longer and how to read what it prints.
#![allow(clippy::duplicate_mod, reason = "each kind of server takes its ports by the same file")]
#![cfg(all(
    unix,
    any(feature = "sqlite", feature = "redis", feature = "etcd", feature = "zookeeper")
))]

mod breakages;
mod client;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
#[path = "../etcd_server/mod.rs"]
mod etcd_server;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
#[allow(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../support/eventually.rs"]
mod eventually;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
#[path = "../support/flaky_links.rs"]
mod flaky_links;
mod inject;
mod judge;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod nodes;
mod outages;
mod recording_store;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_failover;
#[cfg(feature = "redis")]
mod redis_quorum;
#[cfg(feature = "redis")]
#[path = "../redis_server/mod.rs"]
mod redis_server;
mod run;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stall_detector;
mod stats;
mod storms;
mod workers;
mod workload;
#[cfg(feature = "zookeeper")]
mod zookeeper;
#[cfg(feature = "zookeeper")]
#[allow(dead_code, unused_imports, reason = "the tests of the store use the rest")]
#[path = "../zookeeper/server.rs"]
mod zookeeper_server;
