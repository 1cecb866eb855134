//! The stores: a folder for each kind, and their common parts. Each store has a feature of its own.

#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "simulation"))]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "each store uses a part of it"))]
mod ephemeral;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod opening;
mod queue;
pub mod quorum;
#[cfg(any(
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql",
    feature = "simulation"
))]
mod recent;
#[cfg(any(
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql",
    feature = "simulation"
))]
#[cfg_attr(feature = "simulation", allow(dead_code, reason = "a simulation polls its own tasks"))]
pub(crate) mod runtime;
#[cfg(feature = "redis")]
mod single_key;
pub(crate) mod waiters;

#[cfg(feature = "mysql-tls")]
use holdline_base::tls_provider;
#[allow(unused_imports, reason = "each store uses a part of it")]
use holdline_base::{servers, tls, url};

#[cfg(feature = "etcd")]
pub use ephemeral::etcd;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use ephemeral::simulated;
#[cfg(feature = "zookeeper")]
pub use ephemeral::zookeeper;
pub use queue::memory;
#[cfg(feature = "mysql")]
pub use queue::mysql;
#[cfg(feature = "postgres")]
pub use queue::postgres;
#[cfg(feature = "redis")]
pub use queue::redis;
#[cfg(feature = "sqlite")]
pub use queue::sqlite;
