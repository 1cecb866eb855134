//! The store `postgres:`: locks kept in PostgreSQL (13 or later).
//!
//! ```text
//! address.rs      the URL and its options
//! session.rs      one connection, and the task that drives it; tls.rs: connecting
//! connection.rs   the connection for commands, which reconnects
//! errors.rs       faults of calls, and the errors that they become
//! ```

mod address;
mod connection;
mod errors;
mod session;
mod tls;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use address::Address;
use std::sync::Arc;

/// Opens the store at a URL, of which `rest` follows the colon.
#[allow(clippy::unused_async, reason = "it connects")]
pub(crate) async fn open(rest: &str) -> Result<Arc<dyn Store>> {
    let _address = Address::read(rest)?;
    Err(Error::new(ErrorKind::Unsupported, "PostgreSQL is not ready"))
}
