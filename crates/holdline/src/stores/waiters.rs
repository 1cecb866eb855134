//! Wake-ups for the waiters of this process, by ticket, and the loss callback.
//!
//! A notice may come between the reply that gave a place and the wait for it, so it is kept until
//! then. The number of notices kept for tickets without a waiter is bounded.

use crate::store::{LossHint, Seq, TicketId};
use crate::sync::{Mutex, contained};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// The waiters and pending notices, by ticket.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) loss: LossHandler,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_ticket: HashMap<TicketId, Slot>,
    /// The number of slots without a waiter.
    idle: usize,
}

#[derive(Debug, Default)]
struct Slot {
    notify: Arc<Notify>,
    waiting: usize,
    /// The place of its admission, if the last notice reported one.
    admitted: Option<Seq>,
}

/// The number of slots without a waiter at which they are dropped. A lost notice costs its waiter a
/// bounded delay.
const KEPT: usize = 4096;

impl Waiters {
    /// Wakes the waiters of this ticket, or else the next wait for it.
    pub(crate) fn wake(&self, id: TicketId) {
        self.notify(id, None);
    }

    /// As [`wake`](Self::wake), with the place of the ticket's admission.
    #[cfg(any(feature = "redis", feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn admit(&self, id: TicketId, seq: Seq) {
        self.notify(id, Some(seq));
    }

    /// Wakes the waiter of a ticket that was evicted, and hints that it is gone if it held.
    pub(crate) fn evicted(&self, id: TicketId) {
        self.wake(id);
        self.loss.hint(id);
    }

    /// Makes [`wake_all`](Self::wake_all) wake the next wait for this ticket, too.
    #[cfg(feature = "postgres")]
    pub(crate) fn expect(&self, id: TicketId) {
        self.slots.lock().of(id);
    }

    fn notify(&self, id: TicketId, admitted: Option<Seq>) {
        let wake = self.slots.lock().of(id).notice(admitted);
        wake.send();
    }

    /// Wakes all waiters, because notices may have been lost.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn wake_all(&self) {
        let notice = |slot: &mut Slot| slot.notice(None);
        let wakes: Vec<_> = self.slots.lock().by_ticket.values_mut().map(notice).collect();
        wakes.iter().for_each(WakeUp::send);
    }

    /// Whether there are no waiters.
    #[cfg(feature = "postgres")]
    pub(crate) fn are_none(&self) -> bool {
        let slots = self.slots.lock();
        slots.by_ticket.len() == slots.idle
    }

    /// Waits for a notice to this ticket. Returns the place of its admission, if the notice reports
    /// one.
    pub(crate) async fn wait(&self, id: TicketId) -> Option<Seq> {
        let waiter = Waiter::new(self, id);
        waiter.notify.notified().await;
        self.slots.lock().by_ticket.get(&id).and_then(|slot| slot.admitted)
    }
}

impl Slots {
    /// The slot of a ticket, which is made if need be.
    fn of(&mut self, id: TicketId) -> &mut Slot {
        if !self.by_ticket.contains_key(&id) {
            if self.idle >= KEPT {
                self.by_ticket.retain(|_, slot| slot.waiting > 0);
                self.idle = 0;
            }
            self.idle += 1;
        }
        self.by_ticket.entry(id).or_default()
    }
}

impl Slot {
    /// Records a notice. The wake-up is for the waiters, or else the next one.
    fn notice(&mut self, admitted: Option<Seq>) -> WakeUp {
        self.admitted = admitted;
        WakeUp(Arc::clone(&self.notify), self.waiting.max(1))
    }
}

/// A wake-up of this many waiters. It is sent while no mutex is locked, because a waker may poll or
/// drop its task on the spot.
struct WakeUp(Arc<Notify>, usize);

impl WakeUp {
    fn send(&self) {
        for _ in 0..self.1 {
            contained(|| self.0.notify_one());
        }
    }
}

/// A registered waiter. Dropping the last one of a ticket removes the slot.
struct Waiter<'a> {
    waiters: &'a Waiters,
    id: TicketId,
    notify: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    fn new(waiters: &'a Waiters, id: TicketId) -> Self {
        let mut slots = waiters.slots.lock();
        let slot = slots.of(id);
        slot.waiting += 1;
        let (first, notify) = (slot.waiting == 1, Arc::clone(&slot.notify));
        slots.idle -= usize::from(first);
        Waiter { waiters, id, notify }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut slots = self.waiters.slots.lock();
        if let Some(slot) = slots.by_ticket.get_mut(&self.id) {
            slot.waiting -= 1;
            if slot.waiting == 0 {
                slots.by_ticket.remove(&self.id);
            }
        }
    }
}

/// The loss callback, once it is set.
#[derive(Clone, Default)]
pub(crate) struct LossHandler(Arc<OnceLock<LossHint>>);

