//! The etcd store against real servers, which these tests start, stop, freeze and kill: what the
//! conformance suite does not know about. Without an `etcd` in the path they were not
//! run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "etcd")]

mod cost;
mod crowded;
mod dropped;
mod faults;
mod foreign;
mod frozen;
mod full;
mod garble;
mod interop;
mod late;
mod loss;
mod moves;
mod observe;
mod other_clients;
mod outage;
mod reused;
mod stale_leader;
mod storm;
mod transfer;
mod trials;
mod unreliable;
mod users;
mod wrong;
