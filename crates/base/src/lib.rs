//! What the crates of holdline that talk to servers have in common.
//!
//! - [`clock`]: a clock that goes on while the machine is suspended, and time limits by it; a
//!   simulation can move it.
//! - [`url`], [`servers`], [`tls`]: the parts of a URL that name servers, a user and certificates.
//! - [`net`]: connections over TCP and TLS to what such a URL names.
//! - [`probe`]: what kind of server listens at an address.
//! - `tls_provider`: the provider of cryptography for clients that use the process's default.
//! - [`liveness`]: until when a session is good, by what its server has confirmed.
//! - [`sync`]: a mutex that ignores poisoning.
//! - [`Error`]: what went wrong, as a kind to act on and a sentence to read.
//!
//! Nothing here knows of locks. The crate is for holdline's own crates: its parts may change with
//! every version.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
mod error;
pub mod liveness;
#[cfg(feature = "net")]
pub mod net;
#[cfg(feature = "net")]
pub mod probe;
pub mod servers;
pub mod sync;
pub mod tls;
#[cfg(feature = "provider")]
pub mod tls_provider;
pub mod url;

pub use error::{Cause, Error, ErrorKind, Result};
