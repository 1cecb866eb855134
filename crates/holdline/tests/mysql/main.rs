//! The stores on MySQL and MariaDB: what the conformance suite does not know about. Most run on the
//! servers of the environment, `HOLDLINE_TEST_MARIADB` and `HOLDLINE_TEST_MYSQL`; those that count
//! or kill start a MariaDB of their own. What is missing is not run, and does not pass: see
//! `holdline_testkit::missing`.
#![cfg(feature = "mysql")]

mod between;
mod clocks;
mod clusters;
#[cfg(feature = "redis")]
mod compare;
mod cost;
mod faults;
mod limits;
mod notices;
mod rights;
mod schema;
mod server;
mod sessions;
mod shedlock;
mod speed;
mod storms;
