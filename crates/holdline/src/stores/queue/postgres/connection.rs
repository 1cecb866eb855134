//! The connection for commands: one for a store and its background handle, made when it is first
//! needed and again when it breaks.
//!
//! Calls are sent one behind the other without waiting for replies, and the server carries them out
//! in that order. Every call has a time limit, connecting included. A call that is given up is
//! carried out or not, and what is sent later comes later; its reply is still waited for, so that
//! the calls before which a server stands are bounded and counted, however soon callers give up.
//! But if a connection has not answered for a second, it is closed, since it may be cut without
//! either end noticing.

use super::address::{Address, Scheme};
use super::session::{self, Session};
use super::{encode, schema, shedlock};
use crate::clock::{self, within};
use crate::store::TicketId;
use crate::stores::queue::calls::{Answer, recorded, repeat};
use crate::stores::queue::in_flight::InFlight;
use crate::stores::queue::sql::{Fault, answered};
use crate::stores::runtime::Finished;
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// How long a connection may leave a call without a reply before it is closed.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The first and the longest pause between failed attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Connection {
    pub(super) address: Arc<Address>,
    slot: Arc<Mutex<Slot>>,
    /// Held by the call that connects; the others wait for it, and for its result.
    connecting: tokio::sync::Mutex<Connecting>,
    /// The tickets whose calls to take a place have been sent and not been answered.
    pub(super) in_flight: Arc<InFlight>,
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
    /// The last failure, and its time.
    fault: Option<(Time, Fault)>,
    /// The time of the next attempt at the earliest.
    not_before: Time,
}

impl Connection {
    pub(super) fn new(address: Arc<Address>) -> Self {
        Connection {
            address,
            slot: Arc::default(),
            connecting: tokio::sync::Mutex::default(),
            in_flight: Arc::default(),
        }
    }

    /// Runs one statement, which has its parameters in it and may be [repeated](repeat): one round
    /// trip.
    ///
    /// `taker` is the ticket that may take a place by it. It is in flight from when the statement
    /// is sent until it is answered, also if the caller has given up by then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statement is carried out or not; before any that is sent
    /// later over the same connection.
    pub(super) async fn call(&self, taker: Option<TicketId>, sql: &str) -> Result<Answer, Fault> {
        repeat(self.address.timeout, |limit| self.ask(taker, sql, limit)).await
    }

    async fn ask(&self, taker: Option<TicketId>, sql: &str, limit: Time) -> Result<Answer, Fault> {
        let (session, permit) = self.permitted().await?;
        let (slot, own, sql) = (Arc::clone(&self.slot), Arc::clone(&session), sql.to_owned());
        let runtime = session::runtime().map_err(Fault::from)?;
        let request = taker.map(|id| self.in_flight.begin_own(id));
        let mut work = Finished::new(runtime, async move {
            let asked = answered(limit, own.client.simple_query(&sql));
            let reply = recorded(request, asked).await;
            if !reply.as_ref().is_err_and(Fault::silent) {
                in_slot(&slot, &own, |slot| slot.silent = None);
            }
            drop(permit);
            reply
        });
        // Declared later, so that it is dropped before the work goes on without it.
        let mut caller = Caller { slot: &self.slot, session: &session, gives_up: true };
        let reply = (&mut work).await;
        caller.gives_up = reply.as_ref().is_err_and(Fault::silent);
        drop(caller);
        if reply.as_ref().is_err_and(Fault::ended) {
            self.discard(&session);
        }
        reply.map(encode::answer)
    }

    /// The present connection, and the right to one of the calls without a reply on it. Calls that
    /// wait for that look from time to time whether there is another connection.
    async fn permitted(&self) -> Result<(Arc<Session>, OwnedSemaphorePermit), Fault> {
        loop {
            let session = self.session().await?;
            let soon = clock::now().after(MAX_SILENCE / 4);
            let permit = within(soon, Arc::clone(&session.calls).acquire_owned()).await;
            if let Some(Ok(permit)) = permit
                && self.usable().is_some_and(|present| Arc::ptr_eq(&present, &session))
            {
                return Ok((session, permit));
            }
        }
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
        let asked = clock::now();
        let mut connecting = self.connecting.lock().await;
        if let Some(session) = self.usable() {
            return Ok(session); // made by another call in the meantime
        }
        if let Some((at, fault)) = &connecting.fault
            && *at > asked
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
                let now = clock::now();
                let failures = connecting.failures.saturating_add(1);
                let fault_then = Some((now, fault.clone()));
                *connecting =
                    Connecting { failures, fault: fault_then, not_before: now.after(pause) };
                Err(fault)
            }
        }
    }

    async fn connect_once(&self) -> Result<Arc<Session>, Fault> {
        let session = Session::open(&self.address, Box::new(|_| {})).await?;
        let (client, address) = (&session.client, &self.address);
        match address.scheme {
            Scheme::Table => schema::check(client, address).await?,
            Scheme::Shedlock => shedlock::check(client, address).await?,
            Scheme::Advisory(_) | Scheme::Row => {} // it only looks
        }
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
        in_slot(&self.slot, session, |slot| *slot = Slot::default());
    }
}

/// Changes the slot, unless another connection is in it by now.
fn in_slot(slot: &Mutex<Slot>, session: &Arc<Session>, change: impl FnOnce(&mut Slot)) {
    let mut slot = slot.lock();
    if slot.session.as_ref().is_some_and(|present| Arc::ptr_eq(present, session)) {
        change(&mut slot);
    }
}

/// The caller of a call in flight, which records on drop since when it goes without a reply.
struct Caller<'a> {
    slot: &'a Mutex<Slot>,
    session: &'a Arc<Session>,
    gives_up: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.gives_up {
            in_slot(self.slot, self.session, |slot| _ = slot.silent.get_or_insert_with(clock::now));
        }
    }
}
