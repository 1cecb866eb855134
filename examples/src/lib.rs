//! The Rust of the README, compiled as a test of the documentation. That of the guides is compiled
//! with the library, which has them as pages.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
