//! The stores on MySQL and MariaDB: tests beyond the conformance suite. Most run on the
//! environment's servers, `HOLDLINE_TEST_MARIADB` and `HOLDLINE_TEST_MYSQL`; tests that count or
//! kill start a MariaDB of their own. A test without its server is not run, and does not pass: see
//! `holdline_testkit::missing`.
#![cfg(feature = "mysql")]

mod batches;
mod between;
mod clocks;
mod clusters;
#[cfg(feature = "redis")]
mod compare;
mod cost;
mod crash;
mod faults;
mod foreign;
mod late;
mod limits;
mod notices;
mod rights;
mod runtimes;
mod schema;
mod server;
mod sessions;
mod shedlock;
mod speed;
mod storms;
