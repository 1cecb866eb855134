//! The nodes ahead of a ticket, by the children of the line's node.

use super::acquire::Attempt;
use super::errors::{self, ZkError, if_there};
use super::layout::{self, Member, NodeData};
use super::shared::Shared;
use super::ticket_record::{Base, TicketRecord};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use holdline_zookeeper_client::{Mode, Session};
use std::sync::Arc;
use std::time::Duration;

impl Shared {
    /// Asks what may be asked again and again, until there is an answer or the time is up.
    pub(super) async fn ask<T, F>(
        &self,
        session: &Session,
        time: Duration,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, ZkError>
    where
        F: Future<Output = Result<T, ZkError>>,
    {
        let over = clock::now().after(time);
        loop {
            match clock::within(over, ask()).await {
                None => return Err(ZkError::Timeout),
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) if errors::is_cut(&error) && clock::now() < over => {
                    // What is asked now waits for the client's next connection.
                    clock::pause(Duration::from_millis(5)).await;
                }
                Some(Err(error)) => {
                    self.failed(session, &error);
                    return Err(error);
                }
            }
        }
    }

    /// The children of a line's node as they are now, and not only as our server has them.
    pub(super) async fn children(
        &self,
        session: &Session,
        parent: &str,
        time: Duration,
    ) -> Result<Vec<String>, ZkError> {
        let ask = || {
            let (synced, listed) =
                (session.client.sync(parent), session.client.list_children(parent));
            async move {
                let (synced, listed) = futures_util::future::join(synced, listed).await;
                synced?;
                listed
            }
        };
        if_there(self.ask(session, time, ask).await).map(Option::unwrap_or_default)
    }

    /// Looks for a node that may have been made, and is ours: it carries our ticket, and is on our
    /// session. Any other node of this ticket is removed: it would be in our own way.
    pub(super) async fn find_own(
        self: &Arc<Self>,
        record: &TicketRecord,
        time: Duration,
    ) -> Result<bool> {
        let session = &record.base.session;
        let children = self.listed(&record.base.parent, record.id, time).await?;
        let mut members = layout::members(&children);
        {
            // Where it is known to stand, if it is.
            let place = record.place();
            members.sort_by_key(|member| member.seq != place.entry.seq);
        }
        let mut found = None;
        for member in members {
            let path = record.path(&member.child);
            let stat = self
                .ask(session, time, || session.client.check_stat(&path))
                .await
                .map_err(|error| self.error(error))?;
            match stat {
                Some(stat) if found.is_none() && stat.ephemeral_owner == session.id => {
                    found = Some((member, stat.czxid));
                }
                Some(_) => self.remove_double(record, &path, time).await?,
                None => {}
            }
        }
        let Some((member, czxid)) = found else {
            record.place().doubtful = false;
            return Ok(false);
        };
        let create = record.place().create; // kept if it has only moved
        record.born(&member, if create == 0 { czxid } else { create });
        self.table.look_soon(record.id);
        Ok(true)
    }

    /// Removes a node that carries a ticket which has another one.
    pub(super) async fn remove_double(
        &self,
        record: &TicketRecord,
        path: &str,
        time: Duration,
    ) -> Result<()> {
        tracing::warn!(name = %record.line, path, "a second node of one ticket is removed");
        self.delete(&record.base.session, path, time).await.map(drop)
    }

