//! The etcd store's part of a ticket: its key, and its view of those ahead of it.

use super::layout::{self, Member};
use super::session::Session;
use super::slot::Slot;
use crate::clock;
use crate::names::Name;
use crate::store::Ticket;
use crate::stores::ephemeral::ticket::{self, Entry, State};
use crate::stores::ephemeral::view::{Look, View};
use crate::stores::waiters::LossHandler;
use holdline_etcd_client::{News, Watching, proto};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long the answer to a write is awaited: longer than the client awaits one whose caller has
/// given up.
const LANDING: Duration = Duration::from_secs(5);

/// A ticket of an etcd store.
pub(super) type TicketRecord = ticket::TicketRecord<KeyEntry>;
pub(super) type Record = Arc<TicketRecord>;
pub(super) type Place = ticket::Place<KeyEntry>;

/// The part of a key that does not change while its ticket lives.
#[derive(Debug)]
pub(super) struct Base {
    /// The prefix of its line's keys.
    pub(super) prefix: Vec<u8>,
    /// Whether the key is named after the ticket, and its value is a leader's published value.
    pub(super) leads: bool,
    /// Notified when a write in progress has ended.
    pub(super) landed: Notify,
}

/// A ticket's key.
#[derive(Debug)]
pub(super) struct KeyEntry {
    pub(super) session: Arc<Session>,
    pub(super) key: Vec<u8>,
    /// The revision of the last known write of the key: a request that is late no longer finds it.
    pub(super) written: i64,
    /// The later writes that were not answered, each by the revision of the write before it and the
    /// session that it names: the key may be on any of these.
    pub(super) moves: Vec<(i64, Arc<Session>)>,
    /// The slot in the key's name, unless the key is named after the ticket.
    pub(super) slot: Option<Slot>,
    /// Whether the note is written, and in the right key.
    pub(super) noted: bool,
    /// The leases that writes name which may still be answered, once for each such write.
    pub(super) flights: Vec<i64>,
    /// Whether the answer to an attempt to write the key came late, so that nobody has read it.
    pub(super) unread: bool,
    /// When the last request to write the key was sent, if any was that was not refused.
    pub(super) sent: Option<Time>,
    /// The number of deletions without an answer, or answered only at a second attempt. Unless it
    /// is 0, the key is never given to another ticket.
    pub(super) removals: u32,
    /// The leases of writes that were never answered.
    pub(super) doubts: Vec<i64>,
    /// The view of the keys ahead of it.
    pub(super) view: View<Vec<u8>>,
}

impl Entry for KeyEntry {
    type Base = Base;
    type Watch = Watching;

    fn has_room(place: &Place, capacity: u32) -> bool {
        place.entry.view.has_room(place.weight, capacity)
    }

    fn forgotten(place: &mut Place) {
        if let Some(slot) = place.entry.slot.take()
            && (!place.is_settled() || place.entry.removals > 0)
        {
            slot.retire();
        }
    }
}

impl TicketRecord {
    /// A ticket whose key is yet to be written.
    pub(super) fn of(
        line: &Name,
        prefix: Vec<u8>,
        ticket: &Ticket,
        note: &Arc<str>,
        session: Arc<Session>,
        due: Time,
    ) -> Self {
        let leads = layout::word(ticket, note).is_some();
        let slot = (!leads).then(|| session.slots.slot(&prefix));
        let key = layout::key(&prefix, session.lease.id(), ticket, slot.as_ref().map(Slot::number));
        let entry = KeyEntry {
            session,
            key,
            written: 0,
            moves: Vec::new(),
            slot,
            noted: !leads,
            flights: Vec::new(),
            unread: false,
            sent: None,
            removals: 0,
            doubts: Vec::new(),
            view: View::default(),
        };
        let base = Base { prefix, leads, landed: Notify::new() };
        TicketRecord::new(line, ticket, note, due, (base, entry))
    }

