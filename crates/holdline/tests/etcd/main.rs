//! The etcd store against real servers, which these tests start, stop, freeze and kill: what the
//! conformance suite does not know about. Without an `etcd` in the path they say that they were not
//! run, and fail under CI.
#![cfg(feature = "etcd")]

mod cost;
mod faults;
mod interop;
mod loss;
mod server;
mod users;
