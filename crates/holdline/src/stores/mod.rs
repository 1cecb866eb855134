//! The stores: one file or folder each, behind a feature each.

pub mod memory;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub(crate) mod wakes;
