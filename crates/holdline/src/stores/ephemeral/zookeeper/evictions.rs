//! Notes about places that were removed by force, in the data of the line's own node.
//!
//! They are written in the transaction that removes the place. The node is a container, so the
//! servers remove it, with its notes, some time (at most a minute) after the line has become empty.
//! Neither Curator's locks nor kazoo's read its data. Data that is not ours is left alone, and so
//! are nodes that we may not write.

use super::errors::ZkError;
use super::release::LIMIT;
use super::shared::Shared;
use crate::error::Result;
use crate::store::{EVICTIONS_KEPT, Eviction, TicketId};
use crate::stores::ephemeral::values::OURS;
use holdline_zookeeper_client::{Client, Session};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// The number of attempts while other clients write in between.
const TRIES: usize = 5;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Data<'a> {
    holdline: u8,
    #[serde(borrow)]
    evictions: Vec<Entry<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    note: Cow<'a, str>,
}

/// Parses the data of a line's node, oldest entry first. `None` if the data is not ours.
fn entries(data: &[u8]) -> Option<Vec<Entry<'_>>> {
    if data.is_empty() {
        return Some(Vec::new());
    }
    let text = std::str::from_utf8(data).ok().filter(|text| text.starts_with(OURS))?;
    serde_json::from_str::<Data<'_>>(text).ok().map(|data| data.evictions)
}

/// The evictions in the data.
pub(super) fn read(data: &[u8]) -> Vec<Eviction> {
    let entries = entries(data).unwrap_or_default().into_iter();
    let read = entries.filter_map(|entry| {
        Some(Eviction { id: entry.id.parse().ok()?, note: Arc::from(&*entry.note) })
    });
    read.collect()
}

/// The data with one more entry, and without the oldest ones if there are too many. `None` if the
/// data is not ours.
fn add(data: &[u8], id: TicketId, note: &str) -> Option<Vec<u8>> {
    let mut evictions = entries(data)?;
    evictions.push(Entry { id: id.to_string().into(), note: note.into() });
    let surplus = evictions.len().saturating_sub(EVICTIONS_KEPT);
    evictions.drain(..surplus);
    serde_json::to_vec(&Data { holdline: 1, evictions }).ok()
}

impl Shared {
    /// The evictions of a line.
    pub(super) async fn evictions(&self, session: &Session, parent: &str) -> Vec<Eviction> {
        let asked = self.ask(session, LIMIT, || session.client.get_data(parent)).await;
        asked.map(|(data, _)| read(&data)).unwrap_or_default()
    }

    /// Deletes the node of a place and leaves a note, in one transaction; without a note if none
    /// can be left. Returns whether the node existed.
    pub(super) async fn delete_noted(
        &self,
        session: &Session,
        parent: &str,
        path: &str,
        (id, note): (TicketId, &str),
    ) -> Result<bool> {
        let client: &Client = &session.client;
        for tries in 0..TRIES {
            let asked = self.ask(session, LIMIT, || client.get_data(parent)).await;
            let Ok((data, stat)) = asked else { break };
            // It was carried out, and the reply was lost.
            let noted = |gone: &Eviction| gone.id == id && &*gone.note == note;
            if tries > 0 && read(&data).iter().any(noted) {
                return Ok(true);
            }
            let Some(data) = add(&data, id, note) else { break };
            let write = || client.delete_and_set(path, parent, &data, stat.version);
            match self.ask(session, LIMIT, write).await {
                Ok(Ok(())) => return Ok(true),
                // Another eviction came first, or this one was carried out and the reply was lost.
                Ok(Err(ZkError::BadVersion)) => {}
                Ok(Err(ZkError::NoNode)) if tries == 0 => {}
                _ => break,
            }
        }
        self.delete(session, path, LIMIT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let mut data = Vec::new();
        for number in 0..20 {
            data = add(&data, TicketId(number), "{\"reason\":\"é\\\"\"}").expect("ours");
        }
        let read = read(&data);
        let ids: Vec<_> = read.iter().map(|gone| gone.id.0).collect();
        assert_eq!(ids, (12..20).collect::<Vec<_>>());
        assert_eq!(&*read[0].note, "{\"reason\":\"é\\\"\"}");
    }

    #[test]
    fn what_others_wrote_is_left_alone() {
        for theirs in [&b"10.0.0.1"[..], b"3", b"{}", b"\xff", b"{\"holdline\":1"] {
            assert!(add(theirs, TicketId(1), "").is_none() && read(theirs).is_empty());
        }
    }
}
