//! Members of etcd of a test's own.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use crate::eventually::{soon, until};
pub(crate) use holdline_testkit::etcd::*;
