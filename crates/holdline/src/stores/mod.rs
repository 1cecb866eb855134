//! The stores: one file or folder each, behind a feature each.

pub mod memory;
pub(crate) mod wakes;
