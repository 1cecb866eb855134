//! The nodes ahead of a ticket, from the children of the line's node.

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
    /// Repeats an idempotent request until there is a reply or the time is up.
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
                    // New requests wait for the client's next connection.
                    clock::pause(Duration::from_millis(5)).await;
                }
                Some(Err(error)) => {
                    self.failed(session, &error);
                    return Err(error);
                }
            }
        }
    }

    /// The current children of a line's node, not only our server's possibly stale copy.
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

    /// Looks for a node that may have been created for us: it has our ticket, and is on our
    /// session. Removes any other node with this ticket, which would block us.
    pub(super) async fn find_own(
        self: &Arc<Self>,
        record: &TicketRecord,
        time: Duration,
    ) -> Result<bool> {
        loop {
            let children = self.listed(&record.base.parent, record.id, time).await?;
            if children.is_empty() {
                record.place().doubtful = false;
                return Ok(false);
            }
            let found = self.own_of(record, layout::members(&children), time).await?;
            if let Some((member, czxid)) = found {
                record.found(&member, czxid);
                self.table.look_soon(record.id);
                return Ok(true);
            }
            // What was listed has gone since, or has moved just now.
        }
    }

    /// The node on our session among those with our ticket, and its creation. Removes the others.
    async fn own_of(
        &self,
        record: &TicketRecord,
        mut members: Vec<Member>,
        time: Duration,
    ) -> Result<Option<(Member, i64)>> {
        let session = &record.base.session;
        {
            // At its known path, if there is one.
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
        Ok(found)
    }

    /// Removes a node that has the same ticket as another one.
    pub(super) async fn remove_double(
        &self,
        record: &TicketRecord,
        path: &str,
        time: Duration,
    ) -> Result<()> {
        tracing::warn!(name = %record.line, path, "a second node of one ticket is removed");
        self.delete(&record.base.session, path, time).await.map(drop)
    }

    /// Whether a node exists in the ensemble, and not only in our server's copy, where it would
    /// stay for ever: a copy that was not corrected after an election, as in ZOOKEEPER-1549 and
    /// 5010. If it does not exist, it is removed from the copy.
    ///
    /// A node is created and deleted at the same path, in one transaction. If the node exists, the
    /// transaction is refused. If not, nothing has changed afterwards, except that a copy which has
    /// such a node after all loses it, and the copy's watches on it fire.
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

    /// The same for a node that blocks a ticket.
    pub(super) async fn prove(
        &self,
        session: &Session,
        time: Duration,
        path: &str,
    ) -> Result<bool, ZkError> {
        let there = self.is_there(session, time, path).await?;
        if !there {
            // Or, which is unlikely, it was deleted just now.
            tracing::warn!(path, "a place that only one server had is removed from there");
        }
        Ok(there)
    }
}

impl Attempt<'_> {
    /// Whether a ticket without a place would be admitted at once.
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

    /// Reads the nodes ahead of an existing one, and whether it exists.
    pub(super) async fn look_ahead(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let Base { session, parent } = &record.base;
        let ask = || session.client.list_children(parent);
        let children = if_there(store.ask(session, request.limit, ask).await);
        let children = children.map_err(|error| store.error(error))?.unwrap_or_default();
        self.take(&children).await
    }

    /// Applies the children of the line. If the ticket cannot be in that line, deletes its node.
    pub(super) async fn take(&self, children: &[String]) -> Result<()> {
        let Attempt { store, request, record, .. } = *self;
        let (own, weight) = record.with(|place| (place.entry.child.clone(), place.weight));
        let mut members = layout::members(children);
        let Some(at) = members.iter().position(|member| member.child == own) else {
            if members.iter().any(|member| member.id() == Some(record.id)) {
                // Under another name than the server reported.
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

    /// Checks that a ticket can be in a line with these members: their dialects see it, the
    /// capacity is the same, and the numbers tell the order.
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
        // Our locks and others' have the same names: the data tells them apart.
        let Some(lock) = others.iter().find(|member| member.weights.is_none()) else {
            return Ok(());
        };
        let (session, path) = (&record.base.session, record.path(&lock.child));
        let asked = store.ask(session, request.limit, || session.client.get_data(&path)).await;
        let Ok((data, _)) = asked else { return Ok(()) };
        request.check_capacity(NodeData::read(&data).capacity)
    }
}
