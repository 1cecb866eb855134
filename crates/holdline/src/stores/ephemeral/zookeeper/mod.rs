//! `zookeeper:` locks in ZooKeeper (3.5 and later), shared with Apache Curator or with kazoo.
//!
//! One session per store, one ephemeral sequential node per ticket, in the order of the server's
//! numbers; the transaction that creates the node is the fencing token. A lock is three requests in
//! two round trips (create and list together, then delete), or two if nobody else uses the line; a
//! failed try writes nothing, and renewing costs nothing per lock.
//!
//! ```text
//! mod.rs --> acquire.rs renew.rs release.rs inspect.rs   what is asked of the line
//!                 |  evictions.rs               notes about places that were removed
//!                 |  predecessors.rs            the nodes ahead; ticket_watch.rs: when they change
//!                 |  observe.rs                 when any node of a line, or below a path, changes
//!                 |  uncontended.rs             lines that need no list
//!                 |  others.rs                  clients that would not see us
//!                 |  layout.rs dialect.rs path.rs   how it looks there: names, numbers, paths
//!                 |  ticket_record.rs           what this process knows of a ticket
//!                 v
//!            shared.rs cleanup.rs orphans.rs    tickets, and their upkeep
//!                 |  address.rs errors.rs       where the servers are, and what they say
//!                 v
//!            holdline-zookeeper-client          sessions, requests, watches
//! ```

mod acquire;
mod address;
mod cleanup;
mod dialect;
mod errors;
mod evictions;
#[cfg(feature = "doctor")]
mod examine;
mod inspect;
mod layout;
mod observe;
mod orphans;
mod others;
mod path;
mod predecessors;
mod release;
mod renew;
mod shared;
mod ticket_record;
mod ticket_watch;
mod uncontended;

use super::contract::{CAPABILITIES, serve_by_engine};
use super::engine;
use crate::error::Result;
use crate::names::Name;
use crate::store::{
    Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store, Subscription,
    Ticket, TicketId,
};
#[cfg(feature = "doctor")]
pub(crate) use examine::examine;
use holdline_zookeeper_client::longest_lease;
use shared::Shared;
use std::sync::Arc;
use std::time::Duration;

/// A store in ZooKeeper.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    shared: Arc<Shared>,
}

impl ZooKeeper {
    /// Creates a store for this URL, `zookeeper://HOST:PORT,HOST:PORT/PATH`, or `zks:` for TLS. It
    /// connects on first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL or its certificates are
    /// invalid; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if TLS is requested in a
    /// build without it.
    pub fn new(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("zookeeper", url));
        Ok(ZooKeeper { shared: Shared::new(address::Address::read(scheme, rest)?)? })
    }
}

serve_by_engine!(ZooKeeper, |shared| Capabilities {
    lease_min: Duration::from_millis(500),
    lease_max: longest_lease(shared.address.session),
    ..CAPABILITIES
});

/// Opens the store for the part of a URL after the scheme.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(ZooKeeper::new(&format!("{scheme}:{rest}"))?))
}
