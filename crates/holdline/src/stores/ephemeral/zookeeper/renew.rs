//! Keeping a place that is there: polling and renewing.
//!
//! Most of this is answered without asking the servers. That a lock is still held follows from two
//! things that are known here anyway: the session lasts (its heartbeats), and nobody has deleted
//! the node (the watch over it).

use super::acquire::Request;
use super::client::Mode;
use super::errors::{self, ZkError};
use super::layout::{self, Member};
use super::shared::Shared;
use super::ticket_record::{Doubt, TicketRecord};
use crate::clock;
use crate::error::Result;
use crate::store::{Enter, Refusal, Standing, refuse};
use holdline_kernel::Time;
use std::sync::Arc;

impl Shared {
    pub(super) async fn keep(
        self: &Arc<Self>,
        record: &Arc<TicketRecord>,
        request: &Request<'_>,
        began: Time,
    ) -> Result<Standing> {
        let ticket = request.ticket;
        let doubtful = {
            let place = record.place();
            let moved = matches!(request.how, Enter::Keep(seq) if seq != place.token());
            if moved || place.gone || place.leaving || began >= place.due {
                return Ok(Standing::Lost);
            }
            if ticket.capacity != record.capacity {
                let refusal = Refusal::Capacity { line: record.capacity };
                return Err(refuse(request.line, ticket, refusal));
            }
            if ticket.weight > place.weight {
                return Err(refuse(request.line, ticket, Refusal::Weight));
            }
            place.doubtful
        };
        record.session.check(&self.address, ticket.lease)?;
        if doubtful && !self.find_own(record, request.limit()).await? {
            record.lose(&self.loss_hint.0);
            return Ok(Standing::Lost);
        }
        if !self.update(record, request).await? {
            record.lose(&self.loss_hint.0);
            return Ok(Standing::Lost);
        }
        let (admitted, unsure) = {
            let mut place = record.place();
            // Somebody wants to know, or nothing would have told us yet.
            let asks = place.lease != ticket.lease || place.guarded != place.child;
            place.lease = ticket.lease;
            (place.admitted, place.unsure || asks)
        };
        if admitted && unsure {
            self.check(record, request).await?;
        } else if !admitted {
            self.ask_again(record, request).await?;
        }
        self.standing(record, request, began, false).await
    }

    /// Makes sure that a held node is still there.
    async fn check(&self, record: &TicketRecord, request: &Request<'_>) -> Result<()> {
        let session = &record.session;
        let Some(path) = record.own() else { return Ok(()) };
        let asked = self.ask(session, request.limit(), || session.client.check_stat(&path)).await;
        match asked.map_err(|error| self.error(error))? {
            Some(stat) if stat.ephemeral_owner == session.id => record.place().unsure = false,
            _ => record.lose(&self.loss_hint.0),
        }
        Ok(())
    }

    /// Asks how a waiting ticket stands. As long as those who keep it out are there, nobody looks
    /// through the line.
    async fn ask_again(
        self: &Arc<Self>,
        record: &Arc<TicketRecord>,
        request: &Request<'_>,
    ) -> Result<()> {
        let blockers: Vec<Member> = {
            let place = record.place();
            if place.unsure { Vec::new() } else { place.blockers.clone() }
        };
        if blockers.is_empty() || blockers.len() > MOST {
            return self.look_ahead(request, record).await;
        }
        let session = &record.session;
        let paths: Vec<_> = blockers.iter().map(|member| record.path(&member.child)).collect();
        let own = record.own().unwrap_or_default();
        let ask = || {
            let stats =
                [&own].into_iter().chain(&paths).map(|path| session.client.check_stat(path));
            futures_util::future::try_join_all(stats.collect::<Vec<_>>())
        };
        let stats: Vec<_> =
            self.ask(session, request.limit(), ask).await.map_err(|error| self.error(error))?;
        if stats.iter().all(Option::is_some) {
            if record.place().wants_proof(clock::now()) {
                let proofs = paths.iter().map(|path| self.prove(session, request.limit(), path));
                // Who is not there is removed, and that is told. No proof now is no reason to go.
                futures_util::future::join_all(proofs.collect::<Vec<_>>()).await;
            }
            return Ok(());
        }
        self.look_ahead(request, record).await
    }

    /// Writes what has changed about a place. False if it is not there any more.
    pub(super) async fn update(
        self: &Arc<Self>,
        record: &Arc<TicketRecord>,
        request: &Request<'_>,
    ) -> Result<bool> {
        let ticket = request.ticket;
        let (weight, same_note, create) = {
            let place = record.place();
            (place.weight, *place.note == **request.note, place.create)
        };
        if weight == ticket.weight && same_note {
            return Ok(true);
        }
        let session = &record.session;
        let Some(path) = record.own() else { return Ok(false) };
        let token = (weight != ticket.weight || record.place().moved).then_some(create);
        let data = layout::data(ticket, token, request.note);
        if weight != ticket.weight {
            return self.downgrade(record, request, &path, &data).await;
        }
        let set = || session.client.set_data(&path, &data);
        match self.ask(session, request.limit(), set).await {
            Ok(()) => {
                record.place().note = Arc::clone(request.note);
                Ok(true)
            }
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Takes less of the line. The weight is in the node's name, so the place moves to another node
    /// with the same number, as when Curator's writers become readers.
    async fn downgrade(
        &self,
        record: &TicketRecord,
        request: &Request<'_>,
        old: &str,
        data: &[u8],
    ) -> Result<bool> {
        let stem = record.stem(self.address.dialect, request.ticket);
        let number = old.rfind(|c: char| !c.is_ascii_digit()).map_or("", |at| &old[at + 1..]);
        let new = format!("{stem}{number}");
        let Some(member) = new.rsplit('/').next().and_then(Member::read) else { return Ok(false) };
        let create = record.place().create;
        let client = &record.session.client;
        let move_over = client.replace(&new, data, Mode::Ephemeral, self.acl(), old);
        record.place().moving = true;
        let doubt = Doubt::new(record);
        let limit = request.limit();
        let moved = match tokio::time::timeout(limit, move_over).await {
            Ok(moved) => moved,
            Err(_) => Err(ZkError::Timeout),
        };
        record.place().moving = false;
        match moved {
            Ok(Ok(())) => {
                record.born(&member, create);
                let mut place = record.place();
                place.weight = request.ticket.weight;
                place.note = Arc::clone(request.note);
                place.moved = true;
                place.unsure = true;
                drop(place);
                doubt.settle();
                Ok(true)
            }
            Ok(Err(ZkError::NoNode)) => {
                doubt.settle();
                Ok(false)
            }
            Ok(Err(error)) | Err(error) => {
                if !errors::is_cut(&error) && error != ZkError::Timeout {
                    doubt.settle();
                }
                self.failed(&record.session, &error);
                Err(self.error(error))
            }
        }
    }
}

/// So many nodes are asked about one by one.
const MOST: usize = 16;
