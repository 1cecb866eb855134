//! The store `postgres:`: locks kept in PostgreSQL (13 or later).
//!
//! ```text
//! address.rs      the URL and its options
//! schema.rs       the tables and functions: installation and check; their text is in sql/
//! table.rs        the lease table: a line with places
//! encode.rs       parameters and results of its functions
//! listener.rs     notices
//! session.rs      one connection, and the task that drives it; tls.rs: connecting
//! connection.rs   the connection for commands, which reconnects
//! errors.rs       faults of calls, and the errors that they become
//! ```

mod address;
mod connection;
mod encode;
mod errors;
mod listener;
#[cfg(test)]
mod model;
mod schema;
mod session;
mod table;
mod tls;

use crate::clock::{self, within};
use crate::error::Result;
use crate::store::Store;
use address::{Address, Scheme};
use errors::Fault;
use std::sync::Arc;
use table::Table;

/// Opens the store at a URL, of which `rest` follows the colon, and checks that it can be used,
/// within the time limit of one call (unless it installs the schema).
pub(crate) async fn open(rest: &str) -> Result<Arc<dyn Store>> {
    let address = Address::read(rest)?;
    let limit = clock::now().after(if address.install {
        address.timeout + schema::INSTALLATION
    } else {
        address.timeout
    });
    let silent = Fault::Silence.explain(&address, "");
    match address.scheme {
        Scheme::Table => {
            let store = Table::new(address)?;
            within(limit, Box::pin(store.open())).await.unwrap_or(Err(silent))?;
            Ok(Arc::new(store))
        }
    }
}

/// The statements that create the tables and functions, in a schema of this name.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there can be no schema of this name.
pub fn schema(name: &str) -> Result<String> {
    schema::text(name)
}

/// Installs the tables and functions in the database at this URL, as its options say. What is
/// there and of this version is left as it is; all or nothing is done.
///
/// # Errors
///
/// As for [`open`](crate::open).
///
/// # Cancel safety
///
/// If the future is dropped, all or nothing was done.
pub async fn install(url: &str) -> Result<()> {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest);
    schema::install(&Address::read(rest)?).await
}
