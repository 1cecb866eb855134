//! A store wrapper that records what only a store sees: places in the line, and renewals.
//!
//! The library renews and queues behind its API, so without this the order of the line could not be
//! judged, and renewals would be missing from the history. It passes everything on unchanged.

use holdline::store::{
    AsyncStore, Capabilities, Enter, Lines, LossHint, QueueSnapshot, Seq, Standing, Store,
    Subscription, Ticket, TicketId,
};
use holdline::{Name, Result, clock};
use holdline_checker::{Event, Op, Phase, Reason, Writer};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

tokio::task_local! {
    /// The current task's attempt, to which its ticket belongs.
    pub(crate) static ATTEMPT: u64;
}

/// The known state of a ticket.
#[derive(Clone, Copy)]
struct Known {
    attempt: u64,
    place: Option<Seq>,
    /// When the last answered request was sent, on the history's clock.
    confirmed: u64,
    holds: bool,
}

struct Notes {
    writer: Arc<Writer>,
    known: Mutex<AllKnown>,
}

#[derive(Default)]
struct AllKnown {
    tickets: HashMap<TicketId, Known>,
    /// The last ticket of an attempt, which gets another one if its place is lost.
    last: HashMap<u64, TicketId>,
}

#[derive(Clone)]
pub(crate) struct RecordingStore {
    store: Arc<dyn Store>,
    notes: Arc<Notes>,
    /// Whether it answers "admitted" to one in ten waiters: a planted bug, to see that it is found.
    deceives: bool,
}

impl RecordingStore {
    pub(crate) fn new(store: Arc<dyn Store>, writer: Arc<Writer>, deceives: bool) -> Self {
        RecordingStore {
            store,
            notes: Arc::new(Notes { writer, known: Mutex::default() }),
            deceives,
        }
    }

    /// The answer as it is passed on.
    fn told(&self, answer: Result<Standing>) -> Result<Standing> {
        match answer {
            Ok(Standing::Waiting { seq: Some(seq), .. }) if self.deceives && seq.0 % 10 == 0 => {
                Ok(Standing::Admitted(seq))
            }
            answer => answer,
        }
    }
}

impl Notes {
    fn known(&self, id: TicketId) -> Option<Known> {
        let mut all = self.known.lock().unwrap();
        if let Some(known) = all.tickets.get(&id) {
            return Some(*known);
        }
        let attempt = ATTEMPT.try_with(|n| *n).ok()?;
        let before = all.last.insert(attempt, id).and_then(|id| all.tickets.get(&id).copied());
        let first = Known { attempt, place: None, confirmed: 0, holds: false };
        // What the ticket before held was lost before the attempt was told of it.
        let known = before.map_or(first, |before| Known { holds: false, ..before });
        all.tickets.insert(id, known);
        Some(known)
    }

    /// Records the answer to a ticket that did not hold before, and when it was asked. A place is
    /// recorded when it is new or has changed; then with the time since the request that had
    /// confirmed the previous one, of this ticket or of an earlier one of the same attempt, during
    /// which the store may have received nothing.
    fn answered(&self, id: TicketId, known: Known, sent: u64, answer: &Result<Standing>) {
        let place = match answer {
            Ok(Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) => *seq,
            _ => return,
        };
        let holds = matches!(answer, Ok(Standing::Admitted(_)));
        let event = Event::new(Op::Enqueue, Phase::Ok, known.attempt).fence(place.0);
        match known.place {
            Some(old) if old != place => {
                let silence = clock::now().0.saturating_sub(known.confirmed) / 1_000_000;
                self.writer.write(event.ttl_ms(silence)).unwrap();
            }
            None if !holds => _ = self.writer.write(event).unwrap(),
            _ => {}
        }
        // A place that replaces a lost one may be lost with the session that lost that: it counts
        // once it is confirmed.
        let confirmed =
            if known.place.is_none_or(|old| old == place) { sent } else { known.confirmed };
        let place = known.place.or((!holds).then_some(place)).map(|_| place);
        let now = Known { place, confirmed, holds, ..known };
        self.known.lock().unwrap().tickets.insert(id, now);
    }

    /// Records the answer to a renewal.
    fn renewed(&self, known: Known, k: u64, answer: &Result<Standing>) {
        let event = |ph| Event::new(Op::Renew, ph, known.attempt).k(k);
        let event = match answer {
            Ok(Standing::Admitted(seq)) => event(Phase::Ok).fence(seq.0),
            Ok(_) => event(Phase::Fail).reason(Reason::NotHeld),
            Err(_) => event(Phase::Info),
        };
        self.writer.write(event).unwrap();
    }
}

impl AsyncStore for RecordingStore {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        let Some(known) = self.notes.known(ticket.id) else {
            return self.store.enter(line, ticket, note, how).await;
        };
        if !known.holds {
            let sent = clock::now().0;
            let answer = self.told(self.store.enter(line, ticket, note, how).await);
            let known = self.notes.known(ticket.id).unwrap_or(known);
            self.notes.answered(ticket.id, known, sent, &answer);
            return answer;
        }
        let k = self.notes.writer.next_n();
        self.notes.writer.write(Event::new(Op::Renew, Phase::Invoke, known.attempt).k(k)).unwrap();
        let answer = self.store.enter(line, ticket, note, how).await;
        self.notes.renewed(known, k, &answer);
        answer
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        self.store.leave(line, id).await
    }

    async fn watch(&self, line: &Name, id: TicketId) -> Result<Option<Seq>> {
        let told = self.store.watch(line, id).await?;
        if let (Some(seq), Some(known)) = (told, self.notes.known(id)) {
            self.notes.answered(id, known, known.confirmed, &Ok(Standing::Admitted(seq)));
        }
        Ok(told)
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        self.store.snapshot(line).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        self.store.list(prefix).await
    }

    async fn evict(&self, line: &Name, id: TicketId, why: &str) -> Result<Option<Seq>> {
        self.store.evict(line, id, why).await
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        self.store.subscribe(lines)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn background_handle(&self) -> Self {
        let notes = Arc::clone(&self.notes);
        RecordingStore { store: self.store.background_handle(), notes, deceives: self.deceives }
    }

    /// `open` has already given the store the same alarm.
    fn on_loss_hint(&self, _alarm: LossHint) {}

    fn address(&self) -> String {
        self.store.address()
    }
}

impl fmt::Debug for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