impl LossHandler {
    /// Sets the callback, as [`Store::on_loss_hint`](crate::store::Store::on_loss_hint) is called.
    pub(crate) fn set(&self, loss_hint: LossHint) {
        let _ = self.0.set(loss_hint);
    }

    /// Hints that a held ticket is gone.
    pub(crate) fn hint(&self, id: TicketId) {
        if let Some(loss_hint) = self.0.get() {
            loss_hint(id);
        }
    }
}

impl fmt::Debug for LossHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Wake};
    use std::time::Duration;

    /// A waker of an executor that has a bug.
    pub(in super::super) struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it should");
        }
    }

    /// A waker that drops its task on the spot, as one of an executor that has ended may do.
    struct Drops<F>(Arc<Mutex<Option<Pin<Box<F>>>>>);

    impl<F: Future + Send + 'static> Wake for Drops<F> {
        fn wake(self: Arc<Self>) {
            let task = self.0.lock().take();
            drop(task);
        }
    }

    /// Polls a task once, and then calls `wake`, which wakes and so drops it. That must end, also
    /// if the drop needs a mutex that `wake` uses.
    pub(in super::super) fn assert_dropped_on_waking<F>(
        task: F,
        wake: impl FnOnce() + Send + 'static,
    ) where
        F: Future + Send + 'static,
    {
        let kept = Arc::new(Mutex::new(None));
        let waker = Arc::new(Drops(Arc::clone(&kept))).into();
        let mut task = Box::pin(task);
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        *kept.lock() = Some(task);
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            wake();
            done.send(()).expect("it is waited for");
        });
        ended.recv_timeout(Duration::from_secs(60)).expect("the wake-up does not end");
        assert!(kept.lock().is_none(), "it was not woken");
    }

    #[test]
    fn a_waker_may_drop_its_task_on_the_spot() {
        let woken_by = |wake: fn(&Waiters)| {
            let waiters = Arc::new(Waiters::default());
            let waits = Arc::clone(&waiters);
            let task = async move { waits.wait(TicketId(7)).await };
            assert_dropped_on_waking(task, move || wake(&waiters));
        };
        woken_by(|waiters| waiters.wake(TicketId(7)));
        #[cfg(any(feature = "redis", feature = "postgres"))]
        woken_by(Waiters::wake_all);
    }

    /// The task that receives notices wakes the waiters of all tickets.
    #[test]
    fn a_waker_that_panics_keeps_no_notice_from_others() {
        let (waiters, waker) = (Waiters::default(), Arc::new(Panics).into());
        let mut panics = std::pin::pin!(waiters.wait(TicketId(7)));
        assert!(panics.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        waiters.wake(TicketId(7));
        waiters.wake(TicketId(8));
        assert_eq!(panics.now_or_never(), Some(None));
        assert_eq!(waiters.wait(TicketId(8)).now_or_never(), Some(None));
    }

    /// Notices that no waiter has come for are few, however many wait for others.
    #[test]
    fn a_notice_is_kept_however_many_wait() {
        let waiters = Waiters::default();
        let wait = |id| Box::pin(waiters.wait(TicketId(id)));
        let mut waits: Vec<_> = (0..KEPT as u128).map(wait).collect();
        assert!(waits.iter_mut().all(|wait| wait.now_or_never().is_none()));
        let early = [1, 2, 3].map(|more| TicketId(KEPT as u128 + more));
        for id in early {
            waiters.wake(id);
        }
        for id in early {
            assert_eq!(waiters.wait(id).now_or_never(), Some(None));
        }
        drop(waits);
        let left = |waiters: &Waiters| {
            let slots = waiters.slots.lock();
            (slots.by_ticket.len(), slots.idle)
        };
        assert_eq!(left(&waiters), (0, 0));
        for id in 0..2 * KEPT as u128 + 7 {
            waiters.wake(TicketId(id));
        }
        assert_eq!(left(&waiters), (7, 7), "the number of kept notices is bounded");
    }

    #[tokio::test]
    async fn a_notice_is_for_all_that_wait_for_it_or_for_the_next() {
        let (waiters, id) = (Waiters::default(), TicketId(7));
        let mut waits = [0, 1].map(|_| Box::pin(waiters.wait(id)));
        for wait in &mut waits {
            assert!(wait.now_or_never().is_none());
        }
        waiters.wake(id);
        for wait in waits {
            assert_eq!(wait.now_or_never(), Some(None));
        }
        // One that gives up takes no notice from another.
        let [given_up, waits] = [0, 1].map(|_| {
            let mut wait = Box::pin(waiters.wait(id));
            assert!((&mut wait).now_or_never().is_none());
            wait
        });
        drop(given_up);
        waiters.wake(id);
        assert_eq!(waits.now_or_never(), Some(None));
        assert!(waiters.wait(id).now_or_never().is_none());
        waiters.wake(id);
        assert_eq!(waiters.wait(id).now_or_never(), Some(None));
    }
}
