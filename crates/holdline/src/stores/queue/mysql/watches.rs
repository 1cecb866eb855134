//! The waiters of this process: their wake-ups, and the times of looks for admissions by others.

use super::text::Front;
use crate::clock;
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, TicketId};
use crate::stores::waiters::Waiters;
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::sync::Notify;

/// The pauses between looks while nothing changes.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(2), Duration::from_millis(100)).jitter(25);
/// The same for a process that was notified of its last admission.
const PAUSES_IF_TOLD: Backoff =
    Backoff::exponential(Duration::from_millis(20), Duration::from_millis(800)).jitter(25);

/// The number of waiting tickets at which unwatched ones are dropped; their owners ask about them
/// again.
const KEPT: usize = 4096;

#[derive(Default)]
pub(super) struct Watches {
    waiters: Waiters,
    state: Mutex<State>,
    /// Ends a pause.
    notice: Notify,
}

#[derive(Default)]
struct State {
    waiting: HashMap<TicketId, Waiting>,
    /// The number of looks since the last that found a change.
    fruitless: u32,
    next: Time,
    looking: bool,
    /// Whether a look is due whatever the time is.
    look_now: bool,
    /// The number of notices since a look last found an admitted ticket.
    heard: u32,
    /// Whether there was a notice of the last admission found.
    told: bool,
}

struct Waiting {
    line: Name,
    seq: Seq,
    watched: u32,
}

impl Watches {
    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Records a ticket's standing, as the server has just reported it.
    pub(super) fn note(&self, line: &Name, id: TicketId, how: Enter, standing: Standing) {
        let mut state = self.state.lock();
        let Standing::Waiting { seq: Some(seq), .. } = standing else {
            state.waiting.remove(&id);
            return;
        };
        if state.waiting.len() >= KEPT {
            state.waiting.retain(|_, waiting| waiting.watched > 0);
        }
        if how == Enter::Queue {
            state.fruitless = 0;
            state.rest();
        }
        let line = line.clone();
        let waiting = state.waiting.entry(id).or_insert(Waiting { line, seq, watched: 0 });
        waiting.seq = seq;
    }

    /// Whether a ticket of this process was waiting by the server's last report.
    pub(super) fn waits(&self, id: TicketId) -> bool {
        self.state.lock().waiting.contains_key(&id)
    }

    pub(super) fn forget(&self, id: TicketId) {
        self.state.lock().waiting.remove(&id);
    }

    /// Wakes the waiters of this process among the admitted tickets.
    pub(super) fn admit(&self, woken: &[(TicketId, Seq)]) {
        for (id, seq) in woken {
            let waiting = self.state.lock().waiting.remove(id);
            if waiting.is_some() {
                self.waiters.admit(*id, *seq);
            }
        }
    }

    /// Wakes the waiter of an evicted ticket, and sends a loss hint if the ticket held a lock.
    pub(super) fn evicted(&self, id: TicketId) {
        self.forget(id);
        self.waiters.evicted(id);
    }

    /// Includes this ticket in looks until the result is dropped.
    pub(super) fn watched(&self, id: TicketId) -> Watched<'_> {
        if let Some(waiting) = self.state.lock().waiting.get_mut(&id) {
            waiting.watched += 1;
        }
        Watched(self, id)
    }

    /// Waits until a look may be due.
    pub(super) async fn pause(&self) {
        let (next, looking) = {
            let state = self.state.lock();
            (state.next, state.looking)
        };
        // A look under way sets the time of the next.
        let soonest = if looking { clock::now().after(PAUSES.pause(1, 0)) } else { next };
        tokio::select! {
            () = self.notice.notified() => {}
            () = clock::sleep_until(soonest) => {}
        }
    }

    /// Records a notice that some ticket of this process was admitted, and causes one look at once.
    pub(super) fn told(&self) {
        {
            let mut state = self.state.lock();
            state.heard = state.heard.saturating_add(1);
        }
        self.look_now();
    }

    /// Causes one look at once: some ticket may have been admitted without a notice.
    pub(super) fn look_now(&self) {
        self.state.lock().look_now = true;
        self.notice.notify_one();
    }

    /// Records that notices of admissions have ended.
    pub(super) fn untold(&self) {
        {
            let mut state = self.state.lock();
            (state.heard, state.told) = (0, false);
        }
        self.look_now();
    }

    /// Whether any ticket is watched.
    pub(super) fn are_watched(&self) -> bool {
        self.state.lock().waiting.values().any(|waiting| waiting.watched > 0)
    }

    /// The lines to look at, if a look is due and none is under way. Followed by
    /// [`end_look`](Self::end_look).
    pub(super) fn begin_look(&self) -> Option<Vec<Name>> {
        let mut state = self.state.lock();
        if state.looking || !(state.look_now || state.next <= clock::now()) {
            return None;
        }
        state.look_now = false;
        let watched = state.waiting.values().filter(|waiting| waiting.watched > 0);
        let lines: BTreeSet<Name> = watched.map(|waiting| waiting.line.clone()).collect();
        if lines.is_empty() {
            state.rest();
            return None;
        }
        state.looking = true;
        Some(lines.into_iter().collect())
    }

    /// Wakes the tickets that these fronts have passed. Tickets seen to have their places need not
    /// ask.
    pub(super) fn end_look(&self, fronts: &HashMap<Vec<u8>, Front>) {
        let mut state = self.state.lock();
        let passed = |waiting: &Waiting| {
            let front = fronts.get(waiting.line.as_str().as_bytes());
            front.is_some_and(|front| waiting.seq < front.waits)
        };
        let found: Vec<(TicketId, Waiting)> =
            state.waiting.extract_if(|_, waiting| passed(waiting)).collect();
        state.looking = false;
        if !found.is_empty() {
            state.fruitless = 0;
            state.told = std::mem::take(&mut state.heard) > 0;
        }
        state.rest();
        drop(state);
        for (id, Waiting { line, seq, .. }) in found {
            let front = fronts.get(line.as_str().as_bytes());
            if front.is_some_and(|front| front.first == Some((id, seq))) {
                self.waiters.admit(id, seq);
            } else {
                self.waiters.wake(id);
            }
        }
    }
}

impl State {
    fn rest(&mut self) {
        let pauses = if self.told { PAUSES_IF_TOLD } else { PAUSES };
        self.next = clock::now().after(pauses.pause(self.fruitless, fastrand::u64(..)));
        self.fruitless = self.fruitless.saturating_add(1);
    }
}

/// A ticket that is included in looks.
pub(super) struct Watched<'a>(&'a Watches, TicketId);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.state.lock().waiting.get_mut(&self.1) {
            waiting.watched = waiting.watched.saturating_sub(1);
        }
    }
}
