//! `etcd:` locks in etcd (3.4 and later), shared with Go's `concurrency` package and with
//! `etcdctl lock`.
//!
//! One lease per process, one key per ticket, in order of creation; the key's create revision is
//! the place and the fencing token. Entering is one transaction, a failed try writes nothing,
//! leaving is one deletion, and renewing costs nothing per lock.
//!
//! ```text
//! mod.rs --> acquire.rs renew.rs release.rs   what is asked of the line
//!                 |  predecessors.rs          the keys ahead, without walking the line
//!                 |  together.rs              the regular questions of waiters, in one
//!                 |  transfer.rs              one leaves and the next enters in one call
//!                 |  layout.rs                how it looks in etcd
//!                 |  ticket_record.rs         what this process knows of a ticket
//!                 |  writes.rs                writes that are under way, or late
//!                 v
//!            shared.rs                        sessions, tickets, watches, and their upkeep
//!                 |  session.rs               one lease
//!                 v
//!            holdline-etcd-client             calls, failover, leases, watches
//! ```

mod acquire;
mod address;
mod answer;
mod beside;
#[cfg(feature = "doctor")]
mod examine;
mod layout;
mod predecessors;
mod release;
mod renew;
mod session;
mod sessions;
mod shared;
mod slot;
mod ticket_record;
mod together;
mod transfer;
mod writes;

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
use shared::Shared;
use std::sync::Arc;

/// A store in etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    shared: Arc<Shared>,
}

impl Etcd {
    /// Creates a store for this URL, `etcd://HOST:PORT,HOST:PORT/PREFIX`. It connects on first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL is invalid;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the system cannot start a
    /// thread.
    pub fn new(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("etcd", url));
        Ok(Etcd { shared: Shared::new(address::Address::read(scheme, rest)?)? })
    }
}

serve_by_engine!(Etcd, |_| CAPABILITIES);

/// Opens the store for the part of a URL after the scheme.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(Etcd::new(&format!("{scheme}:{rest}"))?))
}
