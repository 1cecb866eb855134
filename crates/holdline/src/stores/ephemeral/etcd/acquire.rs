//! Entering: takes a place in the line; a try takes one only if admitted at once, and otherwise
//! writes nothing.

use super::answer::{self, Found, garbled};
use super::beside;
use super::layout::{self, Member};
use super::predecessors;
use super::session::Session;
use super::shared::{BACKGROUND, Shared};
use super::ticket_record::{KeyEntry, Record, TicketRecord};
use super::writes::Flight;
use crate::error::Result;
use crate::store::{Enter, Standing, Ticket};
use crate::stores::ephemeral::backend::{self, Acquire, Joined, Request};
use crate::stores::ephemeral::engine;
use crate::stores::ephemeral::ticket::State;
use holdline_etcd_client::{
    Lease, is_lease_gone,
    proto::{KeyValue, Op, Put, Range, RangeAnswer, RequestOp, Txn},
};
use std::sync::Arc;
use std::time::Duration;

/// How many attempts with a new session or a new look are made before the caller gets an error.
pub(super) const TRIES: usize = 5;

pub(super) type Attempt<'a> = backend::Attempt<'a, Shared>;

/// The outcome of an attempt to write a key.
pub(super) enum Entered {
    /// The key exists, and the record has what is ahead of it.
    There,
    /// It would not have been admitted at once, so nothing was written.
    Not,
    /// Another entry was written in between.
    Again,
    /// An earlier attempt wrote the key on a lease that has ended since, or the ticket was given up
    /// meanwhile.
    Gone,
}

