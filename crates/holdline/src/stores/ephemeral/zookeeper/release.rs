//! Leaving, and removing other places by force.

use super::errors::{ZkError, if_there};
use super::inspect::Seen;
use super::layout;
use super::path;
use super::shared::Shared;
use super::ticket_record::{NodeEntry, Record};
use crate::error::Result;
use crate::names::Name;
use crate::store::{Seq, TicketId};
use crate::stores::ephemeral::backend::Release;
use crate::stores::ephemeral::ticket::token;
use holdline_zookeeper_client::Session;
use std::sync::Arc;
use std::time::Duration;

/// The time limit of requests that are not about a lock of ours.
pub(super) const LIMIT: Duration = Duration::from_secs(4);

impl Release<NodeEntry> for Shared {
    /// Removes the ticket's node, wherever it is.
    async fn remove(self: &Arc<Self>, record: &Record, time: Duration) -> Result<bool> {
        let session = &record.base.session;
        if !record.may_be_there() {
            return Ok(false);
        }
        let doubtful = record.place().doubtful;
        // A session that is over for us may still be alive for the servers.
        match record.own().filter(|_| !doubtful && !session.is_lost()) {
            Some(path) if self.delete(session, &path, time).await? => {
                let seq = record.place().entry.seq;
                self.uncontended.deleted((&record.base.parent, session.id), seq);
                Ok(true)
            }
            Some(_) if record.place().is_gone() => Ok(false), // as we were told
            _ => self.remove_listed(&record.base.parent, record.id, time).await,
        }
    }

    async fn remove_unknown(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<bool> {
        self.remove_listed(&path::of(&self.address.root, line), id, LIMIT).await
    }
}

impl Shared {
    /// Deletes a node. No other node ever has its path.
    pub(super) async fn delete(
        &self,
        session: &Session,
        path: &str,
        time: Duration,
    ) -> Result<bool> {
        // A lost reply may have been that it is done.
        let mut tries = 0;
        let delete = || {
            tries += 1;
            session.client.delete(path)
        };
        match self.ask(session, time, delete).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) if tries > 1 => Ok(true),
            Err(ZkError::NoNode) => {
                // Our server showed it. If only our server has it, it must be removed there, too.
                let _ = self.is_there(session, time, path).await;
                Ok(false)
            }
            Err(_) if session.has_ended() => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
        note: &str,
    ) -> Result<Option<Seq>> {
        let session = self.session(LIMIT).await?;
        let parent = path::of(&self.address.root, line);
        // Most names tell the id.
        let may_be = |member: &layout::Member| member.id().is_none_or(|of| of == id);
        let places = self.seen(&session, &parent, may_be).await;
        let places = places.map_err(|error| self.error(error))?;
        let Some(victim) = places.into_iter().find(|place| place.id == id) else {
            return Ok(None);
        };
        let path = format!("{parent}/{}", victim.member.child);
        if !self.delete_noted(&session, &parent, &path, (id, note)).await? {
            return Ok(None);
        }
        self.table.lose(id);
        let fence = self.fence(&session, &parent, &victim).await;
        fence.map(Some).map_err(|error| self.error(error))
    }

    /// A token that is higher than that of the removed place, and no higher than that of any place
    /// behind it.
    async fn fence(&self, session: &Session, parent: &str, victim: &Seen) -> Result<Seq, ZkError> {
        // The candidates are the places behind it, and the transaction of the last change: its own
        // removal, if there was none since.
        let asked = self.ask(session, LIMIT, || session.client.get_children(parent)).await;
        let (children, changed) =
            if_there(asked)?.map_or((Vec::new(), 0), |(children, stat)| (children, stat.pzxid));
        for member in layout::members(&children) {
            if member.seq > victim.member.seq
                && let Some((_, create, _)) =
                    self.told(session, &format!("{parent}/{}", member.child)).await?
            {
                return Ok(token(create));
            }
        }
        Ok(token(changed.max(victim.create.saturating_add(1))))
    }
}
