//! The etcd store against real servers, which these tests start, stop, freeze and kill: what the
//! conformance suite does not know about. Without an `etcd` in the path they say that they were not
//! run, and fail under CI.
#![cfg(feature = "etcd")]

mod cost;
#[path = "../support/cutoff.rs"]
mod cutoff;
#[path = "../support/doors.rs"]
mod doors;
#[path = "../etcd_server/mod.rs"]
mod etcd_server;
mod faults;
mod foreign;
mod frozen;
mod garble;
mod holes;
mod interop;
#[path = "../support/killed.rs"]
mod killed;
mod late;
mod loss;
mod outage;
mod past;
#[path = "../support/patience.rs"]
mod patience;
mod storm;
mod swap;
mod trials;
mod users;
mod wrong;
