//! Certificates for tests.

pub(crate) use holdline_testkit::certs::certificates;
