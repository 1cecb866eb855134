//! The connection for commands: one for a store and its background handle, made when it is first
//! needed and again when it breaks. While calls on it stall, most likely because another client has
//! locked their rows, renewals of leases have one of their own.
//!
//! Calls are [batched](super::batch). Every call has a time limit, connecting included. A call that
//! is given up is carried out or not, but before any later call for the same line, other than a
//! renewal. A connection on which a message has had no reply for 1.5 s is closed, because it may
//! have been cut without either end noticing.

use super::address::{Address, Scheme};
use super::batch::{Call, Queued};
use super::session::{self, Session};
use super::{schema, shedlock};
use crate::clock;
use crate::store::TicketId;
use crate::stores::queue::calls::{Answer, repeat};
use crate::stores::queue::connecting::Connecting;
use crate::stores::queue::in_flight::InFlight;
use crate::stores::queue::sql::Fault;
use crate::sync::{Mutex, contain_wakers};
use futures_util::FutureExt;
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a connection may leave a message without a reply before it is replaced: as long as a
/// call may take, so that a busy server gets no connections instead of answers, and short enough
/// that the last renewal of a lease of 4 s goes over another one. It is doubled, up to the longest,
/// for a connection that replaces one in its first minute: a server whose disk stands still, or
/// whose standby is away, keeps every connection until it goes on, and meanwhile answers only calls
/// that write nothing.
const MAX_SILENCE: Duration = Duration::from_millis(1500);
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

pub(super) struct Connection {
    pub(super) address: Arc<Address>,
    shared: Arc<Link>,
    /// For renewals while calls on the other one stall.
    spare: Arc<Link>,
    /// The tickets whose calls to take a place have been sent but not answered.
    pub(super) in_flight: Arc<InFlight>,
}

#[derive(Default)]
struct Link {
    slot: Mutex<Slot>,
    connecting: Connecting,
}

#[derive(Default)]
struct Slot {
    session: Option<Arc<Session>>,
    /// How long the connection may be silent in its first minute.
    patience: Duration,
}

impl Connection {
    pub(super) fn new(address: Arc<Address>) -> Self {
        let (shared, spare) = (Arc::default(), Arc::default());
        Connection { address, shared, spare, in_flight: Arc::default() }
    }

    /// Runs one repeatable statement (see [`repeat`]) with inline parameters, in one round trip.
    ///
    /// `taker` is the ticket that may take a place by it. It is in flight from when the statement
    /// is sent until it is answered, even if the caller has given up by then. A caller's waker that
    /// panics harms no other caller.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statement is carried out or not, but before any statement sent
    /// later over the same connection.
    pub(super) async fn call(&self, taker: Option<TicketId>, call: Call) -> Result<Answer, Fault> {
        let calls = repeat(self.address.timeout, |limit| self.ask(taker, call.clone(), limit));
        contain_wakers(calls).await
    }

    async fn ask(&self, taker: Option<TicketId>, call: Call, limit: Time) -> Result<Answer, Fault> {
        let (link, session) = self.session_for(&call).await?;
        let request = taker.map(|id| self.in_flight.begin(id));
        let (reply, answer) = oneshot::channel();
        session.call(Queued { call, limit, request, reply })?;
        let gone = |_| Err(Fault::Broken("its thread has ended".to_owned()));
        let answer = answer.await.unwrap_or_else(gone);
        if answer.as_ref().is_err_and(Fault::ended) {
            link.discard(&session);
        }
        answer
    }

    /// The connection for a call.
    async fn session_for(&self, call: &Call) -> Result<(&Arc<Link>, Arc<Session>), Fault> {
        if !self.shared.stalls() {
            self.spare.slot.lock().session = None; // no longer needed
        } else if call.renews()
            // Made for the next one if it is not there: it may take longer than this one has.
            && let Some(Ok(session)) = self.session_of(&self.spare).now_or_never()
        {
            return Ok((&self.spare, session));
        }
        Ok((&self.shared, self.session().await?))
    }

    /// The current connection, unless it is silent; or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Fault> {
        self.session_of(&self.shared).await
    }

    async fn session_of(&self, link: &Arc<Link>) -> Result<Arc<Session>, Fault> {
        if let Some(session) = link.usable() {
            return Ok(session);
        }
        let connect = || Arc::clone(link).connect(Arc::clone(&self.address));
        link.connecting.attempt(session::runtime()?, self.address.timeout, connect).await?;
        link.usable().ok_or_else(|| Fault::Unsent("it was closed at once".to_owned()))
    }
}

impl Link {
    /// The connection, unless it has ended or is silent for too long.
    fn usable(&self) -> Option<Arc<Session>> {
        let mut slot = self.slot.lock();
        let session = slot.session.as_ref()?;
        let new = session.since.until(clock::now()) < MINUTE;
        let patience = if new { slot.patience.max(MAX_SILENCE) } else { MAX_SILENCE };
        if session.silence() > patience {
            slot.patience = if new { LONGEST_SILENCE.min(patience * 2) } else { MAX_SILENCE };
            slot.session = None;
        } else if session.is_over() {
            slot.session = None;
        }
        slot.session.clone()
    }

    /// Whether calls on the present connection [stall](Session::stalls).
    fn stalls(&self) -> bool {
        self.slot.lock().session.as_ref().is_some_and(|session| session.stalls())
    }

    /// Closes a connection to new calls. Calls in flight may still get a reply.
    fn discard(&self, session: &Arc<Session>) {
        let mut slot = self.slot.lock();
        slot.session.take_if(|present| Arc::ptr_eq(present, session));
    }

    /// Makes a connection, unless there is one by then.
    async fn connect(self: Arc<Self>, address: Arc<Address>) -> Result<(), Fault> {
        if self.usable().is_some() {
            return Ok(());
        }
        let session = Session::open(&address, None).await?;
        match address.scheme {
            Scheme::Table => schema::check(&session, &address).await?,
            Scheme::Shedlock => shedlock::check(&session, &address).await?,
            Scheme::Advisory(_) | Scheme::Row => {} // it only looks
        }
        self.slot.lock().session = Some(Arc::new(session));
        crate::metrics::connected("postgres");
        Ok(())
    }
}
