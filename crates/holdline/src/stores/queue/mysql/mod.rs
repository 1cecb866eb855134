//! The stores `mysql:` and `mariadb:`: locks kept in MySQL (8.0.29 or later) or MariaDB (10.6 or
//! later).
//!
//! ```text
//! config.rs      the URL and its options; opts.rs: the client's options
//! schema.rs      the tables and procedures: installation and sweep; their text is in sql/
//! table.rs       the lease table: a line with places
//! text.rs        its statements, and the decoding of their answers
//! session.rs     the schemes row and named: locks that a connection holds
//! relay.rs       how the end of such a connection is seen
//! shedlock.rs    the scheme shedlock: the statements
//! watches.rs     the waiters of this process; listener.rs: how other processes wake them
//! connection.rs  the connections for calls; batch.rs: calls that are sent together
//! errors.rs      the meanings of the server's errors
//! examine.rs     the checks of the server for `doctor`
//! ```

mod batch;
mod config;
mod connection;
mod errors;
#[cfg(feature = "doctor")]
mod examine;
mod listener;
#[cfg(test)]
mod model;
mod opts;
mod relay;
mod schema;
mod session;
mod shedlock;
mod table;
mod text;
mod watches;

use crate::error::Result;
use crate::store::Store;
use crate::stores::opening;
use crate::stores::queue::sessions::SessionLocks;
use crate::stores::queue::sql;
use config::{Config, Scheme};
#[cfg(feature = "doctor")]
pub(crate) use examine::examine;
pub(crate) use schema::{SCHEMA, install, sweep};
use session::Sessions;
use std::sync::Arc;
use table::Table;

/// Opens the store at a URL (`rest` is what follows the colon) and checks that it can be used,
/// within the time limit of one call (unless it installs the tables).
pub(crate) async fn open(rest: &str) -> Result<Arc<dyn Store>> {
    let config = Config::read(rest)?;
    if config.install {
        schema::install_at(&config).await?;
    }
    let (limit, silent) = (config.timeout, sql::unopened(&config));
    let (address, hosts) = (config.to_string(), [(config.host.clone(), config.port)]);
    let foreign = || sql::foreign(&address, "MySQL", &hosts);
    // To the server, a probe is an interrupted handshake, and it blocks hosts that have too many
    // (max_connect_errors). So a server that is only slow gets more time.
    let patience = limit * 2 / 3;
    opening::open(limit, patience, Box::pin(open_scheme(config)), silent, foreign).await
}

async fn open_scheme(config: Config) -> Result<Arc<dyn Store>> {
    match config.scheme {
        Scheme::Table => Ok(Arc::new(Table::open(config).await?)),
        Scheme::Shedlock => Ok(Arc::new(shedlock::open(config).await?)),
        Scheme::Row | Scheme::Named => {
            Ok(Arc::new(SessionLocks::open(Sessions::new(config)?).await?))
        }
    }
}
