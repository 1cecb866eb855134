//! Entering and keeping a place.

use super::fault;
use super::house::House;
use super::line::{self, Member};
use super::proto::{self, KeyValue, Op, Put, Range, Txn, TxnAnswer};
use super::record::{Doubt, Record};
use super::wire::Answer;
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Enter, Refusal, Seq, Standing, Ticket, refuse};
use holdline_kernel::Time;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A waiter looks again after this time, even if nothing wakes it.
const AGAIN: Duration = Duration::from_secs(2);
/// So often a new session or a new look is tried before the caller is told to try again.
const TRIES: usize = 5;

/// One request to enter or keep.
pub(super) struct Request<'a> {
    pub(super) line: &'a Name,
    pub(super) ticket: &'a Ticket,
    pub(super) note: &'a Arc<str>,
    pub(super) how: Enter,
}

/// How a try to get a key written ended.
pub(super) enum Entered {
    /// The place is there: what is ahead of it is in the record.
    There,
    /// It would not have been admitted at once, so nothing was written.
    Not,
    /// Somebody else came in between.
    Again,
}

pub(super) fn token(create: i64) -> Seq {
    Seq(create.unsigned_abs())
}

impl Request<'_> {
    /// How long one member may take over one of its requests.
    pub(super) fn limit(&self) -> Duration {
        limit(self.ticket.lease)
    }

    fn refuse(&self, refusal: Refusal) -> crate::Error {
        refuse(self.line, self.ticket, refusal)
    }

    fn waiting(&self, seq: Option<Seq>) -> Standing {
        let again = (self.ticket.patience / 3).clamp(Duration::from_millis(2), AGAIN);
        Standing::Waiting { seq, again }
    }
}

/// How long one member may take: the others must get their turn while the lease lasts.
pub(super) fn limit(lease: Duration) -> Duration {
    (lease / 8).clamp(Duration::from_millis(200), Duration::from_secs(1))
}

