//! The connections on which locks of sessions and transactions are held: few, each with a limit of
//! locks, never reconnected. What a connection held is gone when it ends.

use super::address::Address;
use super::session::Session;
use super::sessions::prepare;
use crate::clock;
use crate::stores::queue::sql::{Fault, answered};
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(super) struct Pool {
    address: Arc<Address>,
    /// The most locks on each connection.
    each: usize,
    conns: Mutex<Vec<Arc<Conn>>>,
    /// Held by the claim that opens a connection.
    opening: tokio::sync::Mutex<()>,
}

/// One connection.
pub(super) struct Conn {
    pub(super) session: Session,
    /// The server's version, as `server_version_num` has it.
    pub(super) version: i32,
    /// The longest lease of a lock on it so far, in milliseconds.
    pub(super) longest: AtomicU64,
}

/// A place for one lock on a connection. If it is dropped while it may hold the lock, the
/// connection is closed: it is not known what it holds.
pub(super) struct Claim {
    pub(super) conn: Arc<Conn>,
    pub(super) may_hold: bool,
}

impl Pool {
    pub(super) fn new(address: Arc<Address>, each: usize) -> Self {
        Pool { address, each, conns: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// A place for a lock, on a new connection if need be. There are no more connections than the
    /// locks that there may be need.
    pub(super) async fn claim(&self) -> Result<Claim, Fault> {
        if let Some(claim) = self.free() {
            return Ok(claim);
        }
        let _opening = self.opening.lock().await;
        if let Some(claim) = self.free() {
            return Ok(claim);
        }
        let session = Session::open(&self.address, Box::new(|_| {})).await?;
        let limit = clock::now().after(self.address.timeout);
        let version = answered(limit, prepare(&session.client, &self.address)).await?;
        let conn = Arc::new(Conn { session, version, longest: AtomicU64::new(0) });
        self.conns.lock().push(Arc::clone(&conn));
        Ok(Claim { conn, may_hold: false })
    }

    fn free(&self) -> Option<Claim> {
        let mut conns = self.conns.lock();
        conns.retain(|conn| !conn.session.is_over());
        // Besides this list only claims have it, one for each lock.
        let free = |conn: &&Arc<Conn>| Arc::strong_count(conn) <= self.each;
        let conn = Arc::clone(conns.iter().find(free)?);
        Some(Claim { conn, may_hold: false })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for conn in self.conns.lock().iter() {
            conn.session.close();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.may_hold {
            self.conn.session.close();
        }
    }
}
