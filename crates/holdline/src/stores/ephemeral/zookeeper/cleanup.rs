//! Cleanup after failed acquisitions, with bounded work.
//!
//! An acquisition that is dropped while its request is in transit may have created a node. To find
//! out, the line must be listed, and *one* list answers for many such places of a line: a caller
//! that comes while a list is in progress waits for the next one, which is requested after its own
//! request, and so shows the outcome. At most [`LISTS`] lines are listed at once.
//!
//! The number of places in doubt is bounded as well: each acquisition has one of [`ENTERING`]
//! permits from before its first request until the outcome is known. When all permits are taken,
//! further acquisitions wait, and have sent nothing if they are dropped.

use super::errors::ZkError;
use super::layout::Member;
use super::release::LIMIT;
use super::shared::{BACKGROUND, Shared};
use crate::clock;
use crate::error::Result;
use crate::store::TicketId;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// The most lines that are listed at once for cleanup.
const LISTS: usize = 8;

/// The nodes of one line that carry a ticket.
type Found = HashMap<TicketId, Vec<String>>;
type Waiting = oneshot::Sender<Result<Arc<Found>, ZkError>>;

/// The cleanup state of a store: its limits, and the lists that callers share.
#[derive(Debug)]
pub(super) struct Cleanup {
    lists: Semaphore,
    /// Limits the check to one held lock at a time.
    pub(super) checks: Semaphore,
    /// The callers that wait for the next list of a line, by the line's node. Each line has a task.
    waiting: Mutex<HashMap<String, Vec<Waiting>>>,
}

impl Default for Cleanup {
    fn default() -> Self {
        Cleanup {
            lists: Semaphore::new(LISTS),
            checks: Semaphore::new(1),
            waiting: Mutex::default(),
        }
    }
}

impl Cleanup {
    /// Takes the callers that wait for the next list of a line. `None` if there are none, which
    /// ends the task.
    fn next(&self, parent: &str) -> Option<Vec<Waiting>> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(parent)?;
        waiting.retain(|one| !one.is_closed());
        if waiting.is_empty() {
            all.remove(parent);
            return None;
        }
        Some(std::mem::take(waiting))
    }
}

impl Shared {
    /// The nodes of a line that carry a ticket, after everything sent before.
    pub(super) async fn listed(
        self: &Arc<Self>,
        parent: &str,
        id: TicketId,
        time: Duration,
    ) -> Result<Vec<String>> {
        let (tell, told) = oneshot::channel();
        let first = {
            let mut all = self.cleanup.waiting.lock();
            match all.get_mut(parent) {
                Some(waiting) => {
                    waiting.push(tell);
                    false
                }
                None => all.insert(parent.to_owned(), vec![tell]).is_none(),
            }
        };
        if first {
            BACKGROUND.spawn(list(Arc::downgrade(self), parent.to_owned()));
        }
        match clock::within(clock::now().after(time), told).await {
            Some(Ok(Ok(found))) => Ok(found.get(&id).cloned().unwrap_or_default()),
            Some(Ok(Err(error))) => Err(self.error(error)),
            Some(Err(_)) | None => Err(self.error(ZkError::Timeout)),
        }
    }

    /// Removes all nodes of a line that carry a ticket. Returns whether there were any.
    pub(super) async fn remove_listed(
        self: &Arc<Self>,
        parent: &str,
        id: TicketId,
        time: Duration,
    ) -> Result<bool> {
        let children = self.listed(parent, id, time).await?;
        let mut removed = false;
        for child in &children {
            let session = self.session(time).await?;
            removed |= self.delete(&session, &format!("{parent}/{child}"), time).await?;
        }
        Ok(removed)
    }

    async fn list_now(self: &Arc<Self>, parent: &str) -> Result<Arc<Found>, ZkError> {
        let session = self.session(LIMIT).await.map_err(|_| ZkError::ConnectionLoss)?;
        let children = self.children(&session, parent, LIMIT).await?;
        let mut found = Found::new();
        for child in children {
            if let Some(id) = Member::read(&child).and_then(|member| member.id()) {
                found.entry(id).or_default().push(child);
            }
        }
        Ok(Arc::new(found))
    }
}

/// Lists a line for its waiting callers until there are none.
async fn list(shared: Weak<Shared>, parent: String) {
    while let Some(shared) = shared.upgrade() {
        let Ok(_turn) = shared.cleanup.lists.acquire().await else { return };
        let Some(waiting) = shared.cleanup.next(&parent) else { return };
        let found = shared.list_now(&parent).await;
        for one in waiting {
            let _ = one.send(found.clone());
        }
    }
}
