//! The ZooKeeper store against real servers, which these tests start, stop, freeze and kill: what
//! the conformance suite does not know about. Without a ZooKeeper on this machine they
//! were not run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "zookeeper")]

mod absent;
#[cfg(feature = "zookeeper-tls")]
#[path = "../support/certs.rs"]
mod certs;
mod cost;
mod dialects;
mod divergent_replica;
mod doubles;
#[path = "../support/eventually.rs"]
mod eventually;
mod evictions;
mod faults;
#[path = "../support/flaky_links.rs"]
mod flaky_links;
mod garbled;
#[path = "../support/killed.rs"]
mod killed;
mod loss;
mod other_clients;
mod outages;
#[path = "../support/partition.rs"]
mod partition;
mod recipes;
mod rollback;
mod server;
mod storm;
mod strangers;
#[cfg(feature = "zookeeper-tls")]
mod tls;
mod trials;
mod trips;
mod users;