    /// Waits until no write of the key is in progress, or the key is known to exist; but not for a
    /// caller that does not poll, or whose runtime stands still.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn land(&self) {
        let Some(sent) = self.with(|place| place.entry.sent) else { return };
        let landing = async {
            loop {
                let mut landed = std::pin::pin!(self.base.landed.notified());
                landed.as_mut().enable();
                if self.with(|place| place.entry.flights.is_empty() || place.create != 0) {
                    return;
                }
                landed.await;
            }
        };
        let _ = clock::within(sent.after(LANDING), landing).await;
    }

    /// Lets another ticket enter, if the outcome of this one's writes is known.
    pub(super) fn settle(&self) {
        let permit = {
            let mut place = self.place();
            if place.create != 0 || place.is_settled() { place.permit.take() } else { None }
        };
        drop(permit); // outside of the mutex: it wakes another caller
    }

    /// Records that its key is there, as it was created and last written.
    pub(super) fn is_there(&self, create: i64, written: i64) {
        self.with(|place| {
            place.entry.written = written;
            place.born(create);
        });
    }

    /// Its key, and the key's create revision.
    pub(super) fn key(&self) -> (Vec<u8>, i64) {
        self.with(|place| (place.entry.key.clone(), place.create))
    }

    /// Applies news from a watch.
    pub(super) fn apply(&self, news: &News<'_>, loss: &LossHandler) {
        match self.with(|place| place.apply(&self.base.prefix, self.capacity, news)) {
            Effect::Nothing => {}
            Effect::Turn => self.wake(),
            Effect::Missed { held } => self.tell(held, loss),
            Effect::Lost => self.lose(loss),
        }
    }
}

/// The meaning of news for a ticket.
enum Effect {
    Nothing,
    /// It is admitted, or it is time to look at the keys ahead.
    Turn,
    /// Changes may have been missed.
    Missed {
        held: bool,
    },
    /// Its key is gone.
    Lost,
}

impl Place {
    /// Whether no request has written the key, or may yet, but those whose answers were read.
    pub(super) fn is_told(&self) -> bool {
        self.is_settled() && !self.entry.unread
    }

    /// Whether no request is left that may yet write the key.
    pub(super) fn is_settled(&self) -> bool {
        self.entry.flights.is_empty() && !self.doubtful
    }

    /// Records the last known write of the key, and the session that it names. Every request that
    /// applies to an earlier write is void from then on.
    pub(super) fn is_written(&mut self, session: &Arc<Session>, at: i64) {
        self.entry.session = Arc::clone(session);
        self.entry.written = at;
        self.entry.moves.retain(|(last, _)| *last >= at);
    }

    /// Applies news, if they are later than the view.
    fn apply(&mut self, prefix: &[u8], capacity: u32, news: &News<'_>) -> Effect {
        let (deleted, kv) = match news {
            News::Event(proto::Event { kind, kv: Some(kv) }) => (*kind == proto::DELETED, kv),
            News::From(revision) => {
                let missed = self.entry.view.seen() < *revision;
                return if missed { self.doubt() } else { Effect::Nothing };
            }
            News::Event(_) | News::Gap => return self.doubt(),
            News::Silence => {
                self.miss(); // the next renewal asks
                return Effect::Nothing;
            }
        };
        if deleted && kv.key == self.entry.key && kv.mod_revision > self.create {
            return Effect::Lost;
        }
        if !self.entry.view.has(&kv.key) {
            return Effect::Nothing;
        }
        let new = match Member::read(prefix, kv) {
            _ if deleted => None,
            Some(member) => Some(member.weight(capacity)),
            None => return Effect::Nothing,
        };
        let share = (self.weight, capacity);
        let asks = self.entry.view.change((&kv.key, new), kv.mod_revision, share);
        if asks { Effect::Turn } else { Effect::Nothing }
    }

    fn doubt(&mut self) -> Effect {
        self.miss();
        Effect::Missed { held: self.state == State::Held }
    }

    /// Applies a look at the keys ahead, requested when `missed` had this value. `false` if the
    /// look does not determine the ticket's standing.
    pub(super) fn see(&mut self, look: Look<Vec<u8>>, capacity: u32, missed: u64) -> bool {
        let tells = self.entry.view.take(look, self.weight, capacity);
        if tells {
            self.answered(missed);
        }
        tells
    }
}
