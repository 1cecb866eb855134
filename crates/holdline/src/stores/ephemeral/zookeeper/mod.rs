//! `zookeeper:` locks in ZooKeeper (3.5 and later), shared with Apache Curator or with kazoo.
//!
//! One session per store, one ephemeral sequential node per ticket, in the order of the server's
//! numbers; the transaction that makes the node is the fencing token. A lock is three requests in
//! two round trips (create and list together, then delete), a failed try writes nothing, renewing
//! costs nothing per lock.
//!
//! ```text
//! mod.rs --> acquire.rs renew.rs release.rs inspect.rs   what is asked of the line
//!                 |  evictions.rs               notes about places that were removed
//!                 |  predecessors.rs            the nodes ahead; ticket_watch.rs: when they change
//!                 |  observe.rs                 when any node of a line, or below a path, changes
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

use super::engine;
use crate::error::Result;
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store,
    Subscription, Ticket, TicketId,
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
    /// The store at this URL, `zookeeper://HOST:PORT,HOST:PORT/PATH`, or `zks:` for TLS. Connects
    /// when first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL or the certificates that it
    /// names make no sense; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if TLS is
    /// asked for in a build without it.
    pub fn new(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("zookeeper", url));
        Ok(ZooKeeper { shared: Shared::new(address::Address::read(scheme, rest)?)? })
    }
}

impl AsyncStore for ZooKeeper {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        engine::enter(&self.shared, (line, ticket), note, how).await
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        engine::leave(&self.shared, line, id).await
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        engine::watch(&self.shared, id).await;
        Ok(None)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.shared.snapshot(line).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.shared.list(prefix).await
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        self.shared.evict(line, id, note).await
    }

    /// Watches the nodes, on a session of its own: those of sessions that end are deleted.
    fn subscribe(&self, lines: &Lines) -> Subscription {
        self.shared.subscribe(lines)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: true,
            fencing_tokens: true,
            notifications: true,
            weighted: true,
            token_ranges: false, // no two places can be reserved by one node
            crash_release: false,
            survives_failover: true,
            survives_restart: true,
            lease_min: Duration::from_millis(500),
            lease_max: longest_lease(self.shared.address.session),
        }
    }

    /// The same: its connection is looked after by a thread of its own.
    fn background_handle(&self) -> Self {
        self.clone()
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.shared.table.loss.0.set(loss_hint);
    }

    fn address(&self) -> String {
        self.shared.address.to_string()
    }
}

/// Reads what follows the scheme.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(ZooKeeper::new(&format!("{scheme}:{rest}"))?))
}
