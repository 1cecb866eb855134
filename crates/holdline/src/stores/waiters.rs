//! Notices to the waiters of this process, by ticket.
//!
//! A notice may come after the reply that gave a place and before anybody waits for it, so it is
//! kept until somebody does. What is kept for tickets that nobody ever waits for is bounded.

use crate::store::{Seq, TicketId};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use tokio::sync::Notify;

/// Who waits for a notice, and which notices wait for somebody.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slots: Mutex<HashMap<TicketId, Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    notify: Arc<Notify>,
    waiting: usize,
    /// The place by which it was admitted, if the last notice said so.
    admitted: Option<Seq>,
}

/// So many notices are kept for nobody before they are swept out. A lost notice costs the waiter a
/// bounded wait.
const KEPT: usize = 4096;

impl Waiters {
    fn slots(&self) -> MutexGuard<'_, HashMap<TicketId, Slot>> {
        self.slots.lock()
    }

    /// Waiters whoever waits by this ticket, or the next one to do so.
    pub(crate) fn wake(&self, id: TicketId) {
        self.notify(id, None);
    }

    /// Waiters them, and tells them by which place the ticket was admitted.
    #[cfg(feature = "redis")]
    pub(crate) fn admit(&self, id: TicketId, seq: Seq) {
        self.notify(id, Some(seq));
    }

    fn notify(&self, id: TicketId, admitted: Option<Seq>) {
        let mut slots = self.slots();
        if slots.len() >= KEPT && !slots.contains_key(&id) {
            slots.retain(|_, slot| slot.waiting > 0);
        }
        let slot = slots.entry(id).or_default();
        slot.admitted = admitted;
        slot.notify.notify_one();
    }

    /// Waiters everybody who waits now: notices may have been lost.
    #[cfg(feature = "redis")]
    pub(crate) fn wake_all(&self) {
        for slot in self.slots().values_mut().filter(|slot| slot.waiting > 0) {
            slot.admitted = None;
            slot.notify.notify_one();
        }
    }

    /// Waits for a notice to this ticket, and says by which place it was admitted, if that was the
    /// notice.
    pub(crate) async fn wait(&self, id: TicketId) -> Option<Seq> {
        let waiter = Waiter::new(self, id);
        waiter.notify.notified().await;
        self.slots().get(&id).and_then(|slot| slot.admitted)
    }
}

/// Counts itself in its slot, and takes the slot along when it is the last.
struct Waiter<'a> {
    wakes: &'a Waiters,
    id: TicketId,
    notify: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    fn new(wakes: &'a Waiters, id: TicketId) -> Self {
        let mut slots = wakes.slots();
        let slot = slots.entry(id).or_default();
        slot.waiting += 1;
        Waiter { wakes, id, notify: Arc::clone(&slot.notify) }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut slots = self.wakes.slots();
        if let Some(slot) = slots.get_mut(&self.id) {
            slot.waiting -= 1;
            if slot.waiting == 0 {
                slots.remove(&self.id);
            }
        }
    }
}
