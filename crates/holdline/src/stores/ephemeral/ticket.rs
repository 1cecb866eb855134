//! A ticket of this process: its state, and the known state of its entry in the store.

use crate::names::Name;
use crate::store::{Enter, Refusal, Seq, Ticket, TicketId, refuse};
use crate::stores::waiters::LossHandler;
use crate::sync::{Mutex, contained};
use holdline_kernel::Time;
use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// The store's part of a ticket: its state for the entry, a key or a node.
pub(super) trait Entry: Debug + Send + Sized + 'static {
    /// The part that does not change while the ticket lives.
    type Base: Debug + Send + Sync + 'static;
    /// A watch, which ends when it is dropped.
    type Watch: Debug + Send + 'static;

    /// Whether the entries known to be ahead leave room for a waiting ticket.
    fn has_room(place: &Place<Self>, capacity: u32) -> bool;

    /// Cleans up after the entry, once the ticket is forgotten.
    fn forgotten(_place: &mut Place<Self>) {}
}

/// The state of a ticket, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has no entry yet, or no known one.
    New,
    /// Its entry is in the store, behind others.
    Waiting,
    /// It was admitted.
    Held,
    /// Its owner is releasing it. Until the store has answered, its loss is not reported. If there
    /// is no answer, the entry may be removed at any time: the ticket is never held again.
    Leaving { held: bool },
    /// Its entry is gone from the store, or must be assumed to be. The holder may not know yet.
    Gone { held: bool },
    /// It was no longer wanted, so it is gone, and its entry is being removed.
    Lapsed,
}

/// One ticket of this process, from before its entry is written until after it is removed.
#[derive(Debug)]
pub(super) struct TicketRecord<E: Entry> {
    pub(super) id: TicketId,
    pub(super) line: Name,
    pub(super) capacity: u32,
    pub(super) base: E::Base,
    place: Mutex<Place<E>>,
    /// Notified when the standing may have changed.
    pub(super) news: Notify,
}

/// The part of a ticket that changes.
#[derive(Debug)]
pub(super) struct Place<E: Entry> {
    pub(super) state: State,
    /// The store's number of the entry's creation, which is the fencing token; 0 if unknown.
    pub(super) create: i64,
    pub(super) weight: u32,
    pub(super) lease: Duration,
    pub(super) note: Arc<str>,
    /// Whether a write of the entry was not answered: it may have been, or may yet be, carried out.
    pub(super) doubtful: bool,
    /// Held until the outcome of the first write is known.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// How often changes may have been missed.
    missed: u64,
    /// The value of `missed` that the last reply of the store covers.
    asked: u64,
    /// When the ticket lapses, unless it is asked for again.
    pub(super) due: Time,
    pub(super) watches: Vec<E::Watch>,
    pub(super) entry: E,
}

/// The result of [`TicketRecord::stand`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) seq: Seq,
    pub(super) held: bool,
    /// Whether it was admitted just now.
    pub(super) fresh: bool,
}

/// The fencing token of an entry.
pub(super) fn token(create: i64) -> Seq {
    Seq(create.unsigned_abs())
}

/// How long beyond `due` a ticket without an entry is kept: its request may be late.
const GRACE: Duration = Duration::from_secs(10);

impl<E: Entry> TicketRecord<E> {
    pub(super) fn new(
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        due: Time,
        (base, entry): (E::Base, E),
    ) -> Self {
        TicketRecord {
            id: ticket.id,
            line: line.clone(),
            capacity: ticket.capacity,
            base,
            place: Mutex::new(Place::new(ticket, note, due, entry)),
            news: Notify::new(),
        }
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Place<E>> {
        self.place.lock()
    }

    /// Reads or changes the changing part, and unlocks the mutex before the result is used.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Place<E>) -> T) -> T {
        work(&mut self.place.lock())
    }

    /// Replaces the watches, and returns the old ones.
    pub(super) fn watch_by(&self, watches: Vec<E::Watch>) -> Vec<E::Watch> {
        self.with(|place| std::mem::replace(&mut place.watches, watches))
    }

