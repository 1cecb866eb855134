//! The store in PostgreSQL against real servers, which these tests start, stop, freeze and kill:
//! what the conformance suite does not know about. Without an installed server they were not run,
//! and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "postgres")]

mod batches;
mod clock;
mod compare;
mod cost;
mod crash;
mod errors;
mod faults;
mod fenced;
mod pooled;
mod raw;
mod rights;
mod schema;
mod server;
mod session_ends;
mod sessions;
mod shedlock;
mod speed;
mod standby;
mod storms;
mod tls;
mod warnings;
