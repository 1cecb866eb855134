//! The Rust code of the README, compiled as a documentation test. The guides' code is compiled with
//! the library, which includes them as pages.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
