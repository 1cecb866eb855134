//! The stores: one file or folder each, behind a feature each.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod background;
#[cfg(feature = "redis-tls")]
pub(crate) mod crypto;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod tls;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod url;
pub(crate) mod wakes;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
