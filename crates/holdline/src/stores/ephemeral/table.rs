//! The tickets of a store in this process, and when each needs maintenance.

use super::ticket::{Entry, TicketRecord};
use crate::clock;
use crate::store::TicketId;
use crate::stores::recent::Recent;
use crate::stores::waiters::LossHandler;
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore};

/// How many lapsed tickets are remembered.
const LAPSED: usize = 512;
/// How many tickets that asked for a place are remembered.
const ENTERED: usize = 1 << 15;
/// How many lapsed entries are removed at once.
const SWEEPS: usize = 32;

/// The table of tickets.
#[derive(Debug)]
pub(super) struct Table<E: Entry> {
    slots: Mutex<Slots<E>>,
    pub(super) loss: LossHandler,
    /// One permit for each write of an entry with an unknown outcome.
    pub(super) entering: Arc<Semaphore>,
    pub(super) sweeps: Semaphore,
    /// Tickets that asked for a place. One of these without a record has no entry, and will have
    /// none: the store removes a ticket from this set if it cannot be sure of that.
    pub(super) entered: Recent,
    /// Tickets that have lapsed. One that asks again would share its id with an entry that is being
    /// removed.
    pub(super) lapsed: Recent,
    /// Wakes the janitor.
    pub(super) nudge: Arc<Notify>,
}

#[derive(Debug)]
struct Slots<E: Entry> {
    records: HashMap<TicketId, Slot<E>>,
    /// The slots, by the time of their next maintenance.
    looks: BTreeSet<(Time, TicketId)>,
}

#[derive(Debug)]
struct Slot<E: Entry> {
    record: Arc<TicketRecord<E>>,
    look: Time,
}

impl<E: Entry> Slots<E> {
    /// Schedules the maintenance of a ticket at this time, or earlier if it is due earlier.
    fn look_at(&mut self, id: TicketId, time: Time) {
        let Some(slot) = self.records.get_mut(&id) else { return };
        if time < slot.look {
            self.looks.remove(&(slot.look, id));
            slot.look = time;
            self.looks.insert((time, id));
        }
    }
}

impl<E: Entry> Table<E> {
    /// A table for a store with at most `entering` concurrent writes of entries.
    pub(super) fn new(entering: usize) -> Self {
        Table {
            slots: Mutex::new(Slots { records: HashMap::new(), looks: BTreeSet::new() }),
            loss: LossHandler::default(),
            entering: Arc::new(Semaphore::new(entering)),
            sweeps: Semaphore::new(SWEEPS),
            entered: Recent::new(ENTERED),
            lapsed: Recent::new(LAPSED),
            nudge: Arc::default(),
        }
    }

    pub(super) fn find(&self, id: TicketId) -> Option<Arc<TicketRecord<E>>> {
        self.slots.lock().records.get(&id).map(|slot| Arc::clone(&slot.record))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.lock().records.is_empty()
    }

    /// Adds a ticket. `false` if its id is in the table already.
    pub(super) fn insert(&self, record: &Arc<TicketRecord<E>>) -> bool {
        let first = {
            let mut slots = self.slots.lock();
            if slots.records.contains_key(&record.id) {
                return false;
            }
            let slot = Slot { record: Arc::clone(record), look: Time::NEVER };
            slots.records.insert(record.id, slot);
            slots.look_at(record.id, clock::now());
            slots.records.len() == 1
        };
        if first {
            self.nudge.notify_one();
        }
        true
    }

    /// Removes a ticket that no longer has an entry, and ends its watches.
    pub(super) fn forget(&self, record: &TicketRecord<E>) {
        let forgotten = {
            let mut slots = self.slots.lock();
            // There may be a newer ticket of the same id.
            let same = |slot: &Slot<E>| std::ptr::eq(&raw const *slot.record, record);
            let is_same = slots.records.get(&record.id).is_some_and(same);
            let slot = is_same.then(|| slots.records.remove(&record.id)).flatten();
            if let Some(slot) = &slot {
                slots.looks.remove(&(slot.look, record.id));
            }
            slot
        };
        let ended = record.with(|place| {
            E::forgotten(place);
            (std::mem::take(&mut place.watches), place.permit.take())
        });
        drop((ended, forgotten)); // without the mutexes
    }

    /// Schedules the maintenance of a ticket at the next tick.
    pub(super) fn look_soon(&self, id: TicketId) {
        self.look_at(id, clock::now());
    }

    pub(super) fn look_at(&self, id: TicketId, time: Time) {
        self.slots.lock().look_at(id, time);
    }

    /// Takes the tickets that are due now from the schedule.
    pub(super) fn due(&self, now: Time) -> Vec<Arc<TicketRecord<E>>> {
        let mut guard = self.slots.lock();
        let Slots { records, looks } = &mut *guard;
        let mut due = Vec::new();
        while let Some(first) = looks.first().filter(|(time, _)| *time <= now).copied() {
            looks.remove(&first);
            if let Some(slot) = records.get_mut(&first.1) {
                slot.look = Time::NEVER;
                due.push(Arc::clone(&slot.record));
            }
        }
        due
    }

