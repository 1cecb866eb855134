//! What this process knows about one of its tickets.

use super::layout::{self, Member};
use super::proto;
use super::session::Session;
use super::slot::Slot;
use super::watcher::{News, Watching};
use crate::names::Name;
use crate::store::{LossHint, Ticket, TicketId};
use crate::sync::Mutex;
use holdline_kernel::{Time, rule};
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// One ticket of this process, from before its key is written until after it is deleted.
#[derive(Debug)]
pub(super) struct TicketRecord {
    pub(super) id: TicketId,
    pub(super) line: Name,
    /// What begins the keys of its line.
    pub(super) prefix: Vec<u8>,
    pub(super) capacity: u32,
    /// Its key is named after it, and has a leader's word.
    pub(super) leads: bool,
    place: Mutex<Place>,
    /// Its standing may have changed.
    pub(super) news: Notify,
    /// A write that was under way is so no more.
    pub(super) landed: Notify,
}

/// What changes about it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact, and most may be so together")]
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    pub(super) key: Vec<u8>,
    /// What the key is named after, unless that is the ticket.
    pub(super) slot: Option<Slot>,
    /// When its key was created: its place in the line. 0 as long as that is not known.
    pub(super) create: i64,
    pub(super) weight: u32,
    pub(super) lease: Duration,
    pub(super) note: Arc<str>,
    /// The note is as it should be, in the place where it should be.
    pub(super) noted: bool,
    pub(super) admitted: bool,
    /// It is gone from the store, or must be taken for that.
    pub(super) gone: bool,
    /// We are giving it up ourselves.
    pub(super) leaving: bool,
    /// Writes whose answers may still come.
    pub(super) flights: u32,
    /// A request to write its key was sent at some time.
    pub(super) sent: bool,
    /// Some request to write it was never answered: it may still be on its way.
    pub(super) doubtful: bool,
    /// The leases that such requests named.
    pub(super) doubts: Vec<i64>,
    /// Held from before its key is written until it is known whether it was.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// Something about it was missed: ask the store.
    pub(super) unsure: bool,
    /// Nobody has said since then that it is still wanted: it lapses.
    pub(super) due: Time,
    /// The revision at which the following was so.
    pub(super) seen: i64,
    /// The revision at which the watch over the following began.
    pub(super) begun: i64,
    /// Those who keep it out, and their weights: the nearest, as many as it takes.
    pub(super) ahead: HashMap<Vec<u8>, u32>,
    /// Whether those are all who were ahead at all.
    pub(super) all: bool,
    pub(super) watches: Vec<Watching>,
    /// What the watches are for: 0 nothing, 1 its own key, 2 those ahead too.
    pub(super) watched: u8,
}

impl TicketRecord {
    pub(super) fn new(
        line: &Name,
        prefix: Vec<u8>,
        ticket: &Ticket,
        note: &Arc<str>,
        session: Arc<Session>,
        due: Time,
    ) -> Self {
        let leads = layout::word(ticket, note).is_some();
        let slot = (!leads).then(|| session.slot(&prefix));
        let key = layout::key(&prefix, session.lease, ticket, slot.as_ref().map(Slot::number));
        let place = Place {
            session,
            key,
            slot,
            create: 0,
            weight: ticket.weight,
            lease: ticket.lease,
            noted: !leads,
            note: Arc::clone(note),
            admitted: false,
            gone: false,
            leaving: false,
            flights: 0,
            sent: false,
            doubtful: false,
            doubts: Vec::new(),
            permit: None,
            unsure: false,
            due,
            seen: 0,
            begun: 0,
            ahead: HashMap::new(),
            all: false,
            watches: Vec::new(),
            watched: 0,
        };
        TicketRecord {
            id: ticket.id,
            line: line.clone(),
            prefix,
            capacity: ticket.capacity,
            leads,
            place: Mutex::new(place),
            news: Notify::new(),
            landed: Notify::new(),
        }
    }

