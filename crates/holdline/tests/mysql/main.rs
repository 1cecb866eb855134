//! The stores on MySQL and MariaDB: what the conformance suite does not know about. Most run on the
//! servers of the environment, `HOLDLINE_TEST_MARIADB` and `HOLDLINE_TEST_MYSQL`; those that stop or
//! kill a server start a MariaDB of their own.
#![cfg(feature = "mysql")]

mod server;
mod speed;
