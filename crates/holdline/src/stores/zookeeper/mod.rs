//! `zookeeper:` locks in ZooKeeper (3.5 and later), shared with Apache Curator or with kazoo.
//!
//! One session per store, one ephemeral sequential node per ticket, in the order of the server's
//! numbers; the transaction that makes the node is the fencing token. A lock is three requests in
//! two round trips (create and list together, then delete), a failed try writes nothing, renewing
//! costs nothing per lock.
//!
//! ```text
//! mod.rs --> enter.rs keep.rs leave.rs look.rs   what is asked of the line
//!                 |  evictions.rs                    notes about places that were removed
//!                 |  ahead.rs watch.rs               who is ahead, and when that changes
//!                 |  others.rs                       who would not see us
//!                 |  line.rs dialect.rs path.rs      how it looks there: names, numbers, paths
//!                 |  record.rs                       what is known here of a ticket
//!                 v
//!            house.rs cleanup.rs                 tickets, and who looks after them
//!                 |  session.rs                      one session, and until when it lasts
//!                 v
//!            client.rs                       what can be asked of the servers
//!                 |  link.rs watches.rs              the connection of the moment, and its task
//!                 |  attach.rs sasl.rs tls.rs        making one
//!                 |  identify.rs                     what else answers there
//!                 |  wire.rs jute.rs                 how it looks in bytes
//!                 v
//!            address.rs codes.rs fault.rs    where the servers are, and what they say
//! ```

mod address;
mod ahead;
mod attach;
mod cleanup;
mod client;
mod codes;
mod dialect;
mod enter;
mod evictions;
mod fault;
mod house;
mod identify;
mod jute;
mod keep;
mod leave;
mod line;
mod link;
mod look;
mod others;
mod path;
mod record;
mod sasl;
mod session;
mod tls;
mod watch;
mod watches;
mod wire;

use crate::error::Result;
use crate::names::Name;
use crate::store::{
    Async, Capabilities, Enter, LossHint, QueueSnapshot, Seq, Standing, Store, Ticket, TicketId,
};
use house::House;
use std::sync::Arc;
use std::time::Duration;

/// A store in ZooKeeper.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    house: Arc<House>,
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
        let address = address::Address::read(scheme, rest)?;
        tls::check(&address)?;
        house::start()?;
        Ok(ZooKeeper { house: House::new(address) })
    }
}

impl Store for ZooKeeper {
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing> {
        Box::pin(async move { self.house.enter(&enter::Request { line, ticket, note, how }).await })
    }

    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool> {
        Box::pin(self.house.leave(line, id))
    }

    fn watch<'a>(&'a self, _line: &'a Name, id: TicketId) -> Async<'a, Option<Seq>> {
        Box::pin(async move {
            // One that is not known is to be asked about, not waited for.
            let Some(record) = self.house.find(id) else { return Ok(None) };
            record.listen();
            record.news.notified().await;
            Ok(None)
        })
    }

    fn snapshot<'a>(&'a self, line: &'a Name) -> Async<'a, QueueSnapshot> {
        Box::pin(self.house.snapshot(line))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(self.house.list(prefix))
    }

    fn evict<'a>(&'a self, line: &'a Name, id: TicketId, note: &'a str) -> Async<'a, Option<Seq>> {
        Box::pin(self.house.evict(line, id, note))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: true,
            fencing_tokens: true,
            notifications: true,
            weighted: true,
            token_ranges: false, // no two places can be reserved by one node
            swaps: false,
            crash_release: false,
            survives_failover: true,
            survives_restart: true,
            lease_min: Duration::from_millis(500),
            lease_max: session::longest_lease(self.house.address.session),
        }
    }

    /// The same: its connection is looked after by a thread of its own.
    fn background_handle(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.house.loss_hint.0.set(loss_hint);
    }

    fn address(&self) -> String {
        self.house.address.to_string()
    }
}

/// Reads what follows the scheme.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(ZooKeeper::new(&format!("{scheme}:{rest}"))?))
}