    /// Checks a request to keep the place. `false` if the place is lost.
    pub(super) fn is_kept(
        &self,
        ticket: &Ticket,
        how: Enter,
        began: Time,
    ) -> crate::error::Result<bool> {
        let place = self.place();
        let moved = matches!(how, Enter::Keep(seq) if seq != place.token());
        if moved || !place.is_alive() || began >= place.due {
            return Ok(false);
        }
        if ticket.capacity != self.capacity {
            return Err(refuse(&self.line, ticket, Refusal::Capacity { line: self.capacity }));
        }
        drop(place);
        self.check_weight(ticket).map(|()| true)
    }

    /// Refuses to raise the weight, also for a request that a later one with a lower weight has
    /// overtaken.
    pub(super) fn check_weight(&self, ticket: &Ticket) -> crate::error::Result<()> {
        if ticket.weight > self.place().weight {
            return Err(refuse(&self.line, ticket, Refusal::Weight));
        }
        Ok(())
    }

    /// Extends the ticket by its lease or its wait lease, and admits it if there is room. `None` if
    /// it is gone.
    ///
    /// This is one atomic step, as [`lapse`](Self::lapse) is: a ticket that is wanted never seems
    /// to have lapsed, and one that has lapsed is never wanted again.
    pub(super) fn stand(&self, ticket: &Ticket, began: Time, new: bool) -> Option<Stands> {
        let mut place = self.place();
        if !place.is_alive() {
            return None;
        }
        let fresh = place.state == State::Waiting && E::has_room(&place, self.capacity);
        if fresh {
            place.state = State::Held;
        }
        let held = place.state == State::Held;
        let until = began.after(if held { ticket.lease } else { ticket.wait_lease });
        place.due = if new { until } else { place.due.max(until) };
        Some(Stands { seq: place.token(), held, fresh })
    }

    /// Marks a ticket as being released.
    pub(super) fn leave(&self) {
        let mut place = self.place();
        if place.is_alive() {
            place.state = State::Leaving { held: place.state == State::Held };
        }
    }

    /// Marks a ticket as lapsed if it is no longer wanted. Returns whether it did.
    pub(super) fn lapse(&self, now: Time, loss: &LossHandler) -> bool {
        let Some(held) = self.place().lapse(now) else { return false };
        self.tell(held, loss);
        true
    }

    /// Marks a ticket as gone, unless it is being released: then the reply to that says whether its
    /// entry existed.
    pub(super) fn lose(&self, loss: &LossHandler) {
        let lose = |place: &mut Place<E>| {
            let held = place.state == State::Held;
            place.is_alive().then(|| place.state = State::Gone { held }).map(|()| held)
        };
        if let Some(held) = self.with(lose) {
            self.tell(held, loss);
        }
    }

    /// Wakes the waiter.
    pub(super) fn wake(&self) {
        contained(|| self.news.notify_one());
    }

    /// Wakes the waiter, and has a held ticket renewed at once.
    pub(super) fn tell(&self, held: bool, loss: &LossHandler) {
        self.wake();
        if held {
            loss.hint(self.id);
        }
    }
}

impl<E: Entry> Place<E> {
    pub(super) fn new(ticket: &Ticket, note: &Arc<str>, due: Time, entry: E) -> Self {
        Place {
            state: State::New,
            create: 0,
            weight: ticket.weight,
            lease: ticket.lease,
            note: Arc::clone(note),
            doubtful: false,
            permit: None,
            missed: 0,
            asked: 0,
            due,
            watches: Vec::new(),
            entry,
        }
    }

    /// As [`TicketRecord::lapse`]. Returns whether a holder must be notified. A ticket that is
    /// being released lapses too: its owner may no longer poll that.
    pub(super) fn lapse(&mut self, now: Time) -> Option<bool> {
        let grace = if self.create == 0 { GRACE } else { Duration::ZERO };
        if self.state == State::Lapsed || now < self.due.after(grace) {
            return None;
        }
        Some(std::mem::replace(&mut self.state, State::Lapsed) == State::Held)
    }