impl House {
    pub(super) async fn enter(self: &Arc<Self>, request: &Request<'_>) -> Result<Standing> {
        let (began, ticket) = (clock::now(), request.ticket);
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Err(request.refuse(Refusal::Weight));
        }
        match (self.find(ticket.id), request.how) {
            (Some(record), _) if record.place().create != 0 => {
                self.keep(&record, request, began).await
            }
            (_, Enter::Keep(_)) => Ok(Standing::Lost),
            (_, Enter::Try | Enter::Queue) => self.join(request, began).await,
        }
    }

    /// Takes a place, as far as `how` allows.
    async fn join(self: &Arc<Self>, request: &Request<'_>, began: Time) -> Result<Standing> {
        let mut tries = 0;
        loop {
            tries += 1;
            let record = self.record(request, began).await?;
            let entered = match (request.ticket.capacity, request.how) {
                (1, Enter::Try) => self.try_one(request, &record).await,
                (1, _) => self.queue_one(request, &record).await,
                (_, Enter::Try) => self.try_many(request, &record).await,
                (_, _) => self.queue_many(request, &record).await,
            };
            match entered {
                Ok(Entered::There) => {
                    record.place().due = began; // from here on by its standing
                    return self.standing(&record, request, began).await;
                }
                Ok(Entered::Not) => {
                    self.drop_unwritten(&record);
                    return Ok(request.waiting(None));
                }
                Ok(Entered::Again) if tries < TRIES => {}
                Ok(Entered::Again) => {
                    self.drop_unwritten(&record);
                    return Ok(Standing::Waiting { seq: None, again: Duration::from_millis(5) });
                }
                Err(error) if fault::is_lease_gone(&error) && tries < TRIES => {
                    // Lost since it was last used: whatever was on it is gone.
                    let session = Arc::clone(&record.place().session);
                    if session.lose() {
                        self.evicted(session.lease);
                    }
                    self.forget(&record);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The record of a ticket that has no place yet.
    async fn record(self: &Arc<Self>, request: &Request<'_>, began: Time) -> Result<Arc<Record>> {
        let ticket = request.ticket;
        let until = began.after(ticket.lease);
        if let Some(record) = self.find(ticket.id) {
            let session = Arc::clone(&record.place().session);
            if !session.is_lost() {
                session.refresh(until);
                return Ok(record);
            }
            self.forget(&record); // what it may have written is gone with the lease
        }
        let session = self.session(ticket.lease, request.limit()).await?;
        session.refresh(until);
        let prefix = line::prefix(&self.wire.address.prefix, request.line);
        let due = began.after(ticket.patience.max(ticket.lease));
        let record = Record::new(request.line, prefix, ticket, request.note, session, due);
        let record = Arc::new(record);
        self.remember(&record);
        Ok(record)
    }

    /// Forgets a ticket for which nothing was written, unless that is in doubt.
    fn drop_unwritten(&self, record: &Record) {
        if !record.place().doubtful {
            self.forget(record);
        }
    }

    /// Sends a transaction that may write the ticket's key.
    async fn write(&self, request: &Request<'_>, record: &Record, txn: Txn) -> Result<TxnAnswer> {
        let doubt = Doubt::new(record);
        let answer = self.wire.call(proto::TXN, &txn, request.limit()).await;
        match answer {
            Ok(Answer { body, repeated }) => {
                doubt.settle(repeated);
                Ok(body)
            }
            Err(error) => {
                // Refused: then it was not done. Otherwise nobody knows.
                doubt.settle(error.retryable());
                Err(error)
            }
        }
    }

    /// A mutex: the key is written, and the two before it are told. One round trip.
    async fn queue_one(&self, request: &Request<'_>, record: &Record) -> Result<Entered> {
        let (key, put) = put(request, record);
        let before = line::newest(&record.prefix, 0, 2);
        let txn = Txn {
            compare: vec![line::absent(&key, Vec::new())],
            success: vec![Op::Range(before).into(), put],
            failure: vec![Op::Range(line::one(&key)).into()],
        };
        let answer = self.write(request, record, txn).await?;
        let (revision, written) = (revision(&answer), answer.succeeded);
        let found = answer.ranges().next().unwrap_or_default();
        if !written {
            // An earlier try of ours did it. Who is ahead is to be asked.
            let own = found.first().map_or(0, |kv| kv.create_revision);
            record.place().create = own;
            return self.look_ahead(request, record).await;
        }
        record.place().create = revision;
        self.take_nearest(request, record, revision, &found).await
    }

    /// A mutex, at once or not at all. Writes nothing unless it is admitted.
    async fn try_one(&self, request: &Request<'_>, record: &Record) -> Result<Entered> {
        let (key, put) = put(request, record);
        let first = Range { limit: 1, ..line::all(&record.prefix) };
        let txn = Txn {
            compare: vec![line::absent(&record.prefix, line::end(&record.prefix))],
            success: vec![put],
            failure: vec![Op::Range(line::one(&key)).into(), Op::Range(first).into()],
        };
        let answer = self.write(request, record, txn).await?;
        let (revision, written) = (revision(&answer), answer.succeeded);
        if written {
            let mut place = record.place();
            place.create = revision;
            place.see(revision, HashMap::new(), true);
            return Ok(Entered::There);
        }
        let mut ranges = answer.ranges();
        let (own, first) = (ranges.next().unwrap_or_default(), ranges.next().unwrap_or_default());
        if let Some(own) = own.first() {
            record.place().create = own.create_revision;
            return self.look_ahead(request, record).await;
        }
        match first.first().map(|kv| Member::read(&record.prefix, kv)) {
            Some(Some(member)) if member.capacity() != 1 => {
                self.drop_unwritten(record);
                Err(request.refuse(Refusal::Capacity { line: member.capacity() }))
            }
            Some(Some(_)) => Ok(Entered::Not),
            // Something lies there that is nobody's place.
            _ => self.try_many(request, record).await,
        }
    }

    /// Weights: the key is written, and the whole line is told. One round trip.
    async fn queue_many(&self, request: &Request<'_>, record: &Record) -> Result<Entered> {
        let (key, put) = put(request, record);
        let all = Op::Range(line::all(&record.prefix));
        let txn = Txn {
            compare: vec![line::absent(&key, Vec::new())],
            success: vec![put, all.clone().into()],
            failure: vec![all.into()],
        };
        let answer = self.write(request, record, txn).await?;
        let revision = revision(&answer);
        let found = answer.ranges().next().unwrap_or_default();
        self.take_line(request, record, revision, &found).await
    }

    /// Weights, at once or not at all: looks first, and writes only if nobody came since.
    async fn try_many(&self, request: &Request<'_>, record: &Record) -> Result<Entered> {
        let (key, put) = put(request, record);
        let all = Op::Range(line::all(&record.prefix));
        let mut compare = line::absent(&record.prefix, line::end(&record.prefix));
        for _ in 0..TRIES {
            let txn = Txn {
                compare: vec![compare, line::absent(&key, Vec::new())],
                success: vec![put.clone(), all.clone().into()],
                failure: vec![all.clone().into()],
            };
            let answer = self.write(request, record, txn).await?;
            let (revision, written) = (revision(&answer), answer.succeeded);
            let found = answer.ranges().next().unwrap_or_default();
            if written || found.iter().any(|kv| kv.key == key) {
                return self.take_line(request, record, revision, &found).await;
            }
            let members = line::members(&record.prefix, &found);
            if let Err(error) = check_capacity(request, record, &members) {
                self.drop_unwritten(record);
                return Err(error);
            }
            let held: u64 = members.iter().map(|m| weight_of(m, record)).sum();
            if held + u64::from(request.ticket.weight) > u64::from(record.capacity) {
                return Ok(Entered::Not);
            }
            compare = line::unchanged_since(&record.prefix, revision);
        }
        Ok(Entered::Again)
    }

    /// Takes in the nearest keys before a mutex's own.
    async fn take_nearest(
        &self,
        request: &Request<'_>,
        record: &Record,
        revision: i64,
        found: &[KeyValue],
    ) -> Result<Entered> {
        let members = line::members(&record.prefix, found);
        if members.len() < found.len() {
            // Something is in between that is nobody's place: only the whole line tells.
            return self.look_ahead(request, record).await;
        }
        if let Err(error) = check_capacity(request, record, &members) {
            self.take_back(request, record).await?;
            return Err(error);
        }
        let nearest = members.first().map(|member| (member.key.clone(), record.capacity));
        record.place().see(revision, nearest.into_iter().collect(), members.len() < 2);
        Ok(Entered::There)
    }

    /// Takes in the whole line, with the own key in it.
    async fn take_line(
        &self,
        request: &Request<'_>,
        record: &Record,
        revision: i64,
        found: &[KeyValue],
    ) -> Result<Entered> {
        let mut members = line::members(&record.prefix, found);
        let key = record.place().key.clone();
        let Some(own) = members.iter().position(|member| member.key == key) else {
            record.lose(&self.alarm.0);
            return Ok(Entered::There);
        };
        record.place().create = members[own].create;
        members.truncate(own);
        if let Err(error) = check_capacity(request, record, &members) {
            self.take_back(request, record).await?;
            return Err(error);
        }
        let mut ahead: HashMap<_, _> = members
            .iter()
            .map(|member| (member.key.clone(), member.weight(record.capacity)))
            .collect();
        let mut all = true;
        if record.capacity == 1
            && let Some(nearest) = members.last()
        {
            all = members.len() == 1;
            ahead.retain(|key, _| *key == nearest.key);
        }
        record.place().see(revision, ahead, all);
        Ok(Entered::There)
    }

    /// Asks who is ahead of a key that is there.
    pub(super) async fn look_ahead(
        &self,
        request: &Request<'_>,
        record: &Record,
    ) -> Result<Entered> {
        let all = line::all(&record.prefix);
        let answer =
            self.wire.call::<_, proto::RangeAnswer>(proto::RANGE, &all, request.limit()).await?;
        let revision = answer.body.header.unwrap_or_default().revision;
        self.take_line(request, record, revision, &answer.body.kvs).await
    }

    /// Deletes a key that should not have been written.
    async fn take_back(&self, request: &Request<'_>, record: &Record) -> Result<()> {
        let delete = line::delete(&record.key().0);
        record.place().leaving = true;
        let answer: Result<Answer<proto::DeleteAnswer>> =
            self.wire.call(proto::DELETE, &delete, request.limit()).await;
        match answer {
            Ok(_) => self.forget(record),
            Err(_) => record.place().leaving = false, // it lapses
        }
        answer.map(drop)
    }

    /// What the record says, once the lease is sure to last.
    pub(super) async fn standing(
        self: &Arc<Self>,
        record: &Arc<Record>,
        request: &Request<'_>,
        began: Time,
    ) -> Result<Standing> {
        let ticket = request.ticket;
        let (seq, admitted) = {
            let mut place = record.place();
            if place.gone {
                return Ok(Standing::Lost);
            }
            if !place.admitted && place.fits(record.capacity) && (place.all || record.capacity > 1)
            {
                place.admit();
            }
            let time = if place.admitted { ticket.lease } else { ticket.patience };
            place.due = place.due.max(began.after(time));
            (token(place.create), place.admitted)
        };
        if !self.update(record, request).await? {
            record.lose(&self.alarm.0);
            return Ok(Standing::Lost);
        }
        if !admitted {
            return Ok(request.waiting(Some(seq)));
        }
        let session = Arc::clone(&record.place().session);
        if !session.good_for(began.after(ticket.lease)).await || record.place().gone {
            return Ok(Standing::Lost);
        }
        Ok(Standing::Admitted(seq))
    }
}

/// All users of a name must agree on its capacity.
fn check_capacity(request: &Request<'_>, record: &Record, others: &[Member]) -> Result<()> {
    let known = others.iter().filter(|member| member.weights.is_some());
    match known.map(Member::capacity).find(|capacity| *capacity != record.capacity) {
        None => Ok(()),
        Some(line) => Err(request.refuse(Refusal::Capacity { line })),
    }
}

pub(super) fn revision(answer: &TxnAnswer) -> i64 {
    answer.header.unwrap_or_default().revision
}

fn weight_of(member: &Member, record: &Record) -> u64 {
    u64::from(member.weight(record.capacity))
}

/// The ticket's key, and the request that writes it.
fn put(request: &Request<'_>, record: &Record) -> (Vec<u8>, proto::RequestOp) {
    let place = record.place();
    let put = Put {
        key: place.key.clone(),
        value: line::value(request.ticket, request.note),
        lease: place.session.lease,
    };
    (put.key.clone(), Op::Put(put).into())
}
