//! The connections that hold session and transaction locks: few, each with a limit of locks, never
//! reconnected. When a connection ends, its locks are gone.

use super::address::Address;
use super::mark::Mark;
use super::session::{self, Session};
use super::sessions::prepare;
use crate::stores::queue::connecting::Connecting;
use crate::stores::queue::sql::Fault;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) struct Pool {
    address: Arc<Address>,
    /// The maximum number of locks on each connection.
    each: usize,
    conns: Conns,
    connecting: Connecting,
}

type Conns = Arc<Mutex<Vec<Arc<Conn>>>>;

/// One connection.
pub(super) struct Conn {
    pub(super) session: Session,
    /// The server's version in the form of `server_version_num`.
    pub(super) version: i32,
    /// If it holds advisory locks.
    pub(super) mark: Option<Mark>,
    /// The server's number of the sequence of tokens that this connection has moved forward.
    pub(super) sequence: AtomicU32,
    /// The longest lease of a lock on it so far, in milliseconds.
    pub(super) longest: AtomicU64,
}

/// A slot for one lock on a connection. If it is dropped while it may hold the lock, the connection
/// is closed, because it is not known what it holds.
pub(super) struct Claim {
    pub(super) conn: Arc<Conn>,
    pub(super) may_hold: bool,
}

impl Pool {
    pub(super) fn new(address: Arc<Address>, each: usize) -> Self {
        Pool { address, each, conns: Conns::default(), connecting: Connecting::default() }
    }

    /// A slot for a lock, on a new connection if need be. Connections are opened one after another,
    /// so there are no more than the locks need.
    pub(super) async fn claim(&self) -> Result<Claim, Fault> {
        loop {
            if let Some(conn) = free(&self.conns, self.each) {
                return Ok(Claim { conn, may_hold: false });
            }
            let open = || open(Arc::clone(&self.address), Arc::clone(&self.conns), self.each);
            self.connecting.attempt(session::runtime()?, self.address.timeout, open).await?;
        }
    }
}

/// A connection with room for one more lock.
fn free(conns: &Conns, each: usize) -> Option<Arc<Conn>> {
    let mut conns = conns.lock();
    conns.retain(|conn| !conn.session.is_over());
    // Apart from this list, only claims hold a reference, one for each lock.
    let free = |conn: &&Arc<Conn>| Arc::strong_count(conn) <= each;
    conns.iter().find(free).cloned()
}

/// Adds a connection, unless one has room by then.
async fn open(address: Arc<Address>, conns: Conns, each: usize) -> Result<(), Fault> {
    if free(&conns, each).is_some() {
        return Ok(());
    }
    let session = Session::open(&address, None).await?;
    let conn = prepare(session, &address).await?;
    conns.lock().push(Arc::new(conn));
    Ok(())
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
