//! The ZooKeeper store against real servers, which these tests start, stop, freeze and kill: what
//! the conformance suite does not know about. Without a ZooKeeper on this machine they
//! were not run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "zookeeper")]

mod absent;
mod cost;
mod dialects;
mod divergent_replica;
mod doubles;
mod evictions;
mod faults;
mod garbled;
mod loss;
mod observe;
mod old_servers;
mod other_clients;
mod outages;
mod places;
mod recipes;
mod rollback;
mod storm;
mod strangers;
#[cfg(feature = "zookeeper-tls")]
mod tls;
mod trials;
mod trips;
mod uncontended;
mod unreliable;
mod users;
