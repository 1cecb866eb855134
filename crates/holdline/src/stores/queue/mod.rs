//! Stores of the first kind, a queue in the server: the server applies the rule, by a script, a
//! function or a transaction, and answers in one round trip.
//!
//! Such a store is begun with its layout of a line, and is held against the kernel's `Line` step by
//! step on random operations.

#[cfg(any(feature = "redis", feature = "mysql"))]
pub(in crate::stores) mod in_flight;
pub mod memory;
#[cfg(all(test, feature = "mysql"))]
mod model;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
