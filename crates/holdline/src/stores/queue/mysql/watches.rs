//! The waiters of this process: their wake-ups, and when to look whether others admitted them.

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

/// The pauses between two looks, while nothing changes.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(2), Duration::from_millis(100)).jitter(25);
/// The same of a process that was told of its last admission.
const PAUSES_IF_TOLD: Backoff =
    Backoff::exponential(Duration::from_millis(20), Duration::from_millis(800)).jitter(25);

/// The number of waiting tickets at which those that nobody watches are dropped; they are looked at
/// again by their owners.
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
    /// The looks since the last that found a change.
    fruitless: u32,
    next: Time,
    looking: bool,
    /// A look is due whatever the time is.
    look_now: bool,
    /// The notices since a look last found somebody admitted.
    heard: u32,
    /// Whether there was one of the last admission that was found.
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

    /// Records what the server has just said of a ticket.
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

    /// Whether a ticket of this process waited when the server last spoke of it.
    pub(super) fn waits(&self, id: TicketId) -> bool {
        self.state.lock().waiting.contains_key(&id)
    }

    pub(super) fn forget(&self, id: TicketId) {
        self.state.lock().waiting.remove(&id);
    }

    /// Wakes those of this process among the tickets that were admitted.
    pub(super) fn admit(&self, woken: &[(TicketId, Seq)]) {
        for (id, seq) in woken {
            let waiting = self.state.lock().waiting.remove(id);
            if waiting.is_some() {
                self.waiters.admit(*id, *seq);
            }
        }
    }

    /// Wakes the waiter of a ticket that was evicted, and hints that it is gone if it held.
    pub(super) fn evicted(&self, id: TicketId) {
        self.forget(id);
        self.waiters.evicted(id);
    }

    /// Has this ticket looked for until the answer is dropped.
    pub(super) fn watched(&self, id: TicketId) -> Watched<'_> {
        if let Some(waiting) = self.state.lock().waiting.get_mut(&id) {
            waiting.watched += 1;
        }
        Watched(self, id)
    }

    /// Waits until it is time for a look.
    pub(super) async fn pause(&self) {
        let (next, looking) = {
            let state = self.state.lock();
            (state.next, state.looking)
        };
        // A look that is under way sets the time of the next.
        let soonest = if looking { clock::now().after(PAUSES.pause(1, 0)) } else { next };
        tokio::select! {
            () = self.notice.notified() => {}
            () = clock::sleep_until(soonest) => {}
        }
    }

    /// Some ticket of this process was admitted, as its listener was told: one looks, at once.
    pub(super) fn told(&self) {
        {
            let mut state = self.state.lock();
            state.heard = state.heard.saturating_add(1);
        }
        self.look_now();
    }

    /// Has one look at once: some ticket may have been admitted unheard.
    pub(super) fn look_now(&self) {
        self.state.lock().look_now = true;
        self.notice.notify_one();
    }

    /// The process is not told of admissions any more.
    pub(super) fn untold(&self) {
        {
            let mut state = self.state.lock();
            (state.heard, state.told) = (0, false);
        }
        self.look_now();
    }

    /// Whether a ticket is waited for.
    pub(super) fn are_watched(&self) -> bool {
        self.state.lock().waiting.values().any(|waiting| waiting.watched > 0)
    }

    /// The lines to look at, if it is time and nobody else looks. Followed by
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

    /// Wakes the tickets that are in front of these fronts. Those that are seen to have their
    /// places need not ask.
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

/// A ticket that is looked for.
pub(super) struct Watched<'a>(&'a Watches, TicketId);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.state.lock().waiting.get_mut(&self.1) {
            waiting.watched = waiting.watched.saturating_sub(1);
        }
    }
}