impl Acquire<KeyEntry> for Shared {
    async fn join(self: &Arc<Self>, request: &Request<'_>) -> Result<Joined<KeyEntry>> {
        if self.table.lapsed.contains(request.ticket.id) {
            return Ok(Joined::Not(Standing::Lost));
        }
        // Other requests may change what is known of our rights meanwhile.
        let (mut tries, mut beside) = (0, self.sees_beside());
        loop {
            tries += 1;
            if request.how == Enter::Try && !self.is_worth_a_lease(request).await? {
                return Ok(Joined::Not(request.waiting(None)));
            }
            // Then the answer to an earlier request of it may have been missed.
            let known = self.table.find(request.ticket.id).is_some();
            let Some(record) = self.record(request).await? else {
                return Ok(Joined::Not(Standing::Lost));
            };
            let attempt = Attempt::new(self, request, &record);
            let entered = match request.how {
                Enter::Try => attempt.try_now(beside).await,
                Enter::Queue | Enter::Keep(_) => attempt.queue(beside).await,
            };
            record.settle();
            let (standing, may_exist) = match entered {
                Ok(Entered::There) => return Ok(Joined::There(record)),
                Ok(Entered::Not) => (request.waiting(None), false),
                Ok(Entered::Gone) => (Standing::Lost, true),
                Ok(Entered::Again) if tries < TRIES => continue,
                Ok(Entered::Again) => {
                    (Standing::Waiting { seq: None, again: Duration::from_millis(5) }, false)
                }
                Err(error) if is_lease_gone(&error) && tries < TRIES => {
                    // The session was lost since its last use, with everything on it.
                    self.find_out().await;
                    if self.drop_unwritten(&record, known) {
                        continue;
                    }
                    return Ok(Joined::Not(Standing::Lost));
                }
                Err(error) if self.narrow_down(&error, beside) => {
                    beside = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.drop_unwritten(&record, may_exist);
            return Ok(Joined::Not(standing));
        }
    }
}

impl Shared {
    /// The record of a ticket that has no place. `None` if an earlier request of this ticket is
    /// being undone.
    async fn record(self: &Arc<Self>, request: &Request<'_>) -> Result<Option<Record>> {
        let Request { ticket, began, .. } = *request;
        let until = began.after(ticket.lease);
        // Its first attempt may be long ago: a key written now must not have lapsed already.
        let due = began.after(ticket.wait_lease.max(ticket.lease));
        if let Some(record) = self.table.find(ticket.id) {
            let (session, state, sent) = record.with(|place| {
                (Arc::clone(&place.entry.session), place.state, place.entry.sent.is_some())
            });
            if matches!(state, State::Lapsed | State::Leaving { .. }) {
                return Ok(None);
            }
            if !session.lease.is_lost() {
                session.lease.refresh(until);
                record.place().due = due;
                if record.place().permit.is_none() {
                    let permit = Arc::clone(&self.table.entering).acquire_owned().await.ok();
                    record.place().permit = permit;
                }
                return Ok(Some(record));
            }
            if !self.drop_unwritten(&record, sent) {
                return Ok(None);
            }
        }
        // More requests than the server can handle would only queue up there.
        let permit = Arc::clone(&self.table.entering).acquire_owned().await.ok();
        let prefix = layout::prefix(&self.address.prefix, request.line);
        let session = self.session(ticket.lease, &prefix, request.limit).await?;
        session.lease.refresh(until);
        let record = TicketRecord::of(request.line, prefix, ticket, request.note, session, due);
        record.place().permit = permit;
        let record = Arc::new(record);
        self.table.insert(&record);
        Ok(Some(record))
    }

    /// Whether a try that needs a new lease may succeed: a failed try must leave nothing behind.
    async fn is_worth_a_lease(self: &Arc<Self>, request: &Request<'_>) -> Result<bool> {
        let ticket = request.ticket;
        let has_lease =
            || self.sessions.living(Lease::seconds_for(ticket.lease), &self.cluster).is_some();
        if self.table.find(ticket.id).is_some() || has_lease() {
            return Ok(true);
        }
        let prefix = layout::prefix(&self.address.prefix, request.line);
        let asked = predecessors::ranges(&prefix, ticket, 0);
        let success = asked.iter().cloned().map(layout::look).collect();
        let found = self.txn(&Txn { success, ..Txn::default() }, request.limit).await?;
        self.has_room(request, &prefix, &asked, &found).await
    }

    /// Forgets a ticket that has written nothing, and returns `true`. If its key may exist, or a
    /// request of it may yet write it, the ticket lapses instead: the key is removed in the
    /// background, and no other ticket gets it before that.
    pub(super) fn drop_unwritten(self: &Arc<Self>, record: &Record, may_exist: bool) -> bool {
        if !may_exist && record.place().is_told() {
            self.table.forget(record);
            return true;
        }
        record.place().state = State::Lapsed;
        self.table.lapsed.insert(record.id);
        let (store, record) = (Arc::downgrade(self), Arc::clone(record));
        BACKGROUND.spawn(async move {
            record.land().await;
            engine::sweep(store, record).await;
        });
        false
    }
}

impl Attempt<'_> {
    /// Sends a transaction that may write the ticket's key, perhaps with the other lease. `None` if
    /// the ticket was given up meanwhile.
    async fn write(&self, other: Option<&Arc<Session>>, txn: &Txn) -> Result<Option<Found>> {
        let before = self.record.place().entry.sent;
        let Some(flight) = Flight::new(self.record, other) else { return Ok(None) };
        let answer = self.store.cluster.write(txn, self.request.limit, flight).await;
        if answer.as_ref().is_err_and(|error| !error.retryable()) {
            self.record.with(|place| {
                if place.is_told() {
                    place.entry.sent = before; // refused, so there is nothing to remove
                }
            });
        }
        answer::read(&self.store.address, txn, answer?).map(Some)
    }

    /// The request that writes the ticket's key, on its lease or on the other one.
    fn put(&self, other: Option<&Session>) -> RequestOp {
        let (request, place) = (self.request, self.record.place());
        let key = place.entry.key.clone();
        let value = layout::value(request.ticket, request.note, self.record.base.leads);
        let lease = other.unwrap_or(&place.entry.session).lease.id();
        Op::Put(Put { key, value, lease }).into()
    }

    /// Writes the key and reads the keys ahead of it, in one round trip.
    ///
    /// A waiting ticket is on a short lease (see [`waiting_lease`]). If the lock's own lease is
    /// longer, the key is put on that if the line is empty, and on the short one otherwise.
    async fn queue(&self, beside: bool) -> Result<Entered> {
        let (record, prefix) = (self.record, &self.record.base.prefix);
        let (key, _) = record.key();
        let asked = predecessors::ranges(prefix, self.request.ticket, 0);
        let waiting = self.waiting_session().await?;
        let entry = Txn {
            compare: vec![layout::absent(&key, Vec::new())],
            success: asked.iter().cloned().map(layout::look).chain([self.put(None)]).collect(),
            failure: vec![layout::look(layout::with_value(&key))],
        };
        let offer = waiting.is_none().then_some(&entry);
        if let Some(found) = self.along(offer, beside).await {
            return self.entered(&asked, &found).await;
        }
        let mut txn = match &waiting {
            None => entry,
            Some(session) => {
                let mut failure = predecessors::looks(layout::with_value(&key), &asked);
                // A late attempt must not move the key that the next one wrote.
                let compare = vec![layout::absent(&key, Vec::new())];
                let put = Txn { compare, success: vec![self.put(Some(session))], ..Txn::default() };
                failure.push(Op::Txn(put).into());
                let compare = vec![layout::absent(prefix, layout::end(prefix))];
                Txn { compare, success: vec![self.put(None)], failure }
            }
        };
        if beside {
            self.look_beside(&mut txn);
        }
        let Some(mut found) = self.write(waiting.as_ref(), &txn).await? else {
            return Ok(Entered::Gone);
        };
        if found.succeeded {
            return self.entered(&asked, &found).await;
        }
        let other = beside.then(|| found.pop());
        let entered = match (found.first(), waiting) {
            (Some(own), _) => self.adopt(&own).await?,
            (None, Some(session)) => {
                record.place().entry.session = session;
                self.entered(&asked, &found).await?
            }
            // Another kind of client holds the lock.
            (None, None) => Entered::Again,
        };
        self.beside_nobody(other).await?;
        Ok(entered)
    }

    /// Enters at once or not at all, and writes nothing unless the ticket is admitted. One round
    /// trip if the line is empty; two if there is room beside others and no entry comes in between.
    async fn try_now(&self, beside: bool) -> Result<Entered> {
        let Attempt { store, request, record, .. } = *self;
        let ((key, _), prefix) = (record.key(), &record.base.prefix);
        let asked = predecessors::ranges(prefix, request.ticket, 0);
        let mut compare = layout::absent(prefix, layout::end(prefix));
        for _ in 0..TRIES {
            let mut txn = Txn {
                compare: vec![compare, layout::absent(&key, Vec::new())],
                success: vec![self.put(None)],
                failure: predecessors::looks(layout::with_value(&key), &asked),
            };
            if beside {
                self.look_beside(&mut txn);
            }
            let Some(mut found) = self.write(None, &txn).await? else {
                return Ok(Entered::Gone);
            };
            if found.succeeded {
                return self.entered(&asked, &found).await;
            }
            let other = beside.then(|| found.pop());
            if let Some(own) = found.first() {
                return self.adopt(&own).await;
            }
            self.beside_nobody(other).await?;
            if !store.has_room(request, prefix, &asked, &found).await? {
                return Ok(Entered::Not);
            }
            compare = layout::unchanged_since(prefix, found.revision);
        }
        Ok(Entered::Again)
    }

    /// Applies the answer to a write of the key: its revision, and the keys ahead of it. The key
    /// did not exist before, so the transaction's revision is its create revision.
    async fn entered(&self, asked: &[Range], found: &Found) -> Result<Entered> {
        if found.written != found.revision {
            let what = "a key was written at another revision";
            return Err(garbled(&self.store.address, what));
        }
        self.record.is_there(found.written, found.written);
        self.take(asked, found).await
    }

    /// Takes the key that an earlier attempt wrote, on whichever lease that was.
    ///
    /// The key may be that of an earlier ticket with this slot: one that was told that its request
    /// was refused, although it was carried out (say, because the refusal was altered on the way).
    /// Nobody holds that place. It is removed as this ticket's own, which is then lost.
    async fn adopt(&self, own: &KeyValue) -> Result<Entered> {
        let Attempt { store, record, .. } = *self;
        let is_ours = Member::read(&record.base.prefix, own).is_some_and(|it| it.id == record.id);
        let Some(session) = store.sessions.find(own.lease).filter(|_| is_ours) else {
            return Ok(Entered::Gone);
        };
        self.record.place().entry.session = session;
        self.record.is_there(own.create_revision, own.mod_revision);
        self.look_ahead().await
    }

    /// Makes a request to enter do nothing if another kind of client holds the lock; its key is
    /// then the last result.
    fn look_beside(&self, txn: &mut Txn) {
        let prefix = &self.record.base.prefix;
        txn.compare.push(beside::no_other(prefix));
        txn.failure.push(layout::look(beside::other(prefix)));
    }

    /// Removes the entry again if another kind of client's lock was found.
    async fn beside_nobody(&self, other: Option<RangeAnswer>) -> Result<()> {
        let refused = other.map(|found| beside::refuse_other(self.request.line, &found));
        let Some(Err(error)) = refused else { return Ok(()) };
        if self.record.key().1 == 0 {
            self.store.drop_unwritten(self.record, false);
        } else {
            self.take_back().await?;
        }
        Err(error)
    }

    /// The session to wait on, if it is not the ticket's own.
    async fn waiting_session(&self) -> Result<Option<Arc<Session>>> {
        let Attempt { store, request, record, .. } = *self;
        let lease = waiting_lease(request.ticket);
        if record.place().entry.session.lease.seconds() <= Lease::seconds_for(lease) {
            return Ok(None);
        }
        store.session(lease, &record.base.prefix, request.limit).await.map(Some)
    }
}

/// A crashed waiter delays those behind it by at most this, plus a tenth, plus a second.
const WAITERS: Duration = Duration::from_secs(10);

/// The lease that a ticket waits on: not a long one, so that a crashed waiter does not delay others
/// for long.
pub(super) fn waiting_lease(ticket: &Ticket) -> Duration {
    ticket.lease.min(ticket.wait_lease.max(WAITERS))
}
