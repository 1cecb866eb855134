//! Cleaning up after acquisitions that came to nothing, with bounded work.
//!
//! An acquisition that is given up while its request is under way may have made a node. To find out
//! the line has to be listed, and for many such places of one line *one* list answers: who asks
//! while a list is under way waits for the next one, which was asked for after his own request, and
//! so shows what became of it. At most [`LISTS`] lines are listed at once.
//!
//! The number of places in doubt is bounded as well: each acquisition has one of [`ENTERING`]
//! permits from before its first request until it is known what became of that. When there are
//! that many, further acquisitions wait, and have sent nothing if they are given up.

use super::errors::ZkError;
use super::layout::Member;
use super::release::LIMIT;
use super::shared::{Shared, spawn};
use super::ticket_record::TicketRecord;
use crate::clock;
use crate::error::Result;
use crate::store::TicketId;
use crate::sync::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// The number of acquisitions of which it may be unknown at once what became of them.
const ENTERING: usize = 256;
/// The number of lines that are listed at once for cleaning up.
const LISTS: usize = 8;
/// The number of lapsed places that are removed at once.
const SWEEPS: usize = 32;
/// The pauses between tries to remove a lapsed place.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The nodes of one line that carry a ticket.
type Found = HashMap<TicketId, Vec<String>>;
type Waiting = oneshot::Sender<Result<Arc<Found>, ZkError>>;

/// What bounds the work of a store, and what is shared in it.
#[derive(Debug)]
pub(super) struct Cleanup {
    /// One permit for each acquisition whose outcome is not known yet.
    pub(super) entering: Arc<Semaphore>,
    lists: Semaphore,
    sweeps: Semaphore,
    /// One held lock is looked after at a time.
    pub(super) patrols: Semaphore,
    /// By the line's node: those who wait for its next list. There is a task for each.
    waiting: Mutex<HashMap<String, Vec<Waiting>>>,
    unsent: Mutex<Unsent>,
}

impl Default for Cleanup {
    fn default() -> Self {
        Cleanup {
            entering: Arc::new(Semaphore::new(ENTERING)),
            lists: Semaphore::new(LISTS),
            sweeps: Semaphore::new(SWEEPS),
            patrols: Semaphore::new(1),
            waiting: Mutex::default(),
            unsent: Mutex::default(),
        }
    }
}

impl Cleanup {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Vec<Waiting>>> {
        self.waiting.lock()
    }

    pub(super) fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock()
    }

    /// Those who wait for the next list of a line. None if there are none, and then the task is
    /// over.
    fn next(&self, parent: &str) -> Option<Vec<Waiting>> {
        let mut all = self.waiting();
        let waiting = all.get_mut(parent)?;
        waiting.retain(|one| !one.is_closed());
        if waiting.is_empty() {
            all.remove(parent);
            return None;
        }
        Some(std::mem::take(waiting))
    }
}

/// Tickets that were given up before anything was sent for them, so that nothing need be asked. If
/// there are very many the oldest are forgotten, and the store is asked after all.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    ids: HashSet<TicketId>,
    order: VecDeque<TicketId>,
}

impl Unsent {
    const MOST: usize = 16 << 10;

    fn add(&mut self, id: TicketId) {
        if self.order.len() >= Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.ids.insert(id);
        self.order.push_back(id);
    }

    /// Whether it is one. Then it is none any more.
    pub(super) fn take(&mut self, id: TicketId) -> bool {
        self.ids.remove(&id)
    }
}

/// Notes when it is dropped that nothing was sent for a ticket, unless something is.
pub(super) struct Unstarted<'a> {
    shared: &'a Shared,
    id: Option<TicketId>,
}

impl<'a> Unstarted<'a> {
    pub(super) fn new(shared: &'a Shared, id: TicketId) -> Self {
        shared.cleanup.unsent().take(id);
        Unstarted { shared, id: Some(id) }
    }

    /// Something will be sent, or was.
    pub(super) fn start(mut self) {
        self.id = None;
    }
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.cleanup.unsent().add(id);
        }
    }
}

impl Shared {
    /// The nodes of a line that carry a ticket, as they are after all that was sent before.
    pub(super) async fn listed(
        self: &Arc<Self>,
        parent: &str,
        id: TicketId,
        time: Duration,
    ) -> Result<Vec<String>> {
        let (tell, told) = oneshot::channel();
        let first = {
            let mut all = self.cleanup.waiting();
            match all.get_mut(parent) {
                Some(waiting) => {
                    waiting.push(tell);
                    false
                }
                None => all.insert(parent.to_owned(), vec![tell]).is_none(),
            }
        };
        if first {
            spawn(list(Arc::downgrade(self), parent.to_owned()));
        }
        match clock::within(clock::now().after(time), told).await {
            Some(Ok(Ok(found))) => Ok(found.get(&id).cloned().unwrap_or_default()),
            Some(Ok(Err(error))) => Err(self.error(error)),
            Some(Err(_)) | None => Err(self.error(ZkError::Timeout)),
        }
    }

    /// Removes all nodes of a line that carry a ticket. Says whether there was one.
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
        let children = self.list_synced(&session, parent, LIMIT).await?;
        let mut found = Found::new();
        for child in children {
            if let Some(id) = Member::read(&child).and_then(|member| member.id()) {
                found.entry(id).or_default().push(child);
            }
        }
        Ok(Arc::new(found))
    }
}

/// Lists a line for those who wait for that, until nobody does.
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

/// Removes the node of a ticket that has lapsed, however long that takes.
pub(super) async fn sweep(shared: Weak<Shared>, record: Arc<TicketRecord>) {
    let mut pause = PAUSES.0;
    while let Some(shared) = shared.upgrade() {
        let Ok(turn) = shared.cleanup.sweeps.acquire().await else { return };
        match shared.remove(&record, Duration::from_secs(1)).await {
            Ok(_) => return shared.forget(&record),
            Err(error) => {
                tracing::debug!(%error, name = %record.line, "a place that lapsed is still there");
            }
        }
        drop(turn);
        drop(shared);
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_is_remembered_within_bounds() {
        let mut unsent = Unsent::default();
        unsent.add(TicketId(1));
        assert!(unsent.take(TicketId(1)) && !unsent.take(TicketId(1)));
        for id in 0..3 * Unsent::MOST {
            unsent.add(TicketId(id as u128));
        }
        assert_eq!((unsent.ids.len(), unsent.order.len()), (Unsent::MOST, Unsent::MOST));
        assert!(unsent.take(TicketId(3 * Unsent::MOST as u128 - 1)) && !unsent.take(TicketId(2)));
    }
}