    /// Whether a node is in the ensemble, and not in our server's copy alone, where it would stay
    /// for ever: a copy that was not set right after an election, as in ZOOKEEPER-1549
    /// and 5010. Then it is removed.
    ///
    /// A node is made and deleted under the same path, in one transaction. Where it is there the
    /// transaction is refused. Where it is not nothing has changed afterwards; but the copy that
    /// has a node of that path after all loses it, and its watches there fire.
    pub(super) async fn is_there(
        &self,
        session: &Session,
        time: Duration,
        path: &str,
    ) -> Result<bool, ZkError> {
        let again = || session.client.replace(path, &[], Mode::Ephemeral, self.acl(), path);
        match self.ask(session, time, again).await? {
            Ok(()) => Ok(false),
            Err(ZkError::NodeExists) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The same for a node that keeps a ticket out.
    pub(super) async fn prove(
        &self,
        session: &Session,
        time: Duration,
        path: &str,
    ) -> Result<bool, ZkError> {
        let there = self.is_there(session, time, path).await?;
        if !there {
            // Or, which is unlikely, it went just now.
            tracing::warn!(path, "a place that only one server had is removed from there");
        }
        Ok(there)
    }
}

impl Attempt<'_> {
    /// Whether a ticket that is not there would be admitted at once.
    pub(super) async fn has_room(&self) -> Result<bool> {
        let Attempt { store, request, record, .. } = *self;
        let Base { session, parent } = &record.base;
        let children = store.children(session, parent, request.limit).await;
        let children = children.map_err(|error| store.error(error))?;
        let members = layout::members(&children);
        self.check_line(&members).await?;
        self.check_recipes(&children).await?;
        let ticket = request.ticket;
        Ok(layout::blockers(&members, ticket.weight, ticket.capacity).is_empty())
    }

    /// Asks for the nodes ahead of one that is there, and whether it is.
    pub(super) async fn look_ahead(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let Base { session, parent } = &record.base;
        let ask = || session.client.list_children(parent);
        let children = if_there(store.ask(session, request.limit, ask).await);
        let children = children.map_err(|error| store.error(error))?.unwrap_or_default();
        self.take(&children).await
    }

    /// Takes in the children of the line. If the ticket cannot stand there, its node is deleted.
    pub(super) async fn take(&self, children: &[String]) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let (own, weight) = record.with(|place| (place.entry.child.clone(), place.weight));
        let mut members = layout::members(children);
        let Some(at) = members.iter().position(|member| member.child == own) else {
            if members.iter().any(|member| member.id() == Some(record.id)) {
                // Under another name than we were told.
                record.place().doubtful = true;
                return Err(store.error(ZkError::Garbled));
            }
            record.lose(&store.table.loss);
            return Ok(());
        };
        let own_seq = members[at].seq;
        members.truncate(at);
        for double in layout::take_doubles(&mut members, &own) {
            store.remove_double(record, &record.path(&double.child), request.limit).await?;
        }
        let mut checked = Ok(());
        let same = |last: &Member| last.seq == own_seq && last.id() != Some(record.id);
        if let Some(equal) = members.pop_if(|last| same(last)) {
            let path = record.path(&equal.child);
            let proof = store.prove(&record.base.session, request.limit, &path).await;
            if proof.map_err(|error| store.error(error))? {
                checked = Err(self.exhausted());
            }
        }
        if checked.is_ok() {
            checked = self.check_line(&members).await;
        }
        if checked.is_ok() {
            checked = self.check_recipes(children).await;
        }
        if let Err(error) = checked {
            self.take_back().await?;
            return Err(error);
        }
        let blockers = layout::blockers(&members, weight, record.capacity);
        drop(record.with(|place| place.see(blockers, self.missed, clock::now())));
        Ok(())
    }

    /// Checks that a ticket can stand in a line with these: of a dialect in which they see it, of
    /// the same capacity, with numbers that tell the order.
    async fn check_line(&self, others: &[Member]) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        if others.iter().any(Member::is_exhausted) {
            return Err(self.exhausted());
        }
        if let Some(member) = store.blind(others) {
            let message = format!(
                "lock \"{}\" has mixed dialects: {} is in the line, a place of {}, whose owner \
                 would not see a place of the dialect {}, so both would hold; use one dialect \
                 (?dialect=...), or make its owner see ours and say ?mixed=wait",
                record.line,
                member.child,
                member.family.name(),
                store.address.dialect.name()
            );
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        request.check_capacity(others.iter().filter_map(Member::capacity))?;
        if record.capacity == 1 {
            return Ok(());
        }
        // Ours and others' locks go by the same name: the data tell.
        let Some(lock) = others.iter().find(|member| member.weights.is_none()) else {
            return Ok(());
        };
        let (session, path) = (&record.base.session, record.path(&lock.child));
        let asked = store.ask(session, request.limit, || session.client.get_data(&path)).await;
        let Ok((data, _)) = asked else { return Ok(()) };
        request.check_capacity(NodeData::read(&data).capacity)
    }
}
