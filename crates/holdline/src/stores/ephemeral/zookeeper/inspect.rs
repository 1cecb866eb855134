//! Looking at a line, and at which lines there are.

use super::errors::ZkError;
use super::layout::{self, Member, NodeData};
use super::path;
use super::release::LIMIT;
use super::shared::Shared;
use crate::error::Result;
use crate::names::Name;
use crate::store::{QueueSnapshot, TicketId};
use crate::stores::ephemeral::engine;
use futures_util::future::{join, join_all};
use holdline_zookeeper_client::Session;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The number of nodes that are listed at once.
const TOGETHER: usize = 64;

/// One place, with all that can be known of it.
pub(super) struct Seen {
    pub(super) member: Member,
    pub(super) id: TicketId,
    /// Its token.
    pub(super) create: i64,
    told: NodeData,
}

/// The id of a node whose name has none. It fits no other node, now or later, and differs from all
/// others from its first digits on, so that the beginning is enough to name it by.
fn made_up(path: &str, czxid: i64) -> TicketId {
    TicketId(u128::from_be_bytes(md5::compute(format!("{path} {czxid}")).0))
}

impl Shared {
    /// All members of a line, front first.
    pub(super) async fn seen(&self, session: &Session, parent: &str) -> Result<Vec<Seen>> {
        let children = self.children(session, parent, LIMIT).await?;
        let members = layout::members(&children);
        let asked = members.into_iter().map(|member| async {
            let path = format!("{parent}/{}", member.child);
            let asked = self.ask(session, LIMIT, || session.client.get_data(&path)).await;
            let (data, stat) = match asked {
                Ok(found) => found,
                Err(ZkError::NoNode) => return Ok(None), // gone since
                Err(error) => return Err(error),
            };
            let told = NodeData::read(&data);
            let create = told.token.unwrap_or(stat.czxid);
            let id = member.id().unwrap_or_else(|| made_up(&path, stat.czxid));
            Ok(Some(Seen { member, id, create, told }))
        });
        let seen = join_all(asked).await.into_iter().collect::<Result<Vec<_>, ZkError>>();
        Ok(seen.map_err(|error| self.error(error))?.into_iter().flatten().collect())
    }

    pub(super) async fn snapshot(self: &Arc<Self>, line: &Name) -> Result<QueueSnapshot> {
        let session = self.session(LIMIT).await?;
        let parent = path::of(&self.address.root, line);
        let (places, evictions) =
            join(self.seen(&session, &parent), self.evictions(&session, &parent)).await;
        let places = places?;
        let said = |place: &Seen| place.member.weights.map(|(_, capacity)| capacity);
        let known = places.iter().find_map(|place| said(place).or(place.told.capacity));
        let Some(capacity) = known.or((!places.is_empty()).then_some(1)) else {
            return Ok(QueueSnapshot { evictions, ..QueueSnapshot::default() });
        };
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

    /// Walks through the nodes below the one that the prefix leads to.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Vec<Name>> {
        let session = self.session(LIMIT).await?;
        let root = &self.address.root;
        let Some(start) = self.folder_of(prefix) else { return Ok(Vec::new()) };
        let mut names = BTreeSet::new();
        let mut folders = VecDeque::from([start]);
        while !folders.is_empty() {
            let some: Vec<_> = folders.drain(..folders.len().min(TOGETHER)).collect();
            let listed = some.iter().map(|path| {
                let path = if path.is_empty() { "/" } else { path };
                self.children(&session, path, LIMIT)
            });
            for (folder, children) in some.iter().zip(join_all(listed).await) {
                let children = children?;
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

/// Whether names that begin with this prefix may stand there or below.
fn leads(name: &str, prefix: &str) -> bool {
    name.starts_with(prefix) || prefix.starts_with(name)
}
