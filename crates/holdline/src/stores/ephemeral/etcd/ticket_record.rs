//! The etcd store's part of a ticket: its key, and what is known of those ahead of it.

use super::layout::{self, Member};
use super::session::Session;
use super::slot::Slot;
use crate::names::Name;
use crate::store::Ticket;
use crate::stores::ephemeral::ticket::{self, Entry, State};
use crate::stores::ephemeral::view::{Look, View};
use crate::stores::waiters::LossHandler;
use holdline_etcd_client::{News, Watching, proto};
use holdline_kernel::Time;
use std::sync::Arc;
use tokio::sync::Notify;

/// A ticket of an etcd store.
pub(super) type TicketRecord = ticket::TicketRecord<KeyEntry>;
pub(super) type Record = Arc<TicketRecord>;
pub(super) type Place = ticket::Place<KeyEntry>;

/// What does not change about a key while its ticket lives.
#[derive(Debug)]
pub(super) struct Base {
    /// The beginning of the keys of its line.
    pub(super) prefix: Vec<u8>,
    /// The key is named after the ticket, and its value is a leader's word.
    pub(super) leads: bool,
    /// Notified when a write that was under way is over.
    pub(super) landed: Notify,
}

/// A ticket's key.
#[derive(Debug)]
pub(super) struct KeyEntry {
    pub(super) session: Arc<Session>,
    pub(super) key: Vec<u8>,
    /// The number in the key's name, unless that is named after the ticket.
    pub(super) slot: Option<Slot>,
    /// The note is written as it should be, in the key where it should be.
    pub(super) noted: bool,
    /// The number of writes whose answers may still come.
    pub(super) flights: u32,
    /// A request to write the key was sent.
    pub(super) sent: bool,
    /// The number of deletions without an answer, or whose answer is that of a second try. Unless
    /// it is 0 the key never is another ticket's.
    pub(super) removals: u32,
    /// The leases of writes that were never answered.
    pub(super) doubts: Vec<i64>,
    /// What is known of the keys ahead of it.
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
            && (place.doubtful || place.entry.removals > 0)
        {
            slot.retire();
        }
    }
}

impl TicketRecord {
    /// A ticket whose key is still to be written.
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
            slot,
            noted: !leads,
            flights: 0,
            sent: false,
            removals: 0,
            doubts: Vec::new(),
            view: View::default(),
        };
        let base = Base { prefix, leads, landed: Notify::new() };
        TicketRecord::new(line, ticket, note, due, (base, entry))
    }

    /// Waits until no write of the key is under way, or the key is known to be there.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn land(&self) {
        loop {
            let mut landed = std::pin::pin!(self.base.landed.notified());
            landed.as_mut().enable();
            if self.with(|place| place.entry.flights == 0 || place.create != 0) {
                return;
            }
            landed.await;
        }
    }

    /// Lets another ticket enter, if the outcome of this one's writes is known.
    pub(super) fn settle(&self) {
        let mut place = self.place();
        if place.create != 0 || (place.entry.flights == 0 && !place.doubtful) {
            place.permit = None;
        }
    }

    /// Its key, and when that was created.
    pub(super) fn key(&self) -> (Vec<u8>, i64) {
        self.with(|place| (place.entry.key.clone(), place.create))
    }

    /// Takes in what a watch says.
    pub(super) fn hear(&self, news: &News<'_>, loss: &LossHandler) {
        match self.with(|place| place.hear(&self.base.prefix, self.capacity, news)) {
            Heard::Nothing => {}
            Heard::Turn => self.news.notify_one(),
            Heard::Missed { held } => self.tell(held, loss),
            Heard::Lost => self.lose(loss),
        }
    }
}

/// What news mean for a ticket.
enum Heard {
    Nothing,
    /// It is admitted, or it is time to look who is ahead.
    Turn,
    /// Changes may have been missed.
    Missed {
        held: bool,
    },
    /// Its key is gone.
    Lost,
}

impl Place {
    /// Takes in news, as far as they are of later than what was seen.
    fn hear(&mut self, prefix: &[u8], capacity: u32, news: &News<'_>) -> Heard {
        let (deleted, kv) = match news {
            News::Event(proto::Event { kind, kv: Some(kv) }) => (*kind == proto::DELETED, kv),
            News::From(revision) => {
                let missed = self.entry.view.seen() < *revision;
                return if missed { self.doubt() } else { Heard::Nothing };
            }
            News::Event(_) | News::Gap => return self.doubt(),
        };
        if deleted && kv.key == self.entry.key && kv.mod_revision > self.create {
            return Heard::Lost;
        }
        if !self.entry.view.has(&kv.key) {
            return Heard::Nothing;
        }
        let new = match Member::read(prefix, kv) {
            _ if deleted => None,
            Some(member) => Some(member.weight(capacity)),
            None => return Heard::Nothing,
        };
        let share = (self.weight, capacity);
        let asks = self.entry.view.change((&kv.key, new), kv.mod_revision, share);
        if asks { Heard::Turn } else { Heard::Nothing }
    }

    fn doubt(&mut self) -> Heard {
        self.miss();
        Heard::Missed { held: self.state == State::Held }
    }

    /// Takes in a look at the keys ahead, which was asked for when changes had been missed so many
    /// times. `false` if that does not tell how the ticket stands.
    pub(super) fn see(&mut self, look: Look<Vec<u8>>, capacity: u32, missed: u64) -> bool {
        let tells = self.entry.view.take(look, self.weight, capacity);
        if tells {
            self.answered(missed);
        }
        tells
    }
}
