//! The etcd store against real servers, which these tests start, stop, freeze and kill: what the
//! conformance suite does not know about. Without an `etcd` in the path they were not
//! run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "etcd")]

mod cost;
#[path = "../etcd_server/mod.rs"]
mod etcd_server;
#[path = "../support/eventually.rs"]
mod eventually;
mod faults;
#[path = "../support/flaky_links.rs"]
mod flaky_links;
mod foreign;
mod frozen;
mod garble;
mod interop;
#[path = "../support/killed.rs"]
mod killed;
mod late;
mod loss;
mod other_clients;
mod outage;
#[path = "../support/partition.rs"]
mod partition;
mod stale_leader;
mod storm;
mod transfer;
mod trials;
mod users;
mod wrong;
