//! Entering and keeping a place.

use super::answer::{self, Found, garbled};
use super::beside;
use super::flight::Flight;
use super::layout;
use super::predecessors::{self, Predecessors};
use super::session::Session;
use super::shared::Shared;
use super::ticket_record::{KeyEntry, TicketRecord};
use crate::error::Result;
use crate::store::{Enter, Standing, Ticket};
use crate::stores::ephemeral::backend::{Acquire, Joined, Request};
use crate::stores::ephemeral::engine;
use holdline_etcd_client::{
    Lease, is_lease_gone,
    proto::{self, Op, Put, Range, RequestOp, Txn},
};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

/// The number of times that a new session or a new look is tried before the caller is told.
pub(super) const TRIES: usize = 5;

/// How a try to get a key written ended.
pub(super) enum Entered {
    /// The place is there: what is ahead of it is in the record.
    There,
    /// It would not have been admitted at once, so nothing was written.
    Not,
    /// Another entry was written in between.
    Again,
}

impl Acquire<KeyEntry> for Shared {
    async fn join(
        self: &Arc<Self>,
        request: &Request<'_>,
        began: Time,
    ) -> Result<Joined<KeyEntry>> {
        if self.table.lapsed.contains(request.ticket.id) {
            return Ok(Joined::Not(Standing::Lost));
        }
        let mut tries = 0;
        loop {
            tries += 1;
            if request.how == Enter::Try && !self.is_worth_a_lease(request).await? {
                return Ok(Joined::Not(request.waiting(None)));
            }
            let record = self.record(request, began).await?;
            let beside = self.sees_beside();
            let entered = match request.how {
                Enter::Try => self.try_now(request, &record).await,
                Enter::Queue | Enter::Keep(_) => self.queue(request, &record).await,
            };
            record.settle();
            match entered {
                Ok(Entered::There) => return Ok(Joined::There(record)),
                Ok(Entered::Not) => {
                    self.drop_unwritten(&record);
                    return Ok(Joined::Not(request.waiting(None)));
                }
                Ok(Entered::Again) if tries < TRIES => {}
                Ok(Entered::Again) => {
                    self.drop_unwritten(&record);
                    let again = Duration::from_millis(5);
                    return Ok(Joined::Not(Standing::Waiting { seq: None, again }));
                }
                Err(error) if is_lease_gone(&error) && tries < TRIES => {
                    // Lost since it was last used: whatever was on it is gone.
                    self.find_out().await;
                    self.table.forget(&record);
                }
                Err(error) if self.narrow_down(&error, beside) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Shared {
    /// The record of a ticket that has no place yet.
    async fn record(
        self: &Arc<Self>,
        request: &Request<'_>,
        began: Time,
    ) -> Result<Arc<TicketRecord>> {
        let ticket = request.ticket;
        let until = began.after(ticket.lease);
        // Its first try may be long ago: what it writes now must not have lapsed already.
        let due = began.after(ticket.wait_lease.max(ticket.lease));
        if let Some(record) = self.table.find(ticket.id) {
            let session = Arc::clone(&record.place().entry.session);
            if !session.lease.is_lost() {
                session.lease.refresh(until);
                record.place().due = due;
                if record.place().permit.is_none() {
                    let permit = Arc::clone(&self.table.entering).acquire_owned().await.ok();
                    record.place().permit = permit;
                }
                return Ok(record);
            }
            self.table.forget(&record); // what it may have written goes with the lease
        }
        // More requests than the server works off would only pile up there.
        let permit = Arc::clone(&self.table.entering).acquire_owned().await.ok();
        let prefix = layout::prefix(&self.address.prefix, request.line);
        let session = self.session(ticket.lease, &prefix, request.limit).await?;
        session.lease.refresh(until);
        let record = TicketRecord::of(request.line, prefix, ticket, request.note, session, due);
        record.place().permit = permit;
        let record = Arc::new(record);
        self.table.insert(&record);
        Ok(record)
    }

    /// Forgets a ticket for which nothing was written, unless that is in doubt.
    pub(super) fn drop_unwritten(&self, record: &TicketRecord) {
        if !record.place().doubtful {
            self.table.forget(record);
        }
    }

    /// Sends a transaction that may write the ticket's key; with the other lease, perhaps.
    pub(super) async fn write(
        &self,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
        other: Option<&Arc<Session>>,
        txn: Txn,
    ) -> Result<Found> {
        let flight = Flight::new(record, other);
        let answer = self.cluster.write(&txn, request.limit, flight).await?;
        answer::read(&self.address, &txn, answer)
    }

    /// Writes the key and reads the keys ahead of it, in one round trip.
    ///
    /// A waiting ticket is on a short lease (see [`waiting_lease`]). If the lock's own is longer,
    /// the key is put on that if the line is empty, and on the short one otherwise.
    async fn queue(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
    ) -> Result<Entered> {
        let (key, put) = put(request, record);
        let own: RequestOp = Op::Range(layout::one(&key)).into();
        let asked =
            predecessors::ranges(&record.base.prefix, record.capacity, request.ticket.weight, 0);
        let looks = || asked.iter().map(|range| RequestOp::from(Op::Range(range.clone())));
        let waiting = self.waiting_session(request, record).await?;
        let entry = Txn {
            compare: vec![layout::absent(&key, Vec::new())],
            success: looks().chain([put.clone()]).collect(),
            failure: vec![own.clone()],
        };
        let offer = waiting.is_none().then_some(&entry);
        if let Some(found) = self.along(request, record, offer).await {
            return self.entered(request, record, &asked, found).await;
        }
        let mut txn = match &waiting {
            None => entry,
            Some(session) => {
                let moved = moved(put.clone(), session);
                Txn {
                    compare: vec![layout::absent(
                        &record.base.prefix,
                        layout::end(&record.base.prefix),
                    )],
                    success: vec![put],
                    failure: [own].into_iter().chain(looks()).chain([moved]).collect(),
                }
            }
        };
        let beside = self.look_beside(record, &mut txn);
        let mut found = self.write(request, record, waiting.as_ref(), txn).await?;
        let other = (beside && !found.succeeded).then(|| found.pop());
        let succeeded = found.succeeded;
        let mut there = None;
        match waiting {
            None if succeeded => return self.entered(request, record, &asked, found).await,
            None => there = found.pop().kvs.pop(),
            Some(_) if succeeded => {
                found.ranges = vec![proto::RangeAnswer::default(); asked.len()];
                return self.entered(request, record, &asked, found).await;
            }
            Some(session) => {
                record.place().entry.session = session;
                if !found.ranges.is_empty() {
                    there = found.ranges.remove(0).kvs.pop();
                }
                if there.is_none() {
                    let entered = self.entered(request, record, &asked, found).await?;
                    return self.beside_nobody(request, record, other, entered).await;
                }
            }
        }
        // An earlier try did it, or the lock of another kind of client is there.
        record.place().born(there.map_or(0, |kv| kv.create_revision));
        if record.key().1 == 0 {
            return self.beside_nobody(request, record, other, Entered::Again).await;
        }
        let entered = self.look_ahead(request, record).await?;
        self.beside_nobody(request, record, other, entered).await
    }

    /// Takes in the answer to a write of the key: its revision, and the keys ahead of it.
    ///
    /// The key was not there, so the revision of the transaction is that of its creation.
    pub(super) async fn entered(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
        asked: &[Range],
        found: Found,
    ) -> Result<Entered> {
        if found.written != found.revision {
            return Err(garbled(&self.address, "a key was written at another revision"));
        }
        record.place().born(found.written);
        let (prefix, capacity) = (&record.base.prefix, record.capacity);
        let predecessors =
            Predecessors::new(prefix, capacity, found.revision, asked, &found.ranges);
        self.take(request, record, predecessors).await
    }

    /// Makes a request to enter do nothing if the lock of another kind of client is there, which
    /// then is the last thing that it finds. Returns whether it did.
    pub(super) fn look_beside(&self, record: &TicketRecord, txn: &mut Txn) -> bool {
        let sees = self.sees_beside();
        if sees {
            txn.compare.push(beside::no_other(&record.base.prefix));
            txn.failure.push(Op::Range(beside::other(&record.base.prefix)).into());
        }
        sees
    }

    /// The outcome of an entry, which is taken back if the lock of another kind of client was
    /// found.
    async fn beside_nobody(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<TicketRecord>,
        other: Option<proto::RangeAnswer>,
        entered: Entered,
    ) -> Result<Entered> {
        let Some(Err(error)) = other.map(|found| beside::refuse_other(request.line, &found)) else {
            return Ok(entered);
        };
        if record.key().1 == 0 {
            self.drop_unwritten(record);
        } else {
            engine::take_back(self, record, request.limit).await?;
        }
        Err(error)
    }

    /// The session to wait on, if that is not the ticket's own.
    async fn waiting_session(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &TicketRecord,
    ) -> Result<Option<Arc<Session>>> {
        let lease = waiting_lease(request.ticket);
        if record.place().entry.session.lease.seconds() <= Lease::seconds_for(lease) {
            return Ok(None);
        }
        self.session(lease, &record.base.prefix, request.limit).await.map(Some)
    }
}

/// The ticket's key, and the request that writes it.
pub(super) fn put(request: &Request<'_>, record: &TicketRecord) -> (Vec<u8>, proto::RequestOp) {
    let place = record.place();
    let put = Put {
        key: place.entry.key.clone(),
        value: layout::value(request.ticket, request.note, record.base.leads),
        lease: place.entry.session.lease.id(),
    };
    (put.key.clone(), Op::Put(put).into())
}

/// The same request on another lease.
fn moved(put: proto::RequestOp, session: &Session) -> proto::RequestOp {
    match put.op {
        Some(Op::Put(put)) => Op::Put(Put { lease: session.lease.id(), ..put }).into(),
        op => proto::RequestOp { op },
    }
}

/// A waiter that dies delays those behind it by no more than this, a tenth, and a second.
const WAITERS: Duration = Duration::from_secs(10);

/// The lease that a ticket waits on: not a long one, so that others need not wait long if it dies.
pub(super) fn waiting_lease(ticket: &Ticket) -> Duration {
    ticket.lease.min(ticket.wait_lease.max(WAITERS))
}