    pub(super) fn token(&self) -> Seq {
        token(self.create)
    }

    /// Records that changes may have been missed, so the store must be asked.
    pub(super) fn miss(&mut self) {
        self.missed += 1;
    }

    /// How often changes may have been missed so far, for [`answered`](Self::answered). Read it
    /// before sending a request to the store.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// Records a reply of the store to a request sent when `missed` had this value. Changes missed
    /// since may not be in the reply.
    pub(super) fn answered(&mut self, missed: u64) {
        self.asked = self.asked.max(missed);
    }

    /// Whether changes may have been missed that no reply covers.
    pub(super) fn is_unsure(&self) -> bool {
        self.asked < self.missed
    }

    /// Whether the entry has this note. Usually it is the same allocation, and is not compared.
    pub(super) fn has_note(&self, note: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.note, note) || self.note == *note
    }

    /// Whether the ticket is neither gone nor being released.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, State::New | State::Waiting | State::Held)
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. } | State::Lapsed)
    }

    /// Whether the ticket was admitted, even if it is being released or is gone.
    pub(super) fn was_held(&self) -> bool {
        use State::{Gone, Held, Leaving};
        matches!(self.state, Held | Leaving { held: true } | Gone { held: true })
    }

    /// Records that the entry exists in the store.
    pub(super) fn born(&mut self, create: i64) {
        self.create = create;
        if self.state == State::New && create != 0 {
            self.state = State::Waiting;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock;
    use crate::stores::waiters::tests::Panics;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::Context;

    /// A ticket of this weight, with a lease of a minute.
    pub(in super::super) fn ticket(weight: u32, capacity: u32) -> Ticket {
        let lease = Duration::from_secs(60);
        let (id, token_count, min_token) = (TicketId(5), 1, 0);
        Ticket { id, weight, capacity, lease, wait_lease: lease, token_count, min_token }
    }

    /// Whether the entry is the first of its line, as far as is known.
    #[derive(Debug)]
    pub(in super::super) struct First(pub(in super::super) bool);

    impl Entry for First {
        type Base = ();
        type Watch = ();

        fn has_room(place: &Place<Self>, _capacity: u32) -> bool {
            place.entry.0
        }

        fn forgotten(place: &mut Place<Self>) {
            place.entry.0 = false;
        }
    }

    pub(in super::super) fn record(id: u128, due: Time) -> TicketRecord<First> {
        let name = Name::new("x").expect("good");
        let ticket = Ticket { id: TicketId(id), ..ticket(1, 1) };
        TicketRecord::new(&name, &ticket, &Arc::from(""), due, ((), First(true)))
    }

    fn waiting(due: Time) -> TicketRecord<First> {
        let record = record(5, due);
        record.place().born(7);
        record
    }

    const HELD: Stands = Stands { seq: Seq(7), held: true, fresh: false };

    #[test]
    fn a_ticket_is_held_for_its_lease_from_its_admission() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let record = waiting(now.after(Duration::from_secs(90)));
        assert!(!record.lapse(now, &loss));
        let fresh = Stands { fresh: true, ..HELD };
        assert_eq!(record.stand(&ticket(1, 1), now, true), Some(fresh));
        assert_eq!(record.stand(&ticket(1, 1), now, false), Some(HELD));
        assert!(!record.lapse(now.after(Duration::from_secs(59)), &loss));
        assert!(record.lapse(now.after(Duration::from_secs(60)), &loss), "not what it came with");
    }

    /// A ticket lapsed at the very moment of its admission.
    #[test]
    fn a_ticket_that_is_wanted_never_lapses() {
        let (over, loss) = (AtomicBool::new(false), LossHandler::default());
        let record = waiting(clock::now().after(Duration::from_secs(60)));
        std::thread::scope(|scope| {
            let janitor = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(!record.lapse(clock::now(), &loss), "it was wanted all the time");
                }
            });
            for round in 0..200_000 {
                let stands = record.stand(&ticket(1, 1), clock::now(), round % 2 == 0);
                if stands.is_none_or(|stands| !stands.held) {
                    break; // the other thread says why
                }
            }
            over.store(true, Ordering::Relaxed);
            janitor.join().expect("it never lapsed");
        });
    }

    /// A renewal at the last moment is refused, or keeps the place: never both.
    #[test]
    fn a_ticket_that_lapsed_is_not_renewed() {
        let loss = LossHandler::default();
        for _ in 0..500 {
            let record = waiting(clock::now());
            let (renewed, lapsed) = std::thread::scope(|scope| {
                let lapses = scope.spawn(|| record.lapse(clock::now(), &loss));
                let stands = record.stand(&ticket(1, 1), clock::now(), false);
                (stands.is_some(), lapses.join().expect("no panic"))
            });
            assert!(renewed != lapsed, "renewed: {renewed}; lapsed: {lapsed}");
        }
    }

    #[test]
    fn a_loss_is_reported_to_holders_and_once() {
        let (hints, loss) = (Arc::new(AtomicU32::new(0)), LossHandler::default());
        let count = Arc::clone(&hints);
        let hint = move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        loss.set(Arc::new(hint));
        let now = clock::now();
        let (waits, holds, leaves) = (waiting(now), waiting(now), waiting(now));
        for record in [&holds, &leaves] {
            record.stand(&ticket(1, 1), now, true);
        }
        leaves.leave();
        for record in [&waits, &holds, &leaves, &holds] {
            record.lose(&loss);
        }
        assert_eq!(hints.load(Ordering::Relaxed), 1, "only that of the holder");
        assert!(holds.lapse(now.after(Duration::from_secs(60)), &loss));
        assert!(waiting(now).lapse(now, &loss), "it did not hold");
        assert_eq!(hints.load(Ordering::Relaxed), 1);
        let other = waiting(now);
        other.stand(&ticket(1, 1), now, true);
        assert!(other.lapse(now.after(Duration::from_secs(60)), &loss));
        assert_eq!(hints.load(Ordering::Relaxed), 2, "its holder has not been told");
    }

    #[test]
    fn a_ticket_that_is_given_up_is_never_held_again() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let (new, waits, holds) = (record(5, now), waiting(now), waiting(now));
        holds.stand(&ticket(1, 1), now, true);
        for (record, held) in [(new, false), (waits, false), (holds, true)] {
            record.leave();
            record.place().born(7);
            assert!(!record.place().is_alive() && record.stand(&ticket(1, 1), now, true).is_none());
            record.lose(&loss);
            record.leave();
            assert_eq!(record.place().state, State::Leaving { held });
            assert!(record.lapse(now.after(GRACE * 7), &loss), "its owner may have forgotten it");
        }
    }

    #[test]
    fn a_place_is_kept_as_it_was_and_while_it_is_wanted() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let at = |seconds| now.after(Duration::from_secs(seconds));
        let record = waiting(at(60));
        let kept = |how, began| record.is_kept(&ticket(1, 1), how, began).expect("it fits");
        assert!(kept(Enter::Queue, at(59)) && kept(Enter::Keep(Seq(7)), at(59)));
        assert!(!kept(Enter::Keep(Seq(6)), now), "it is another place");
        assert!(!kept(Enter::Queue, at(60)), "it lapses at this time");
        let asks = |weight, capacity| record.is_kept(&ticket(weight, capacity), Enter::Queue, now);
        asks(1, 2).expect_err("the line has another capacity");
        asks(2, 1).expect_err("no weight grows");
        record.lose(&loss);
        assert!(!kept(Enter::Queue, now), "it is gone");
    }

    #[test]
    fn a_ticket_that_waits_is_kept_for_its_wait_lease() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let at = |seconds| now.after(Duration::from_secs(seconds));
        let brief = Ticket { wait_lease: Duration::from_secs(10), ..ticket(1, 1) };
        let record = waiting(at(90));
        record.place().entry.0 = false;
        let waits = Some(Stands { held: false, ..HELD });
        assert_eq!(record.stand(&brief, now, true), waits);
        assert_eq!(record.place().due, at(10), "it is not kept for its lease");
        assert_eq!(record.stand(&brief, at(5), false), waits);
        assert_eq!(record.stand(&brief, now, false), waits);
        assert_eq!(record.place().due, at(15), "a late request does not shorten it");
        record.place().entry.0 = true;
        assert_eq!(record.stand(&brief, at(10), false), Some(Stands { fresh: true, ..HELD }));
        assert!(!record.lapse(at(69), &loss) && record.lapse(at(70), &loss));
        assert!(!record.lapse(at(71), &loss), "it has lapsed already");
    }

    /// Its request may be late.
    #[test]
    fn a_ticket_without_an_entry_lapses_later() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let record = record(5, now);
        assert!(!record.lapse(now.after(GRACE / 2), &loss));
        assert!(record.lapse(now.after(GRACE), &loss));
    }

    /// Also one that begins to wait after the news.
    #[test]
    fn a_waiter_is_woken_when_its_place_is_gone() {
        let (now, loss) = (clock::now(), LossHandler::default());
        let (lost, lapsed) = (waiting(now), waiting(now));
        lost.lose(&loss);
        assert!(lapsed.lapse(now, &loss));
        for record in [lost, lapsed] {
            assert!(record.news.notified().now_or_never().is_some(), "{:?}", record.place().state);
            assert!(record.news.notified().now_or_never().is_none(), "it is told once");
        }
    }

    /// All tickets depend on the tasks that wake waiters.
    #[test]
    fn a_waker_that_panics_harms_no_other_ticket() {
        let record = waiting(clock::now());
        let mut waits = std::pin::pin!(record.news.notified());
        let waker = Arc::new(Panics).into();
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        record.lose(&LossHandler::default());
        assert!(waits.now_or_never().is_some());
    }

    #[test]
    fn a_place_is_alive_or_gone_or_on_its_way_out() {
        let record = waiting(clock::now());
        let mut place = record.place();
        for (state, alive, gone, was_held) in [
            (State::New, true, false, false),
            (State::Waiting, true, false, false),
            (State::Held, true, false, true),
            (State::Leaving { held: false }, false, false, false),
            (State::Leaving { held: true }, false, false, true),
            (State::Gone { held: false }, false, true, false),
            (State::Gone { held: true }, false, true, true),
            (State::Lapsed, false, true, false),
        ] {
            place.state = state;
            let is = (place.is_alive(), place.is_gone(), place.was_held());
            assert_eq!(is, (alive, gone, was_held), "{state:?}");
            place.born(8);
            let born = if state == State::New { State::Waiting } else { state };
            assert_eq!(place.state, born, "an entry that is seen again changes nothing else");
        }
        place.state = State::New;
        place.born(0);
        assert_eq!(place.state, State::New, "it has no entry");
    }

    #[test]
    fn a_loss_remembers_whether_the_ticket_held() {
        let (now, loss) = (clock::now(), LossHandler::default());
        for held in [false, true] {
            let record = waiting(now);
            record.place().entry.0 = held;
            record.stand(&ticket(1, 1), now, true);
            record.lose(&loss);
            assert_eq!(record.place().state, State::Gone { held });
        }
    }

    #[test]
    fn what_was_missed_is_covered_by_later_requests_only() {
        let record = waiting(clock::now());
        let mut place = record.place();
        assert!(!place.is_unsure());
        place.miss();
        let first = place.missed();
        place.miss();
        place.answered(first);
        assert!(place.is_unsure(), "the second was missed after that request");
        let second = place.missed();
        place.answered(second);
        place.answered(first);
        assert!(!place.is_unsure(), "a late reply takes nothing back");
        assert!(place.has_note(&Arc::from("")) && !place.has_note(&Arc::from("other")));
    }
}
