//! The store `postgres:`: locks kept in PostgreSQL (13 or later).
//!
//! ```text
//! address.rs      the URL and its options
//! schema.rs       the tables and functions: installation and check; their text is in sql/
//! table.rs        the lease table: a line with places
//! encode.rs       parameters and results of its functions
//! listener.rs     notices from other processes
//! session.rs      one connection, and the task that drives it; tls.rs: connecting
//! connection.rs   the connection for commands, which reconnects; batch.rs: calls sent together
//! sessions.rs     the schemes advisory and row: the statements
//! pool.rs         the connections that hold their locks; mark.rs: that no proxy shares them
//! keys.rs         the keys of advisory locks
//! warnings.rs     warnings about what slows locks down
//! shedlock.rs     the scheme shedlock: the statements
//! errors.rs       faults of calls, and the errors that they become
//! examine.rs      the checks of each server for `doctor`
//! ```

mod address;
mod batch;
mod connection;
mod encode;
mod errors;
#[cfg(feature = "doctor")]
mod examine;
mod keys;
mod listener;
mod mark;
#[cfg(test)]
mod model;
mod pool;
mod schema;
mod session;
mod sessions;
mod shedlock;
mod table;
mod tls;
mod warnings;

use crate::error::Result;
use crate::store::Store;
use crate::stores::opening;
use crate::stores::queue::sessions::SessionLocks;
use crate::stores::queue::shedlock::Shedlock;
use crate::stores::queue::sql;
use address::{Address, Scheme};
#[cfg(feature = "doctor")]
pub(crate) use examine::examine;
pub(crate) use schema::{install, sweep, text as schema_text};
use sessions::Sessions;
use std::sync::Arc;
use std::time::Duration;
use table::Table;

/// Opens the store at a URL (`rest` is what follows the colon) and checks that it can be used,
/// within the time limit of one call (unless it installs the schema).
pub(crate) async fn open(rest: &str) -> Result<Arc<dyn Store>> {
    let address = Address::read(rest)?;
    let install = if address.install { schema::LONGEST } else { Duration::ZERO };
    let (limit, silent) = (address.timeout + install, sql::unopened(&address));
    let (shown, hosts) = (address.to_string(), address.hosts.clone());
    let foreign = || sql::foreign(&shown, "PostgreSQL", &hosts);
    let patience = opening::patience(limit);
    opening::open(limit, patience, Box::pin(open_scheme(address)), silent, foreign).await
}

async fn open_scheme(address: Address) -> Result<Arc<dyn Store>> {
    // The error keeps its cause here; a fault of a connection has only the text.
    session::runtime()?;
    Ok(match address.scheme {
        Scheme::Table => Arc::new(Table::open(address).await?),
        Scheme::Shedlock => Arc::new(Shedlock::new(shedlock::Rows::open(address).await?)),
        Scheme::Advisory(_) | Scheme::Row => {
            Arc::new(SessionLocks::open(Sessions::new(address)).await?)
        }
    })
}