    /// Waits until it is known whether its key is written, or that nobody knows.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn land(&self) {
        loop {
            let mut landed = std::pin::pin!(self.landed.notified());
            landed.as_mut().enable();
            {
                let place = self.place();
                if place.flights == 0 || place.create != 0 {
                    return;
                }
            }
            landed.await;
        }
    }

    /// Lets another ticket enter, if it is known what became of this one.
    pub(super) fn settle(&self) {
        let mut place = self.place();
        if place.create != 0 || (place.flights == 0 && !place.doubtful) {
            place.permit = None;
        }
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock()
    }

    /// Its key, and when that was created.
    pub(super) fn key(&self) -> (Vec<u8>, i64) {
        let place = self.place();
        (place.key.clone(), place.create)
    }

    /// It is wanted, for its lease or its wait lease from then on. Its place, and whether that is
    /// admitted; nothing if it is gone.
    ///
    /// All in one step, as [`TicketRecord::lapse`] is: a place that is wanted never looks as if it
    /// were not, and one that was found not to be wanted is never wanted again.
    pub(super) fn stand(&self, ticket: &Ticket, began: Time, new: bool) -> Option<(i64, bool)> {
        let mut place = self.place();
        if place.gone {
            return None;
        }
        if !place.admitted && place.all && place.fits(self.capacity) {
            place.admit();
        }
        let time = if place.admitted { ticket.lease } else { ticket.wait_lease };
        let until = began.after(time);
        place.due = if new { until } else { place.due.max(until) };
        Some((place.create, place.admitted))
    }

    /// Whether it is wanted no more, and so to be swept away: then it is gone.
    pub(super) fn lapse(&self, now: Time, loss_hint: &OnceLock<LossHint>) -> bool {
        let held = {
            let mut place = self.place();
            // One that is just entering may have set out late.
            let grace = Duration::from_secs(if place.create == 0 { 10 } else { 0 });
            if place.leaving || now < place.due.after(grace) {
                return false;
            }
            place.leaving = true;
            !std::mem::replace(&mut place.gone, true) && place.admitted
        };
        self.news.notify_one();
        if held && let Some(loss_hint) = loss_hint.get() {
            loss_hint(self.id);
        }
        true
    }

    /// It is gone, and whoever cares is told, unless we are giving it up ourselves.
    pub(super) fn lose(&self, loss_hint: &OnceLock<LossHint>) {
        let held = {
            let mut place = self.place();
            // While we are giving it up, the answer to that says whether it was there.
            if place.gone || place.leaving {
                return;
            }
            place.gone = true;
            place.admitted
        };
        self.news.notify_one();
        if held && let Some(loss_hint) = loss_hint.get() {
            loss_hint(self.id);
        }
    }

    /// Takes in what a watch says.
    pub(super) fn hear(&self, news: &News<'_>, loss_hint: &OnceLock<LossHint>) {
        let (kind, kv) = match news {
            News::Event(proto::Event { kind, kv: Some(kv) }) => (kind, kv),
            News::From(revision) => {
                let missed = {
                    let mut place = self.place();
                    place.begun = *revision;
                    place.seen < *revision
                };
                if missed {
                    self.miss(loss_hint);
                }
                return;
            }
            News::Event(_) | News::Gap => {
                self.miss(loss_hint);
                return;
            }
        };
        let deleted = *kind == proto::DELETED;
        let mut place = self.place();
        if deleted && kv.key == place.key && kv.mod_revision > place.create {
            drop(place);
            self.lose(loss_hint);
            return;
        }
        if kv.mod_revision <= place.seen {
            return; // of before we last looked
        }
        if deleted {
            if place.ahead.remove(&kv.key).is_none() {
                return;
            }
        } else {
            let Some(weight) = place.ahead.get_mut(&kv.key) else { return };
            let Some(member) = Member::read(&self.prefix, kv) else { return };
            *weight = (*weight).min(member.weight(self.capacity));
        }
        let admitted = place.fits(self.capacity);
        drop(place);
        if admitted {
            self.news.notify_one();
        }
    }

    /// Something may have been missed.
    fn miss(&self, loss_hint: &OnceLock<LossHint>) {
        let mut place = self.place();
        place.unsure = true;
        let held = place.admitted;
        drop(place);
        self.news.notify_one();
        if held && let Some(loss_hint) = loss_hint.get() {
            loss_hint(self.id);
        }
    }
}