    pub(super) fn all(&self) -> Vec<Arc<TicketRecord<E>>> {
        self.slots.lock().records.values().map(|slot| Arc::clone(&slot.record)).collect()
    }

    /// Marks a ticket as gone, if it belongs to this process.
    pub(super) fn lose(&self, id: TicketId) {
        if let Some(record) = self.find(id) {
            record.lose(&self.loss);
        }
    }

    /// Marks the tickets selected by `theirs` as gone, because their session has ended. Those that
    /// were not held are removed at once: as long as the servers keep their entries, they block
    /// others. A held one is not removed before its holder is sure to know of the loss: returns
    /// when that is for all of them, if there are any.
    pub(super) fn lose_all(&self, theirs: impl Fn(&TicketRecord<E>) -> bool) -> Option<Time> {
        let (now, mut relied_on) = (clock::now(), None);
        for record in self.all().into_iter().filter(|record| theirs(record)) {
            record.lose(&self.loss);
            record.with(|place| {
                if place.was_held() {
                    relied_on = relied_on.max(Some(place.due));
                } else {
                    place.due = place.due.min(now);
                }
            });
            self.look_soon(record.id);
        }
        relied_on
    }
}

#[cfg(test)]
mod tests {
    use super::super::ticket::State;
    use super::super::ticket::tests::{First, record};
    use super::*;

    fn ids(table: &Table<First>, now: u64) -> Vec<u128> {
        table.due(Time(now)).iter().map(|record| record.id.0).collect()
    }

    #[test]
    fn a_ticket_is_looked_after_when_it_is_due_and_only_then() {
        let table = Table::<First>::new(1);
        let records: Vec<_> = (0..3).map(|id| Arc::new(record(id, Time::NEVER))).collect();
        assert!(records.iter().all(|record| table.insert(record)));
        assert!(!table.insert(&records[0]), "there is one of this id");
        let now = clock::now().0;
        assert_eq!(ids(&table, now), [0, 1, 2], "each of them once, soon after it came");
        assert_eq!(ids(&table, u64::MAX - 1), []);
        for (id, time) in [(0, 30), (1, 10), (2, 20), (0, 5), (1, 40)] {
            table.look_at(TicketId(id), Time(time));
        }
        table.forget(&records[2]);
        assert_eq!(ids(&table, 4), []);
        assert_eq!(
            ids(&table, 10),
            [0, 1],
            "at the sooner of two times, and what is forgotten not"
        );
        assert_eq!(ids(&table, 50), []);
    }

    #[test]
    fn what_is_forgotten_leaves_nothing_behind() {
        let table = Table::<First>::new(1);
        let (old, new) = (Arc::new(record(1, Time::NEVER)), Arc::new(record(1, Time::NEVER)));
        table.insert(&old);
        table.forget(&old);
        assert!(table.is_empty() && table.slots.lock().looks.is_empty());
        table.insert(&new);
        table.forget(&old);
        assert!(table.find(TicketId(1)).is_some(), "it is a newer one of the same id");
    }

    #[test]
    fn a_ticket_that_is_forgotten_gives_back_what_it_held() {
        let table = Table::<First>::new(1);
        let record = Arc::new(record(1, Time::NEVER));
        table.insert(&record);
        record.with(|place| {
            place.watches.push(());
            place.permit = Arc::clone(&table.entering).try_acquire_owned().ok();
        });
        assert_eq!(table.entering.available_permits(), 0);
        table.forget(&record);
        assert_eq!(table.entering.available_permits(), 1);
        let (watches, is_told) = record.with(|place| (place.watches.len(), !place.entry.0));
        assert!(watches == 0 && is_told);
    }

    #[test]
    fn the_tickets_of_a_session_are_lost_with_it() {
        let table = Table::<First>::new(1);
        for id in 0..4 {
            table.insert(&Arc::new(record(id, Time(u64::MAX - 2))));
        }
        assert_eq!(table.due(clock::now()).len(), 4, "they have come");
        assert_eq!(table.lose_all(|record| record.id.0 == 0), None);
        let held = table.find(TicketId(2)).expect("it is known");
        held.place().state = State::Held;
        let known = table.lose_all(|record| record.id.0 % 2 == 0);
        assert_eq!(known, Some(held.place().due), "its holder may rely on it until then");
        let due = table.find(TicketId(0)).expect("it is known").place().due;
        assert!(due <= clock::now(), "it only blocks others");
        assert_eq!(ids(&table, clock::now().0), [0, 2], "the janitor need not come by first");
        table.lose(TicketId(1));
        table.lose(TicketId(9));
        let gone = |id| table.find(TicketId(id)).expect("it is known").place().is_gone();
        assert_eq!([0, 1, 2, 3].map(gone), [true, true, true, false]);
    }
}
