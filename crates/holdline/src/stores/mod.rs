//! The stores: one file or folder each, behind a feature each, and what they share.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod runtime;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) mod tls;
#[cfg(feature = "redis-tls")]
pub(crate) mod tls_provider;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "sqlite"))]
#[allow(dead_code, reason = "each store uses a part of it")]
pub(crate) mod url;
pub(crate) mod waiters;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
