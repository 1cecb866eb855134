//! Keeping an existing place: polling and renewing.
//!
//! Most of this is answered without asking the servers. That a lock is still held follows from two
//! facts that are known here anyway: the session is alive (its heartbeats), and the node has not
//! been deleted (its watch).

use super::acquire::Attempt;
use super::errors::{self, ZkError};
use super::layout::{self, Member};
use super::shared::Shared;
use super::ticket_record::{Doubt, NodeEntry, Record, TicketRecord};
use crate::clock;
use crate::error::Result;
use crate::stores::ephemeral::backend::{Renew, Request};
use holdline_kernel::Time;
use holdline_zookeeper_client::Mode;
use std::sync::Arc;
use std::time::Duration;

impl Renew<NodeEntry> for Shared {
    /// Finds the node if it is in doubt, and writes the changes.
    async fn update(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<bool> {
        let ticket = request.ticket;
        self.check_lease(&record.base.session, ticket.lease)?;
        let doubtful = record.place().doubtful;
        if doubtful && !self.find_own(record, request.limit).await? {
            return Ok(false);
        }
        let (weight, same_note, create) = {
            let place = record.place();
            (place.weight, place.has_note(request.note), place.create)
        };
        if weight == ticket.weight && same_note {
            return Ok(true);
        }
        let session = &record.base.session;
        let Some(path) = record.own() else { return Ok(false) };
        let token = (weight != ticket.weight || record.place().entry.moved).then_some(create);
        let data = layout::data(ticket, token, request.note);
        if weight != ticket.weight {
            return self.downgrade(record, request, &path, &data).await;
        }
        let set = || session.client.set_data(&path, &data);
        match self.ask(session, request.limit, set).await {
            Ok(()) => {
                record.place().note = Arc::clone(request.note);
                Ok(true)
            }
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    fn is_watched(record: &Record) -> bool {
        record.place().entry.guarded
    }

    async fn is_there(&self, record: &Record, limit: Duration) -> Result<bool> {
        let session = &record.base.session;
        let Some(path) = record.own() else { return Ok(true) };
        let asked = self.ask(session, limit, || session.client.check_stat(&path)).await;
        let stat = asked.map_err(|error| self.error(error))?;
        Ok(stat.is_some_and(|stat| stat.ephemeral_owner == session.id))
    }

    /// Asks for a waiting ticket's standing. While the nodes that block it exist, the line is not
    /// listed.
    async fn ask_again(self: &Arc<Self>, record: &Record, request: &Request<'_>) -> Result<()> {
        let blockers: Vec<Member> = {
            let place = record.place();
            if place.is_unsure() { Vec::new() } else { place.entry.blockers.clone() }
        };
        if blockers.is_empty() || blockers.len() > MOST {
            return Attempt::new(self, request, record).look_ahead().await;
        }
        let session = &record.base.session;
        let paths: Vec<_> = blockers.iter().map(|member| record.path(&member.child)).collect();
        let own = record.own().unwrap_or_default();
        let ask = || {
            let stats =
                [&own].into_iter().chain(&paths).map(|path| session.client.check_stat(path));
            futures_util::future::try_join_all(stats.collect::<Vec<_>>())
        };
        let stats: Vec<_> =
            self.ask(session, request.limit, ask).await.map_err(|error| self.error(error))?;
        if stats.iter().all(Option::is_some) {
            if record.place().wants_proof(clock::now()) {
                let proofs = paths.iter().map(|path| self.prove(session, request.limit, path));
                // A node that does not exist is removed, which its watch reports. A missing proof
                // is no reason to fail.
                futures_util::future::join_all(proofs.collect::<Vec<_>>()).await;
            }
            return Ok(());
        }
        Attempt::new(self, request, record).look_ahead().await
    }

    async fn confirm(
        self: &Arc<Self>,
        record: &Record,
        _request: &Request<'_>,
        until: Time,
    ) -> Result<bool> {
        Ok(record.base.session.good_for(until).await)
    }

    fn doubt(&self, record: &Record) {
        record.base.session.doubt();
    }

    async fn answers(&self, record: &Record) {
        record.base.session.answers().await;
    }
}

impl Shared {
    /// Lowers the weight. The weight is in the node's name, so the place moves to another node with
    /// the same number, as when Curator's writers become readers.
    async fn downgrade(
        self: &Arc<Self>,
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
        let doubt = Doubt::new(record);
        record.place().entry.moving = true;
        let client = &record.base.session.client;
        let move_over = client.replace(&new, data, Mode::Ephemeral, self.acl(), old);
        let moved = clock::timeout(request.limit, move_over).await;
        match moved.unwrap_or(Err(ZkError::Timeout)) {
            Ok(Ok(())) => {
                record.born(&member, create);
                record.with(|place| {
                    place.note = Arc::clone(request.note);
                    place.miss();
                });
                doubt.settle();
                self.table.look_soon(record.id);
                Ok(true)
            }
            Ok(Err(ZkError::NodeExists)) => {
                // Another request of this ticket has moved it just now.
                drop(doubt);
                self.find_own(record, request.limit).await
            }
            Ok(Err(ZkError::NoNode)) => {
                doubt.settle();
                Ok(false)
            }
            Ok(Err(error)) | Err(error) => {
                if !errors::is_cut(&error) && error != ZkError::Timeout {
                    doubt.settle();
                }
                self.failed(&record.base.session, &error);
                Err(self.error(error))
            }
        }
    }
}

/// The most nodes that are checked one by one.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::shared::tests::opened;
    use super::*;
    use crate::names::Name;
    use crate::store::{Enter, Standing, Ticket};
    use crate::stores::ephemeral::engine;
    use crate::stores::ephemeral::ticket::State;
    use crate::stores::ephemeral::ticket::tests::ticket;
    use futures_util::FutureExt;
    use holdline_testkit::{soon, until};

    /// A look that began before a move of the place, and is read while that is under way, shows the
    /// old node. The deletion of the old node is no loss, and the new one is no second node of the
    /// ticket. The move stays in doubt if nobody waits for it. After it, a deletion is a loss.
    #[tokio::test]
    async fn a_place_that_moves_is_not_gone() {
        let Some(servers) = holdline_testkit::zookeeper::start(1) else { return };
        let shared = opened(&format!("{}?session=60", servers.url()));
        let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
        let all = Ticket { lease: Duration::from_secs(40), ..ticket(3, 3) };
        let enter = async |weight, how| {
            let ticket = Ticket { weight, ..all };
            engine::enter(&shared, (&line, &ticket), &note, how).await
        };
        until("a place", async || soon("an answer", enter(3, Enter::Queue)).await.is_ok()).await;
        let record = shared.table.find(all.id).expect("it is known");
        until("it is watched", async || record.place().entry.guarded).await;
        let (seq, create) = record.with(|place| (place.token(), place.create));
        let node = || Member::read(&record.place().entry.child).expect("a node");
        let (old, missed) = (node(), record.place().missed());
        let mut moving = Box::pin(enter(2, Enter::Keep(seq)));
        assert!((&mut moving).now_or_never().is_none());
        record.found(&old, create);
        assert!(!record.place().disowns("the new one"));
        until("the old one's deletion is told", async || {
            record.place().missed() > missed || record.place().is_gone()
        })
        .await;
        assert!(!record.place().is_gone());
        let moved = soon("an answer", moving).await.expect("works");
        assert_eq!(moved, Standing::Admitted(seq));

        let mut given_up = Box::pin(enter(1, Enter::Keep(seq)));
        assert!((&mut given_up).now_or_never().is_none());
        record.found(&node(), create);
        drop(given_up);
        assert!(record.place().doubtful);
        let found = soon("an answer", enter(1, Enter::Keep(seq))).await.expect("works");
        assert_eq!((found, record.place().weight), (Standing::Admitted(seq), 1));

        let own = record.own().expect("a node");
        soon("a deletion", record.base.session.client.delete(&own)).await.expect("works");
        until("the loss", async || record.place().is_gone()).await;
        assert_ne!(
            record.place().state,
            State::Lapsed,
            "it was told of, before its lease was over"
        );
    }
}
