//! `etcd:` locks in etcd (3.4 and later), shared with Go's `concurrency` package and with
//! `etcdctl lock`.
//!
//! One lease per process, one key per ticket, in order of creation; the key's create revision is
//! the place and the fencing token. Entering is one transaction, a failed try writes nothing,
//! leaving is one deletion, renewing costs nothing per lock.
//!
//! ```text
//! mod.rs --> enter.rs keep.rs leave.rs   what is asked of the line
//!                 |  ahead.rs                who is ahead, without walking the line
//!                 |  swap.rs                 one leaves and the next enters in one call
//!                 |  line.rs record.rs       how it looks there, and what is known of it here
//!                 |  flight.rs               writes that are under way
//!                 v
//!            house.rs                    sessions, tickets and watches, and who looks after them
//!                 |  session.rs hub.rs       one lease; one stream of watches
//!                 v
//!            wire.rs fault.rs proto.rs   calls, failover, errors, messages
//!                 |  link.rs grpc.rs tls.rs   one connection, and what is said on it
//!                 v  h2
//! ```

mod address;
mod ahead;
mod answer;
mod attempt;
mod beside;
mod enter;
mod fault;
mod flight;
mod greeting;
mod grpc;
mod house;
mod hub;
mod keep;
mod late;
mod leave;
mod line;
mod link;
mod proto;
mod recent;
mod record;
mod session;
mod sessions;
mod slot;
mod swap;
mod tls;
mod wire;

use crate::error::Result;
use crate::names::Name;
use crate::store::{Alarm, Async, Enter, Promises, Seq, Standing, Store, Ticket, TicketId, View};
use house::House;
use std::sync::Arc;
use std::time::Duration;

/// A store in etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    house: Arc<House>,
}

impl Etcd {
    /// The store at this URL, `etcd://HOST:PORT,HOST:PORT/PREFIX`. Connects when first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL makes no sense;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the system gives no thread.
    pub fn new(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("etcd", url));
        let wire = wire::Wire::new(address::Address::read(scheme, rest)?)?;
        house::start()?;
        Ok(Etcd { house: House::new(wire) })
    }
}

impl Store for Etcd {
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
            self.house.listen(&record);
            record.news.notified().await;
            Ok(None)
        })
    }

    fn look<'a>(&'a self, line: &'a Name) -> Async<'a, View> {
        Box::pin(self.house.look(line))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(self.house.list(prefix))
    }

    fn evict<'a>(
        &'a self,
        line: &'a Name,
        id: TicketId,
        reason: &'a str,
    ) -> Async<'a, Option<Seq>> {
        Box::pin(self.house.evict(line, id, reason))
    }

    fn promises(&self) -> Promises {
        Promises {
            queues: true,
            fences: true,
            wakes: true,
            weights: true,
            spans: false, // no two places can be reserved by one key
            swaps: true,
            crash_release: false,
            survives_failover: true,
            survives_restart: true,
            lease_min: Duration::from_secs(1),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    /// The same: every runtime has connections of its own.
    fn twin(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn alarm(&self, alarm: Alarm) {
        let _ = self.house.alarm.0.set(alarm);
    }

    fn address(&self) -> String {
        self.house.wire.address.to_string()
    }
}

/// Reads what follows the scheme.
pub(crate) fn open(scheme: &str, rest: &str) -> Result<Arc<dyn Store>> {
    let wire = wire::Wire::new(address::Address::read(scheme, rest)?)?;
    house::start()?;
    Ok(Arc::new(Etcd { house: House::new(wire) }))
}
