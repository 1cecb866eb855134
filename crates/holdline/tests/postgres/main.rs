//! The store in PostgreSQL: tests beyond the conformance suite, on real servers that they start,
//! stop, freeze and kill. Without an installed server they are not run, and do not pass: see
//! `holdline_testkit::missing`.
#![cfg(feature = "postgres")]

mod batches;
mod clock;
mod compare;
mod cost;
mod crash;
mod errors;
mod faults;
mod fenced;
mod foreign;
mod pooled;
mod pooled_sessions;
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
