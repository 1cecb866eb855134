//! Keeping an existing place: polling and renewing.
//!
//! Most of this is answered without asking the server. That a lock is still held follows from two
//! facts that are known here anyway: the lease is alive (the session's heartbeats), and the key has
//! not been deleted (its watch).

use super::acquire::{Attempt, TRIES, waiting_lease};
use super::layout;
use super::predecessors;
use super::session::Session;
use super::shared::Shared;
use super::ticket_record::{KeyEntry, Place, Record};
use super::writes::Move;
use crate::clock;
use crate::error::Result;
use crate::store::Ticket;
use crate::stores::ephemeral::backend::{Renew, Request};
use crate::stores::ephemeral::view::Watched;
use holdline_etcd_client::{
    Cluster, Lease, is_lease_gone,
    proto::{Op, Put, Txn},
};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

impl Renew<KeyEntry> for Shared {
    /// Writes the changes to a place, and moves it to the right lease. False if it no longer
    /// exists.
    async fn update(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<bool> {
        let ticket = request.ticket;
        for _ in 0..TRIES {
            record.check_weight(ticket)?;
            let (lease, old) = {
                let place = record.place();
                let lease = fitting(&place, ticket, &self.cluster);
                let same = place.weight == ticket.weight && place.has_note(request.note);
                let entry = &place.entry;
                if lease.is_none() && same && entry.noted && entry.moves.is_empty() {
                    return Ok(true);
                }
                (lease, Arc::clone(&entry.session))
            };
            let session = match lease {
                Some(lease) => self.session(lease, &record.base.prefix, request.limit).await?,
                None => old,
            };
            match self.write_again(record, request, &session).await {
                Ok(Written::Yes) => return Ok(true),
                Ok(Written::Again) => {}
                Ok(Written::Gone) => return Ok(false),
                Err(error) if is_lease_gone(&error) => {
                    self.find_out().await;
                    if lease.is_none() {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.elections())
    }

    fn is_watched(record: &Record) -> bool {
        record.place().entry.view.watched != Watched::Nothing
    }

    async fn is_there(&self, record: &Record, limit: Duration) -> Result<bool> {
        let (key, create) = record.key();
        let (_, own) = self.range(&layout::one(&key), limit).await?;
        Ok(own.kvs.first().is_some_and(|kv| kv.create_revision == create))
    }

    /// Asks for a waiting ticket's standing: together with others, or else alone.
    async fn ask_again(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<()> {
        if self.is_unchanged(record, request).await {
            return Ok(());
        }
        self.ask_alone(record, request).await
    }

    async fn confirm(
        self: &Arc<Self>,
        record: &Record,
        request: &Request<'_>,
        until: Time,
    ) -> Result<bool> {
        for _ in 0..TRIES {
            let session = Arc::clone(&record.place().entry.session);
            let good = session.lease.good_for(until).await;
            // The heartbeat may have revealed an election: then the place moves to a new lease.
            // Another request may have moved it meanwhile.
            let is_there = Arc::ptr_eq(&session, &record.place().entry.session);
            if is_there && !(good && session.is_outdated(&self.cluster)) {
                return Ok(good);
            }
            if !self.update(record, request).await? {
                return Ok(false);
            }
        }
        Err(self.elections())
    }

    fn doubt(&self, record: &Record) {
        record.place().entry.session.lease.doubt();
    }

    async fn answers(&self, record: &Record) {
        let session = Arc::clone(&record.place().entry.session);
        session.lease.answers().await;
    }
}

impl Shared {
    /// Writes the key of an existing place again, on this lease.
    ///
    /// Applies only to the key as it was last written, so that a request that is late undoes
    /// nothing.
    async fn write_again(
        &self,
        record: &Record,
        request: &Request<'_>,
        session: &Arc<Session>,
    ) -> Result<Written> {
        let (key, create) = record.key();
        let put = |key, value| Op::Put(Put { key, value, lease: session.lease.id() }).into();
        let leads = record.base.leads;
        let mut success =
            vec![put(key.clone(), layout::value(request.ticket, request.note, leads))];
        if leads {
            success.push(put(layout::note_key(&key), request.note.as_bytes().to_vec()));
        }
        let failure = vec![layout::look(layout::one(&key))];
        let sent = Move::new(record, session);
        let compare = vec![layout::written_at(&key, sent.last)];
        let mut found = self.txn(&Txn { compare, success, failure }, request.limit).await?;
        sent.answered();
        let mut place = record.place();
        if found.succeeded {
            // Unless another request has written it after this one.
            if found.written >= place.entry.written {
                place.is_written(session, found.written);
                place.weight = request.ticket.weight;
                place.note = Arc::clone(request.note);
                place.entry.noted = true;
            }
            return Ok(Written::Yes);
        }
        // By another request, or by an attempt whose answer was lost.
        let Some(own) = found.first().filter(|own| own.create_revision == create) else {
            return Ok(Written::Gone);
        };
        if own.mod_revision > place.entry.written {
            match self.sessions.find(own.lease) {
                Some(session) => place.is_written(&session, own.mod_revision),
                // Its lease has ended here, so the key must leave it.
                None => place.entry.written = own.mod_revision,
            }
        }
        Ok(Written::Again)
    }

    /// Asks for a waiting ticket's standing, unless the watch has told it already. While the keys
    /// that block it are unchanged, the line is not read.
    async fn ask_alone(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<()> {
        let (known, ahead, seen) = record.with(|place| {
            let (view, weight) = (&place.entry.view, place.weight);
            let known = view.has_room(weight, record.capacity) && !place.is_unsure();
            let (ahead, seen) = view.blockers(weight, record.capacity);
            (known, ahead, seen)
        });
        if known {
            return Ok(());
        }
        let attempt = Attempt::new(self, request, record);
        if ahead.is_empty() {
            return attempt.look_ahead().await.map(drop);
        }
        let (key, create) = record.key();
        let asked = predecessors::ranges(&record.base.prefix, request.ticket, create);
        let compare = ahead.iter().flat_map(|key| layout::is_as_at(key, seen)).collect();
        let success = vec![layout::look(layout::one(&key))];
        let txn = Txn { compare, success, failure: predecessors::looks(layout::one(&key), &asked) };
        let mut found = self.txn(&txn, request.limit).await?;
        if !found.succeeded {
            return attempt.compare(&asked, found).await.map(drop);
        }
        if found.first().is_some_and(|own| own.create_revision == create) {
            record.with(|place| {
                place.entry.view.unchanged_at(found.revision);
                place.answered(attempt.missed);
            });
        } else {
            record.lose(&self.table.loss);
        }
        Ok(())
    }
}

/// The outcome of writing a key again.
enum Written {
    Yes,
    /// The key was written by another request meanwhile.
    Again,
    /// The key no longer exists.
    Gone,
}

/// The lease length that a place should have, if it is on another lease now.
fn fitting(place: &Place, ticket: &Ticket, cluster: &Cluster) -> Option<Duration> {
    let outdated = place.entry.session.is_outdated(cluster);
    if place.was_held() {
        // Another request may have been promised more.
        let promised = if outdated { clock::now().until(place.due) } else { Duration::ZERO };
        let moves = outdated || !place.entry.session.lease.suits(ticket.lease);
        return moves.then_some(ticket.lease.max(promised));
    }
    let lease = waiting_lease(ticket);
    (outdated || place.entry.session.lease.seconds() > Lease::seconds_for(lease)).then_some(lease)
}

#[cfg(test)]
mod tests {
    use super::super::address::Address;
    use super::*;
    use crate::names::Name;
    use crate::store::{Enter, Standing, Ticket};
    use crate::stores::ephemeral::engine;
    use crate::stores::ephemeral::ticket::tests::ticket;
    use futures_util::FutureExt;
    use holdline_testkit::{soon, until};

    /// Two requests change a place, and the answer to the first is read last.
    #[tokio::test]
    async fn an_answer_that_is_read_late_takes_nothing_back() {
        let Some(servers) = holdline_testkit::etcd::start(1) else { return };
        let url = servers.url();
        let rest = url.strip_prefix("etcd:").expect("its scheme");
        let address = Address::read("etcd", rest).expect("a good URL");
        let shared = Shared::new(address).expect("the system has room");
        let line = Name::new("x").expect("good");
        let ticket = Ticket { lease: Duration::from_secs(60), ..ticket(1, 1) };
        let enter = async |note: &str, how| {
            engine::enter(&shared, (&line, &ticket), &Arc::from(note), how).await
        };
        let first = || enter("", Enter::Queue);
        until("a place", async || soon("an answer", first()).await.is_ok()).await;
        let record = shared.table.find(ticket.id).expect("it is known");
        let (seq, before) = record.with(|place| (place.token(), place.entry.written));
        let mut late = Box::pin(enter("one", Enter::Keep(seq)));
        assert!((&mut late).now_or_never().is_none());
        let (key, _) = record.key();
        until("it is carried out", async || {
            let (_, own) = shared.range(&layout::one(&key), ticket.lease).await.expect("works");
            own.kvs.first().expect("its key").mod_revision > before
        })
        .await;
        let later = soon("an answer", enter("two", Enter::Keep(seq))).await.expect("works");
        assert_eq!(later, Standing::Admitted(seq));
        let written = record.place().entry.written;
        soon("an answer", late).await.expect("works");
        let place = record.place();
        assert!(place.entry.written >= written, "a write after the last one is void");
    }
}
