//! The connection for commands: one for a store and its background handle, made when it is first
//! needed and again when it breaks.
//!
//! Calls are sent one behind the other without waiting for replies, and the server carries them out
//! in that order. Every call has a time limit, connecting included. A call that is given up is
//! carried out or not, and what is sent later comes later; but if a connection has not answered for
//! a second, it is closed, since it may be cut without either end noticing.

use super::address::Address;
use super::errors::Fault;
use super::session::Session;
use crate::clock::{self, within};
use crate::sync::Mutex;
use futures_util::future::BoxFuture;
use holdline_kernel::{Backoff, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow as Row};

/// A check of a new connection, before it serves calls.
pub(super) type Check =
    Box<dyn for<'a> Fn(&'a Client) -> BoxFuture<'a, Result<(), Fault>> + Send + Sync>;

/// How long a connection may leave a call without a reply before it is closed.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The number of calls under way at most; further ones wait.
const MAX_CALLS: usize = 512;
/// The first and the longest pause before a call that met another transaction is sent again.
const SHORT_PAUSE: Duration = Duration::from_millis(1);
const LONG_PAUSE: Duration = Duration::from_millis(50);

/// The first and the longest pause between failed attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Connection {
    address: Arc<Address>,
    check: Check,
    slot: Mutex<Slot>,
    /// Held by the call that connects; the others wait for it, and for its result.
    connecting: tokio::sync::Mutex<Connecting>,
    /// How many attempts to connect have failed.
    attempts: AtomicU64,
    calls: Semaphore,
}

#[derive(Default)]
struct Slot {
    session: Option<Arc<Session>>,
    /// Since when calls have gone without a reply.
    silent: Option<Time>,
}

/// The state of connecting.
#[derive(Default)]
struct Connecting {
    /// The number of failures in a row.
    failures: u32,
    /// The last failure.
    fault: Option<Fault>,
    /// The time of the next attempt at the earliest.
    not_before: Time,
}

impl Connection {
    pub(super) fn new(address: Arc<Address>, check: Check) -> Self {
        Connection {
            address,
            check,
            slot: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            calls: Semaphore::new(MAX_CALLS),
        }
    }

    /// Runs one statement, which has its parameters in it, within the time limit: one round trip.
    /// It is sent again if it met another transaction.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statement is carried out or not; before any that is sent
    /// later over the same connection.
    pub(super) async fn ask(&self, sql: &str) -> Result<Vec<Row>, Fault> {
        let limit = clock::now().after(self.address.timeout);
        let talk = async {
            // It is never closed.
            let _permit = self.calls.acquire().await;
            let backoff = Backoff::exponential(SHORT_PAUSE, LONG_PAUSE).jitter(50);
            let mut collisions = 0;
            loop {
                match self.ask_once(sql).await {
                    Err(fault) if fault.collided() => {
                        clock::pause(backoff.pause(collisions, fastrand::u64(..))).await;
                        collisions += 1;
                    }
                    other => return other,
                }
            }
        };
        within(limit, talk).await.unwrap_or(Err(Fault::Silence))
    }

    async fn ask_once(&self, sql: &str) -> Result<Vec<Row>, Fault> {
        let session = self.session().await?;
        let mut call = CallInFlight { connection: self, session: &session, answered: false };
        let reply = session.client.simple_query(sql).await.map_err(Fault::from);
        call.answered = !matches!(reply, Err(Fault::Broken(_)));
        drop(call);
        if reply.as_ref().is_err_and(Fault::breaks) {
            self.discard(&session);
        }
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        reply.map(|messages| messages.into_iter().filter_map(row).collect())
    }

    /// The present connection, unless it is silent; or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Fault> {
        match self.usable() {
            Some(session) => Ok(session),
            None => Box::pin(self.connect()).await, // rare, and large
        }
    }

    /// A new connection, made once for all calls that wait for one. After a failure the next
    /// attempt backs off, however many calls there are; the calls that waited for a failed attempt
    /// share its error.
    async fn connect(&self) -> Result<Arc<Session>, Fault> {
        let attempts = self.attempts.load(Ordering::Relaxed);
        let mut connecting = self.connecting.lock().await;
        if let Some(session) = self.usable() {
            return Ok(session); // made by another call in the meantime
        }
        if let Some(fault) = &connecting.fault
            && self.attempts.load(Ordering::Relaxed) != attempts
        {
            return Err(fault.clone());
        }
        clock::sleep_until(connecting.not_before).await;
        let backoff = Backoff::exponential(FIRST_PAUSE, LONGEST_PAUSE).jitter(50);
        let pause = backoff.pause(connecting.failures, fastrand::u64(..));
        // Also if this future is dropped before it is done.
        connecting.not_before = clock::now().after(pause);
        match self.connect_once().await.map_err(Fault::unsent) {
            Ok(session) => {
                *connecting = Connecting::default();
                Ok(session)
            }
            Err(fault) => {
                connecting.failures = connecting.failures.saturating_add(1);
                connecting.not_before = clock::now().after(pause);
                connecting.fault = Some(fault.clone());
                self.attempts.fetch_add(1, Ordering::Relaxed);
                Err(fault)
            }
        }
    }

    async fn connect_once(&self) -> Result<Arc<Session>, Fault> {
        let session = Session::open(&self.address, Box::new(|_| {})).await?;
        (self.check)(&session.client).await?;
        let session = Arc::new(session);
        *self.slot.lock() = Slot { session: Some(Arc::clone(&session)), silent: None };
        crate::metrics::connected("postgres");
        Ok(session)
    }

    fn usable(&self) -> Option<Arc<Session>> {
        let mut slot = self.slot.lock();
        let silent = slot.silent.is_some_and(|since| since.until(clock::now()) > MAX_SILENCE);
        if silent || slot.session.as_ref().is_some_and(|session| session.is_over()) {
            *slot = Slot::default();
        }
        slot.session.clone()
    }

    /// Closes a connection to new calls. Calls that wait for a reply over it may still get one.
    pub(super) fn discard(&self, session: &Arc<Session>) {
        let mut slot = self.slot.lock();
        if slot.session.as_ref().is_some_and(|present| Arc::ptr_eq(present, session)) {
            *slot = Slot::default();
        }
    }
}

/// A call in flight, which records on drop whether it had a reply.
struct CallInFlight<'a> {
    connection: &'a Connection,
    session: &'a Arc<Session>,
    answered: bool,
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        let mut slot = self.connection.slot.lock();
        if !slot.session.as_ref().is_some_and(|present| Arc::ptr_eq(present, self.session)) {
            return;
        }
        if self.answered {
            slot.silent = None;
        } else if slot.silent.is_none() {
            slot.silent = Some(clock::now());
        }
    }
}