impl Place {
    /// The rule, by the tickets that are known to be ahead.
    pub(super) fn fits(&self, capacity: u32) -> bool {
        let ahead = self.ahead.values().map(|weight| u64::from(*weight)).sum();
        rule::fits(ahead, self.weight, capacity)
    }

    /// Takes in who is ahead, all or only the nearest.
    pub(super) fn see(&mut self, revision: i64, ahead: HashMap<Vec<u8>, u32>, all: bool) {
        // What was watched for was others.
        let same = ahead.keys().all(|key| self.ahead.contains_key(key));
        if self.watched == 2 && !same {
            self.watched = 0;
        }
        self.ahead = ahead;
        self.all = all;
        self.unchanged_at(revision);
    }

    /// Those ahead are as they were.
    pub(super) fn unchanged_at(&mut self, revision: i64) {
        self.seen = self.seen.max(revision);
        // What came between this and the beginning of the watch is not known.
        self.unsure = self.watched == 2 && revision < self.begun;
    }

    pub(super) fn admit(&mut self) {
        self.admitted = true;
        self.ahead = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn record(ticket: &Ticket) -> TicketRecord {
        let name = Name::new("x").expect("good");
        let session = Arc::new(Session::for_test());
        let due = clock::now().after(ticket.lease);
        let record = TicketRecord::new(&name, b"x/".to_vec(), ticket, &Arc::from(""), session, due);
        record.place().create = 7;
        record.place().all = true;
        record
    }

    fn ticket() -> Ticket {
        let lease = Duration::from_secs(60);
        let id = TicketId(5);
        Ticket {
            id,
            weight: 1,
            capacity: 1,
            lease,
            wait_lease: lease,
            token_count: 1,
            min_token: 0,
        }
    }

    /// A place was swept away in the moment in which it was taken.
    #[test]
    fn a_place_that_is_taken_never_lapses() {
        let (ticket, loss_hint, over) = (ticket(), OnceLock::new(), AtomicBool::new(false));
        let record = record(&ticket);
        std::thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(!record.lapse(clock::now(), &loss_hint), "it was wanted all the time");
                }
            });
            for round in 0..200_000 {
                let stands = record.stand(&ticket, clock::now(), round % 2 == 0);
                if stands != Some((7, true)) {
                    break; // the other thread says why
                }
            }
            over.store(true, Ordering::Relaxed);
            sweeper.join().expect("it never lapsed");
        });
    }

    /// A renewal that comes at the last moment is refused, or keeps the place: never both.
    #[test]
    fn a_place_that_lapsed_is_not_renewed() {
        let (ticket, loss_hint) = (ticket(), OnceLock::new());
        for _ in 0..500 {
            let record = record(&ticket);
            record.place().due = clock::now();
            let (renewed, lapsed) = std::thread::scope(|scope| {
                let lapses = scope.spawn(|| record.lapse(clock::now(), &loss_hint));
                let stands = record.stand(&ticket, clock::now(), false);
                (stands.is_some(), lapses.join().expect("no panic"))
            });
            assert!(renewed != lapsed, "renewed: {renewed}; swept away: {lapsed}");
        }
    }

    /// The keys of a line are few, however often they are used.
    #[test]
    fn slots_are_used_again_unless_in_doubt() {
        let session = Arc::new(Session::for_test());
        let slot = |line: &[u8]| session.slot(line);
        let (first, second) = (slot(b"x/"), slot(b"x/"));
        assert_eq!((first.number(), second.number(), slot(b"y/").number()), (0, 1, 0));
        drop(first);
        let first = slot(b"x/");
        assert_eq!((first.number(), slot(b"x/").number()), (0, 2));
        second.retire();
        drop(first);
        assert_eq!([0, 2, 3], [slot(b"x/"), slot(b"x/"), slot(b"x/")].map(|slot| slot.number()));
    }
}
