//! The ZooKeeper store against real servers, which these tests start, stop, freeze and kill: what
//! the conformance suite does not know about. Without a ZooKeeper on this machine they say that
//! they were not run, and fail under CI.
#![cfg(feature = "zookeeper")]

mod absent;
mod cost;
#[path = "../support/cutoff.rs"]
mod cutoff;
mod dialects;
#[path = "../support/doors.rs"]
mod doors;
#[path = "../support/eventually.rs"]
mod eventually;
mod evictions;
mod faults;
mod garbled;
mod holes;
#[path = "../support/killed.rs"]
mod killed;
mod loss;
mod outages;
#[cfg(feature = "zookeeper-tls")]
#[path = "../support/papers.rs"]
mod papers;
mod phantom;
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
