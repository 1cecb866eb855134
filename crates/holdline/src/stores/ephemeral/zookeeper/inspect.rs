//! Looking at a line, and listing the lines.

use super::errors::{ZkError, if_there};
use super::layout::{self, Member, NodeData};
use super::path;
use super::release::LIMIT;
use super::shared::Shared;
use crate::error::Result;
use crate::names::Name;
use crate::store::{QueueSnapshot, TicketId};
use crate::stores::ephemeral::engine;
use crate::stores::ephemeral::values::made_up;
use futures_util::future::{join, join_all, try_join_all};
use holdline_zookeeper_client::{Session, Stat};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The number of nodes that are listed concurrently.
const TOGETHER: usize = 64;

/// One place, with everything that is known about it.
pub(super) struct Seen {
    pub(super) member: Member,
    pub(super) id: TicketId,
    /// Its token.
    pub(super) create: i64,
    told: NodeData,
}

impl Shared {
    /// The data of a node, and its token. `None` if it is gone.
    pub(super) async fn told(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<Option<(NodeData, i64, Stat)>, ZkError> {
        let asked = self.ask(session, LIMIT, || session.client.get_data(path)).await;
        Ok(if_there(asked)?.map(|(data, stat)| {
            let told = NodeData::read(&data);
            let create = told.token.unwrap_or(stat.czxid);
            (told, create, stat)
        }))
    }

    /// The members of a line that are wanted, front first.
    pub(super) async fn seen(
        &self,
        session: &Session,
        parent: &str,
        is_wanted: impl Fn(&Member) -> bool,
    ) -> Result<Vec<Seen>, ZkError> {
        let children = self.children(session, parent, LIMIT).await?;
        let members = layout::members(&children);
        let asked = members.into_iter().filter(is_wanted).map(|member| async {
            let path = format!("{parent}/{}", member.child);
            let asked = self.told(session, &path).await?;
            Ok(asked.map(|(told, create, stat)| {
                let id = member.id().unwrap_or_else(|| made_up(path.as_bytes(), stat.czxid));
                Seen { member, id, create, told }
            }))
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    pub(super) async fn snapshot(self: &Arc<Self>, line: &Name) -> Result<QueueSnapshot> {
        let session = self.session(LIMIT).await?;
        let parent = path::of(&self.address.root, line);
        // A leader that is cut off answers reads, even after a sync, while the others may have
        // agreed on another one and on new places. Members of a group rely on the places shown.
        // A transaction needs a quorum, and the session's later reads are not older than it.
        let confirmed = self.ask(&session, LIMIT, || session.client.check(&parent)).await;
        drop(confirmed.map_err(|error| self.error(error))?); // a refusal is as good
        let (places, evictions) =
            join(self.seen(&session, &parent, |_| true), self.evictions(&session, &parent)).await;
        let places = places.map_err(|error| self.error(error))?;
        let said = |place: &Seen| place.member.capacity().or(place.told.capacity);
        let capacity = places.iter().find_map(said).unwrap_or(u32::from(!places.is_empty()));
        let seen = places.into_iter().map(|place| engine::Seen {
            id: place.id,
            create: place.create,
            weight: place.member.weight(capacity),
            expires_in: place.told.lease,
            note: place.told.note,
        });
        let places = engine::places(&self.table, capacity, seen);
        Ok(QueueSnapshot { capacity, places, evictions })
    }

    /// The path below which all names with this prefix are; `None` if there can be none.
    pub(super) fn folder_of(&self, prefix: &str) -> Option<String> {
        let root = &self.address.root;
        match prefix.rsplit_once('/') {
            Some((folder, _)) if !folder.is_empty() => {
                Name::new(folder).ok().map(|folder| path::of(root, &folder))
            }
            _ => Some(root.clone()),
        }
    }

    /// Walks the nodes below the one that the prefix leads to. Those below it that the user may not
    /// read are left out: they may belong to other programs.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Vec<Name>> {
        let session = self.session(LIMIT).await?;
        let root = &self.address.root;
        let Some(start) = self.folder_of(prefix) else { return Ok(Vec::new()) };
        let mut names = BTreeSet::new();
        let mut folders = VecDeque::from([start.clone()]);
        while !folders.is_empty() {
            let some: Vec<_> = folders.drain(..folders.len().min(TOGETHER)).collect();
            let listed = some.iter().map(|path| {
                let path = if path.is_empty() { "/" } else { path };
                self.children(&session, path, LIMIT)
            });
            for (folder, children) in some.iter().zip(join_all(listed).await) {
                let children = match children {
                    Err(ZkError::NoAuth) if *folder != start => continue,
                    children => children.map_err(|error| self.error(error))?,
                };
                if !layout::members(&children).is_empty() {
                    names.extend(path::name(root, folder));
                }
                let below = children.iter().filter(|child| Member::read(child).is_none());
                let below = below.map(|child| format!("{folder}/{child}"));
                folders.extend(below.filter(|path| {
                    path != "/zookeeper"
                        && path::name(root, path).is_some_and(|name| leads(name.as_str(), prefix))
                }));
            }
        }
        names.retain(|name| name.as_str().starts_with(prefix));
        Ok(names.into_iter().collect())
    }
}

/// Whether this node, or one below it, may have a name with this prefix.
fn leads(name: &str, prefix: &str) -> bool {
    name.starts_with(prefix) || prefix.starts_with(name)
}
