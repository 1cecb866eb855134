//! Entering and keeping a place.

use super::ahead::{self, Sight};
use super::fault;
use super::house::House;
use super::line;
use super::proto::{self, Op, Put, Txn, TxnAnswer};
use super::record::{Doubt, Record};
use super::session::{Session, seconds_for};
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

    pub(super) fn refuse(&self, refusal: Refusal) -> crate::Error {
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
            _ if self.has_lapsed(ticket.id) => Ok(Standing::Lost),
            (_, Enter::Try | Enter::Queue) => self.join(request, began).await,
        }
    }

    /// Takes a place, as far as `how` allows.
    async fn join(self: &Arc<Self>, request: &Request<'_>, began: Time) -> Result<Standing> {
        let mut tries = 0;
        loop {
            tries += 1;
            let record = self.record(request, began).await?;
            let entered = match request.how {
                Enter::Try => self.try_now(request, &record).await,
                Enter::Queue | Enter::Keep(_) => self.queue(request, &record).await,
            };
            match entered {
                Ok(Entered::There) => return self.standing(&record, request, began, true).await,
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
                    self.find_out().await;
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
                // Its first try may be long ago: what it writes now must not have lapsed already.
                let due = began.after(ticket.patience.max(ticket.lease));
                record.place().due = due;
                return Ok(record);
            }
            self.forget(&record); // what it may have written is gone with the lease
        }
        let prefix = line::prefix(&self.wire.address.prefix, request.line);
        let session = self.session(ticket.lease, &prefix, request.limit()).await?;
        session.refresh(until);
        let due = began.after(ticket.patience.max(ticket.lease));
        let record = Record::new(request.line, prefix, ticket, request.note, session, due);
        let record = Arc::new(record);
        self.remember(&record);
        Ok(record)
    }

    /// Forgets a ticket for which nothing was written, unless that is in doubt.
    pub(super) fn drop_unwritten(&self, record: &Record) {
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

    /// The key is written, and who is ahead of it is told. One round trip.
    ///
    /// Whoever has to wait does so on a short lease (see [`waiting_lease`]). If the lock's own is
    /// long, the key goes to the one if nobody is there, and to the other if somebody is.
    async fn queue(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<Record>,
    ) -> Result<Entered> {
        let (key, put) = put(request, record);
        let own = Op::Range(line::one(&key));
        let asked = ahead::ranges(record, request.ticket.weight, 0);
        let looks = asked.iter().map(|range| Op::Range(range.clone()).into());
        let waiting = self.waiting_session(request, record).await?;
        let offer = waiting.is_none().then_some((&put, asked.as_slice()));
        if let Some(answer) = self.along(request, record, offer).await {
            let revision = revision(&answer);
            record.place().create = revision;
            let sight = Sight::new(record, revision, &asked, &ahead::found(answer));
            return self.take(request, record, sight).await;
        }
        let txn = match &waiting {
            None => Txn {
                compare: vec![line::absent(&key, Vec::new())],
                success: looks.chain([put]).collect(),
                failure: vec![own.into()],
            },
            Some(session) => Txn {
                compare: vec![line::absent(&record.prefix, line::end(&record.prefix))],
                success: vec![put.clone()],
                failure: [own.into()]
                    .into_iter()
                    .chain(looks)
                    .chain([moved(put, session)])
                    .collect(),
            },
        };
        let answer = self.write(request, record, txn).await?;
        let (revision, succeeded) = (revision(&answer), answer.succeeded);
        let mut found = ahead::found(answer);
        let looked = match waiting {
            None => succeeded.then_some(found.as_slice()),
            Some(_) if succeeded => Some(&[][..]),
            Some(session) => {
                record.place().session = session;
                found[0].kvs.is_empty().then(|| &found[1..])
            }
        };
        if let Some(looked) = looked {
            record.place().create = revision;
            let sight = Sight::new(record, revision, &asked, looked);
            return self.take(request, record, sight).await;
        }
        // An earlier try of ours did it. Who is ahead is to be asked.
        let own = found.swap_remove(0).kvs.pop();
        record.place().create = own.map_or(0, |kv| kv.create_revision);
        self.look_ahead(request, record).await
    }

    /// The session to wait on, if that is not the ticket's own.
    async fn waiting_session(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Record,
    ) -> Result<Option<Arc<Session>>> {
        let lease = waiting_lease(request.ticket);
        if record.place().session.seconds <= seconds_for(lease) {
            return Ok(None);
        }
        self.session(lease, &record.prefix, request.limit()).await.map(Some)
    }

    /// At once or not at all. Writes nothing unless it is admitted: if nobody is there, in one
    /// round trip; if there is room beside others, in a second, unless somebody comes in between.
    async fn try_now(
        self: &Arc<Self>,
        request: &Request<'_>,
        record: &Arc<Record>,
    ) -> Result<Entered> {
        let (key, put) = put(request, record);
        let asked = ahead::ranges(record, request.ticket.weight, 0);
        let mut failure = vec![Op::Range(line::one(&key)).into()];
        failure.extend(asked.iter().map(|range| Op::Range(range.clone()).into()));
        let mut compare = line::absent(&record.prefix, line::end(&record.prefix));
        for _ in 0..TRIES {
            let txn = Txn {
                compare: vec![compare, line::absent(&key, Vec::new())],
                success: vec![put.clone()],
                failure: failure.clone(),
            };
            let answer = self.write(request, record, txn).await?;
            let (revision, written) = (revision(&answer), answer.succeeded);
            let found = ahead::found(answer);
            if written {
                let mut place = record.place();
                place.create = revision;
                place.see(revision, HashMap::new(), true);
                return Ok(Entered::There);
            }
            if let Some(own) = found.first().and_then(|range| range.kvs.first()) {
                record.place().create = own.create_revision;
                return self.look_ahead(request, record).await;
            }
            let sight = Sight::new(record, revision, &asked, found.get(1..).unwrap_or_default());
            if !self.has_room(request, record, sight).await? {
                return Ok(Entered::Not);
            }
            compare = line::unchanged_since(&record.prefix, revision);
        }
        Ok(Entered::Again)
    }

    /// What the record says, once the lease is sure to last.
    pub(super) async fn standing(
        self: &Arc<Self>,
        record: &Arc<Record>,
        request: &Request<'_>,
        began: Time,
        new: bool,
    ) -> Result<Standing> {
        let ticket = request.ticket;
        let Some((seq, admitted)) = record.stand(ticket, began, new) else {
            return Ok(Standing::Lost);
        };
        let seq = token(seq);
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

pub(super) fn revision(answer: &TxnAnswer) -> i64 {
    answer.header.unwrap_or_default().revision
}

/// The ticket's key, and the request that writes it.
fn put(request: &Request<'_>, record: &Record) -> (Vec<u8>, proto::RequestOp) {
    let place = record.place();
    let put = Put {
        key: place.key.clone(),
        value: line::value(request.ticket, request.note, record.leads),
        lease: place.session.lease,
    };
    (put.key.clone(), Op::Put(put).into())
}

/// The same request on another lease.
fn moved(put: proto::RequestOp, session: &Session) -> proto::RequestOp {
    match put.op {
        Some(Op::Put(put)) => Op::Put(Put { lease: session.lease, ..put }).into(),
        op => proto::RequestOp { op },
    }
}

/// A waiter that dies delays those behind it by no more than this, a tenth, and a second.
const WAITERS: Duration = Duration::from_secs(10);

/// The lease that a ticket waits on: not a long one, so that others need not wait long if it dies.
pub(super) fn waiting_lease(ticket: &Ticket) -> Duration {
    ticket.lease.min(ticket.patience.max(WAITERS))
}
