//! Redis servers of a test's own.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use holdline_testkit::free_port;
pub(crate) use holdline_testkit::redis::*;
