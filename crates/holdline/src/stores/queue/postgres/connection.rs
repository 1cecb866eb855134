//! The connection for commands: one for a store and its background handle, made when it is first
//! needed and again when it breaks.
//!
//! Calls are pipelined: sent without waiting for replies, and carried out by the server in order.
//! Every call has a time limit, connecting included. A call that is given up is carried out or not,
//! but before any later call. Its reply is still awaited, so that the server's backlog of calls
//! stays bounded and counted, however soon callers give up. A connection that has not answered for
//! a second is closed, because it may have been cut without either end noticing.

use super::address::{Address, Scheme};
use super::batch::Call;
use super::session::{self, Lane, Session};
use super::{schema, shedlock};
use crate::clock::{self, within};
use crate::store::TicketId;
use crate::stores::queue::calls::{Answer, recorded, repeat};
use crate::stores::queue::in_flight::InFlight;
use crate::stores::queue::sql::{Fault, answered};
use crate::stores::runtime::{Finished, Joint};
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// How long a connection may leave a call without a reply before it is closed.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The first and the longest pause after failed attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Connection {
    pub(super) address: Arc<Address>,
    slot: Arc<Mutex<Slot>>,
    connecting: Joint<Result<(), Fault>>,
    /// The tickets whose calls to take a place have been sent but not answered.
    pub(super) in_flight: Arc<InFlight>,
}

#[derive(Default)]
struct Slot {
    session: Option<Arc<Session>>,
    /// Since when calls have gone without a reply.
    silent: Option<Time>,
    /// The number of consecutive failures to connect.
    failures: u32,
    /// The earliest time of the next attempt to connect.
    not_before: Time,
}

impl Connection {
    pub(super) fn new(address: Arc<Address>) -> Self {
        let (slot, in_flight) = (Arc::default(), Arc::default());
        Connection { address, slot, connecting: Joint::new(), in_flight }
    }

    /// Runs one repeatable statement (see [`repeat`]) with inline parameters, in one round trip.
    ///
    /// `taker` is the ticket that may take a place by it. It is in flight from when the statement
    /// is sent until it is answered, even if the caller has given up by then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statement is carried out or not, but before any statement sent
    /// later over the same connection.
    pub(super) async fn call(&self, taker: Option<TicketId>, call: Call) -> Result<Answer, Fault> {
        repeat(self.address.timeout, |limit| self.ask(taker, call.clone(), limit)).await
    }

    async fn ask(&self, taker: Option<TicketId>, call: Call, limit: Time) -> Result<Answer, Fault> {
        let (session, permit) = self.permitted(call.lane).await?;
        let (slot, own) = (Arc::clone(&self.slot), Arc::clone(&session));
        let runtime = session::runtime().map_err(Fault::from)?;
        let request = taker.map(|id| self.in_flight.begin_own(id));
        let mut work = Finished::new(runtime, async move {
            let asked = answered(limit, own.call(&call));
            let reply = recorded(request, asked).await;
            if !reply.as_ref().is_err_and(Fault::silent) {
                in_slot(&slot, &own, |slot| slot.silent = None);
            }
            drop(permit);
            reply
        });
        // Declared after `work`, so it is dropped first, before the work goes on without it.
        let mut caller = Caller { slot: &self.slot, session: &session, gives_up: true };
        let reply = (&mut work).await;
        caller.gives_up = reply.as_ref().is_err_and(Fault::silent);
        drop(caller);
        if reply.as_ref().is_err_and(Fault::ended) {
            self.discard(&session);
        }
        reply
    }

    /// The current connection, and a permit for a call on it. A call that waits for a permit checks
    /// from time to time whether there is another connection.
    async fn permitted(&self, lane: Lane) -> Result<(Arc<Session>, OwnedSemaphorePermit), Fault> {
        loop {
            let session = self.session().await?;
            let soon = clock::now().after(MAX_SILENCE / 4);
            let permit =
                within(soon, Arc::clone(&session.calls(lane).permits).acquire_owned()).await;
            if let Some(Ok(permit)) = permit
                && self.usable().is_some_and(|present| Arc::ptr_eq(&present, &session))
            {
                return Ok((session, permit));
            }
        }
    }

    /// The current connection, unless it is silent; or a new one, made once for all calls that wait
    /// for it. After a failure the next attempt backs off, however many calls there are; the calls
    /// that waited for a failed attempt share its error.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Fault> {
        if let Some(session) = self.usable() {
            return Ok(session);
        }
        let runtime = session::runtime().map_err(Fault::from)?;
        let attempt = || connect(Arc::clone(&self.address), Arc::clone(&self.slot));
        let gone = || Fault::Unsent("it was closed at once".to_owned());
        self.connecting.done(runtime, attempt).await.unwrap_or_else(|| Err(gone()))?;
        self.usable().ok_or_else(gone)
    }

    fn usable(&self) -> Option<Arc<Session>> {
        self.slot.lock().usable()
    }

    /// Closes a connection to new calls. Calls in flight may still get a reply.
    pub(super) fn discard(&self, session: &Arc<Session>) {
        in_slot(&self.slot, session, Slot::clear);
    }
}

/// Puts a new connection into the slot, unless it has one by then.
async fn connect(address: Arc<Address>, slot: Arc<Mutex<Slot>>) -> Result<(), Fault> {
    let not_before = {
        let mut slot = slot.lock();
        if slot.usable().is_some() {
            return Ok(());
        }
        slot.not_before
    };
    clock::sleep_until(not_before).await;
    let limit = clock::now().after(address.timeout);
    let opened = answered(limit, open(&address)).await.map_err(Fault::unsent);
    let mut slot = slot.lock();
    let session = match opened {
        Ok(session) => Arc::new(session),
        Err(fault) => {
            let backoff = Backoff::exponential(FIRST_PAUSE, LONGEST_PAUSE).jitter(50);
            let pause = backoff.pause(slot.failures, fastrand::u64(..));
            slot.failures = slot.failures.saturating_add(1);
            slot.not_before = clock::now().after(pause);
            return Err(fault);
        }
    };
    *slot = Slot { session: Some(session), ..Slot::default() };
    crate::metrics::connected("postgres");
    Ok(())
}

async fn open(address: &Address) -> Result<Session, Fault> {
    let session = Session::open(address, Box::new(|_| {})).await?;
    match address.scheme {
        Scheme::Table => schema::check(&session.client, address).await?,
        Scheme::Shedlock => shedlock::check(&session.client, address).await?,
        Scheme::Advisory(_) | Scheme::Row => {} // it only looks
    }
    Ok(session)
}

impl Slot {
    fn usable(&mut self) -> Option<Arc<Session>> {
        let silent = self.silent.is_some_and(|since| since.until(clock::now()) > MAX_SILENCE);
        if silent || self.session.as_ref().is_some_and(|session| session.is_over()) {
            self.clear();
        }
        self.session.clone()
    }

    fn clear(&mut self) {
        (self.session, self.silent) = (None, None);
    }
}

/// Changes the slot, unless it has another connection by now.
fn in_slot(slot: &Mutex<Slot>, session: &Arc<Session>, change: impl FnOnce(&mut Slot)) {
    let mut slot = slot.lock();
    if slot.session.as_ref().is_some_and(|present| Arc::ptr_eq(present, session)) {
        change(&mut slot);
    }
}

/// The caller of a call in flight. When it gives up, its drop records since when there was no
/// reply.
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
