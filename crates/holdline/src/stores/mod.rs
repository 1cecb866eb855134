//! The stores: one file or folder each, behind a feature each.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub(crate) mod wakes;
