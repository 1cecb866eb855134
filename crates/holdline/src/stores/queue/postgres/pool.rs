//! The connections on which locks of sessions and transactions are held: few, each with a limit of
//! locks, never reconnected. What a connection held is gone when it ends.

use super::address::Address;
use super::session::{self, Session};
use super::session_sql::{Kind, prepare};
use crate::clock::{self, within};
use crate::error::ErrorKind;
use crate::stores::queue::sql::Fault;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(super) struct Pool {
    pub(super) address: Arc<Address>,
    /// The most connections, and the most locks on each.
    pub(super) most: usize,
    pub(super) each: usize,
    pub(super) kind: Kind,
    /// Called with the number of a connection that has ended.
    pub(super) on_end: Arc<dyn Fn(u64) + Send + Sync>,
    conns: Mutex<Vec<Arc<Conn>>>,
    opening: tokio::sync::Mutex<u64>,
}

/// One connection.
pub(super) struct Conn {
    pub(super) session: Session,
    pub(super) number: u64,
    /// The server's version, as `server_version_num` has it.
    pub(super) version: i32,
    /// The longest lease of a lock on it so far, in milliseconds.
    pub(super) longest: AtomicU64,
    load: AtomicUsize,
}

/// A place for one lock on a connection. If it is dropped while it may hold the lock, the
/// connection is closed: it is not known what it holds.
pub(super) struct Claim {
    pub(super) conn: Arc<Conn>,
    pub(super) may_hold: bool,
}

impl Pool {
    pub(super) fn new(
        address: Arc<Address>,
        (most, each): (usize, usize),
        kind: Kind,
        on_end: Arc<dyn Fn(u64) + Send + Sync>,
    ) -> Self {
        let (conns, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        Pool { address, most, each, kind, on_end, conns, opening }
    }

    /// A place for a lock, on a new connection if need be.
    pub(super) async fn claim(&self) -> Result<Claim, Fault> {
        if let Some(claim) = self.free() {
            return Ok(claim);
        }
        let mut opened = self.opening.lock().await;
        if let Some(claim) = self.free() {
            return Ok(claim);
        }
        if self.conns.lock().len() >= self.most {
            let message = format!(
                "all {} connections of this process for locks at {} are in use, with {} each; \
                 release some, or allow more by ?connections=",
                self.most, self.address, self.each
            );
            return Err(Fault::Ours(ErrorKind::Unavailable, message));
        }
        *opened += 1;
        let session = Session::open(&self.address, Box::new(|_| {})).await?;
        let limit = clock::now().after(self.address.timeout);
        let prepared = within(limit, prepare(self.kind, &session.client, &self.address)).await;
        let version = prepared.unwrap_or(Err(Fault::Silence))?;
        let (longest, load) = (AtomicU64::new(0), AtomicUsize::new(1));
        let (ended, number) = (session.ended(), *opened);
        let conn = Arc::new(Conn { session, number, version, longest, load });
        let on_end = Arc::clone(&self.on_end);
        session::runtime().map_err(Fault::from)?.spawn(async move {
            ended.await;
            on_end(number);
        });
        self.conns.lock().push(Arc::clone(&conn));
        Ok(Claim { conn, may_hold: false })
    }

    fn free(&self) -> Option<Claim> {
        let mut conns = self.conns.lock();
        conns.retain(|conn| !conn.session.is_over());
        let free = |conn: &&Arc<Conn>| conn.load.load(Ordering::SeqCst) < self.each;
        let conn = Arc::clone(conns.iter().find(free)?);
        conn.load.fetch_add(1, Ordering::SeqCst);
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
        self.conn.load.fetch_sub(1, Ordering::SeqCst);
    }
}
