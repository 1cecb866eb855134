//! The common base of holdline's crates that talk to servers.
//!
//! - [`clock`]: a clock that keeps running while the machine is suspended, and time limits on it; a
//!   simulation can control it.
//! - [`url`], [`servers`], [`tls`]: the parts of a URL that name servers, a user and certificates.
//! - [`net`]: TCP and TLS connections to the servers of such a URL.
//! - [`probe`]: detects what kind of server listens at an address.
//! - `tls_provider`: the cryptography provider for clients that use the process's default.
//! - [`liveness`]: how long a session lasts, according to its server's confirmations.
//! - [`sync`]: a mutex that ignores poisoning, and calls and wakers that contain panics.
//! - [`Error`]: an error, as a kind to act on and a sentence to read.
//!
//! Nothing here knows about locks. The crate is for holdline's own crates: its API may change with
//! every version.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!("holdline supports Unix only: Linux, where it is tested, macOS and the BSDs");

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
