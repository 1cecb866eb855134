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
const PAUSES_IF_NOTIFIED: Backoff =
    Backoff::exponential(Duration::from_millis(20), Duration::from_millis(800)).jitter(25);

/// The number of waiting tickets at which all are forgotten; their owners ask about them again.
const KEPT: usize = 16_384;

#[derive(Default)]
pub(super) struct Watches {
    pub(super) waiters: Waiters,
    state: Mutex<State>,
    /// Notified when the time of the next look has changed.
    sooner: Notify,
}

#[derive(Default)]
struct State {
    /// The tickets of this process that wait by the server's last report: their lines and places.
    waiting: HashMap<TicketId, (Name, Seq)>,
    /// Whether a task looks.
    looking: bool,
    /// When the next look is due. `None` during a look, unless another is due after it.
    next: Option<Time>,
    /// The number of looks since the last that found a change.
    fruitless: u32,
    /// Whether there was a notice since a look last found an admitted ticket.
    notified: bool,
    /// Whether there was a notice of the last admission found.
    was_notified: bool,
}

impl Watches {
    /// Records a ticket's standing, as the server has just reported it.
    pub(super) fn note(&self, line: &Name, id: TicketId, how: Enter, standing: Standing) {
        let mut state = self.state.lock();
        let Standing::Waiting { seq: Some(seq), .. } = standing else {
            state.waiting.remove(&id);
            return;
        };
        if state.waiting.len() >= KEPT {
            state.waiting.clear();
        }
        state.waiting.insert(id, (line.clone(), seq));
        if how == Enter::Queue {
            state.fruitless = 0;
            state.rest();
            self.sooner.notify_one();
        }
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

    /// Records a notice that some ticket of this process was admitted, and causes a look at once.
    pub(super) fn notified(&self) {
        self.state.lock().notified = true;
        self.look_now();
    }

    /// Causes a look at once: some ticket may have been admitted without a notice.
    pub(super) fn look_now(&self) {
        let mut state = self.state.lock();
        if state.looking {
            state.next = Some(Time(0));
            self.sooner.notify_one();
        }
    }

    /// Records that notices of admissions have ended.
    pub(super) fn listener_ended(&self) {
        {
            let mut state = self.state.lock();
            (state.notified, state.was_notified) = (false, false);
        }
        self.look_now();
    }

    /// Whether any ticket waits.
    pub(super) fn are_waiting(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Whether the caller is to look for admissions from now on, because no other task does.
    pub(super) fn starts_looking(&self) -> bool {
        let mut state = self.state.lock();
        if state.looking {
            return false;
        }
        state.looking = true;
        state.rest();
        true
    }

    /// Waits until a look is due, and returns the lines to look at. `None` if no ticket waits: the
    /// caller then looks no more. Otherwise followed by [`end_look`](Self::end_look).
    pub(super) async fn next_look(&self) -> Option<Vec<Name>> {
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.waiting.is_empty() {
                    (state.looking, state.next) = (false, None);
                    return None;
                }
                if state.next.take_if(|next| *next <= clock::now()).is_some() {
                    let lines = state.waiting.values().map(|(line, _)| line.clone());
                    return Some(lines.collect::<BTreeSet<_>>().into_iter().collect());
                }
                state.next.unwrap_or(Time::NEVER)
            };
            tokio::select! {
                () = self.sooner.notified() => {}
                () = clock::sleep_until(next) => {}
            }
        }
    }

    /// Wakes the tickets that these fronts have passed. Tickets seen to have their places need not
    /// ask.
    pub(super) fn end_look(&self, fronts: &HashMap<Vec<u8>, Front>) {
        let front = |line: &Name| fronts.get(line.as_str().as_bytes());
        let mut state = self.state.lock();
        let passed = state
            .waiting
            .extract_if(|_, (line, seq)| front(line).is_some_and(|front| *seq < front.waits));
        let found: Vec<_> = passed.collect();
        if found.is_empty() {
            state.fruitless = state.fruitless.saturating_add(1);
        } else {
            state.fruitless = 0;
            state.was_notified = std::mem::take(&mut state.notified);
        }
        state.rest();
        drop(state);
        for (id, (line, seq)) in found {
            if front(&line).is_some_and(|front| front.first == Some((id, seq))) {
                self.waiters.admit(id, seq);
            } else {
                self.waiters.wake(id);
            }
        }
    }
}

impl State {
    /// Plans the next look, unless an earlier one is planned.
    fn rest(&mut self) {
        let pauses = if self.was_notified { PAUSES_IF_NOTIFIED } else { PAUSES };
        let next = clock::now().after(pauses.pause(self.fruitless, fastrand::u64(..)));
        self.next = Some(self.next.map_or(next, |earlier| earlier.min(next)));
    }
}
