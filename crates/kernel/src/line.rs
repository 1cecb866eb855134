//! The line: the tickets of one lock in order, and the one rule of admission.
//!
//! [`Line`] works on two things: a small [`Head`] that says how far admission has come, and the
//! [`Places`] themselves, which a store keeps in any form (a deque in memory, rows in a database).
//! Everything in the head but `last` can be derived from the places. It is stored so that no
//! operation walks the line: entering, keeping and leaving touch a fixed number of places, however
//! many wait or hold. Expiry is the exception: it costs one step for each place that it removes.

use crate::rule;
use crate::{TicketId, Time};
use core::time::Duration;

/// A place number. Lower is nearer the front; a holder's place number is its fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after all places.
    pub const END: Seq = Seq(u64::MAX);
}

/// The highest token: the largest integer that a database can store.
const LAST: u64 = i64::MAX as u64;

/// A ticket: one request for a share of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The id of this attempt to acquire.
    pub id: TicketId,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// How much weight the line admits at once. All callers of one line must agree.
    pub capacity: u32,
    /// How long an admitted ticket keeps its place without a renewal.
    pub lease: Duration,
    /// How long a waiting ticket keeps its place without a renewal; short, so that a crashed waiter
    /// is soon removed.
    pub wait_lease: Duration,
    /// The number of tokens to reserve: one for itself, and the rest for local handoffs.
    pub token_count: u32,
    /// The lower bound of its token and of all later ones of the line. A quorum sets it, so that
    /// its nodes' counters stay together; 0 otherwise.
    pub min_token: u64,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    /// Take a place only if it is admitted at once; otherwise change nothing.
    Try,
    /// Take a place, and keep it while waiting.
    Queue,
    /// Keep the place taken before: poll if it waits, renew if it holds. Never takes a new place.
    Keep(Seq),
}

/// The standing of a ticket: the answer to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The ticket holds. Its place number is the fencing token.
    Admitted(Seq),
    /// The ticket does not hold (and after [`Enter::Try`] has no place). Ask again after `again`,
    /// or on a notice before that.
    Waiting {
        /// The place in the line; `None` after a try.
        seq: Option<Seq>,
        /// How long to wait for a notice before asking again.
        again: Duration,
    },
    /// The place to be kept is gone: its lease expired, or it was removed by force. Or the ticket
    /// has no place, and gets none, because earlier requests of it are being undone: another must
    /// ask.
    Lost,
}

/// The reason why a line refuses a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The line is in use with a different capacity.
    Capacity {
        /// The capacity of the tickets in the line.
        line: u32,
    },
    /// The weight is zero, above the capacity, or above that of the place so far.
    Weight,
    /// The tokens of this line are used up.
    Exhausted,
}

/// One place in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<D> {
    /// The ticket's id.
    pub id: TicketId,
    /// The place number.
    pub seq: Seq,
    /// The ticket's weight.
    pub weight: u32,
    /// When it expires unless renewed, on the store's clock.
    pub expires: Time,
    /// The store's data for this place.
    pub data: D,
}

/// The storage of a line's places. Each method is one look-up or one write, and may fail as the
/// storage does.
#[allow(clippy::missing_errors_doc, reason = "the same for all methods")]
pub trait Places {
    /// The store's data for a place.
    type Data;
    /// The error of the storage.
    type Error;
    /// The place of this ticket.
    fn by_id(&mut self, id: TicketId) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// The first place at or behind `seq`.
    fn first_from(&mut self, seq: Seq) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// Adds a place at the end.
    fn push(&mut self, place: &Place<Self::Data>) -> Result<(), Self::Error>;
    /// Updates the weight, expiry and data of an existing place.
    fn update(&mut self, place: &Place<Self::Data>) -> Result<(), Self::Error>;
    /// Removes a place.
    fn remove(&mut self, seq: Seq) -> Result<(), Self::Error>;
    /// Any place that has expired at `now`.
    fn lapsed(&mut self, now: Time) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// The earliest expiry of all places, or [`Time::NEVER`].
    fn earliest(&mut self) -> Result<Time, Self::Error>;
}

/// The state of a line apart from its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The capacity of the tickets in the line. It may change while the line is empty.
    pub capacity: u32,
    /// The highest token assigned or reserved so far.
    pub last: u64,
    /// The number of places.
    pub count: u64,
    /// The weight of the admitted places.
    pub held: u64,
    /// The first waiting place: all before it are admitted. [`Seq::END`] if there are no waiters.
    pub front: Seq,
    /// The time before which no place expires.
    pub due: Time,
}

impl Default for Head {
    fn default() -> Self {
        Head { capacity: 0, last: 0, count: 0, held: 0, front: Seq::END, due: Time::NEVER }
    }
}

/// A line for the duration of one operation: its head, its places, the time, and the callback for
/// admissions.
///
/// `wake` is called for every newly admitted place whose owner does not learn of it from the
/// operation's reply.
#[derive(Debug)]
pub struct Line<'a, P: Places, W: FnMut(&Place<P::Data>)> {
    /// The line's head; the store writes it back after the operation.
    pub head: &'a mut Head,
    /// The line's places.
    pub places: &'a mut P,
    /// The current time on the store's clock.
    pub now: Time,
    /// The store's wall clock in microseconds, which keeps tokens rising even if `last` is lost.
    pub stamp: u64,
    /// Called for every newly admitted place.
    pub wake: W,
}

impl<P: Places, W: FnMut(&Place<P::Data>)> Line<'_, P, W> {
    /// Takes, keeps or renews a place, and returns its standing. Idempotent in the ticket's id.
    ///
    /// # Errors
    ///
    /// The outer error is that of the places: the changes so far must be undone. The inner one
    /// refuses the ticket, and no place was taken.
    pub fn enter(
        &mut self,
        ticket: &Ticket,
        how: Enter,
        data: P::Data,
    ) -> Result<Result<Standing, Refusal>, P::Error> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            return Ok(Err(Refusal::Weight));
        }
        self.lapse(Some(ticket.id))?;
        if self.head.count > 0 && self.head.capacity != ticket.capacity {
            return Ok(Err(Refusal::Capacity { line: self.head.capacity }));
        }
        let present = if self.head.count == 0 { None } else { self.places.by_id(ticket.id)? };
        match (present, how) {
            (Some(place), Enter::Keep(seq)) if place.seq != seq => Ok(Ok(Standing::Lost)),
            (Some(place), _) => self.keep(ticket, place, data),
            (None, Enter::Keep(_)) => Ok(Ok(Standing::Lost)),
            (None, Enter::Try) if !self.fits(ticket) => {
                Ok(Ok(Standing::Waiting { seq: None, again: self.again(ticket, Seq::END) }))
            }
            (None, _) => self.join(ticket, data),
        }
    }

    /// Gives a place up. Returns whether there was one; a missing place is no error.
    ///
    /// # Errors
    ///
    /// As [`enter`](Line::enter).
    pub fn leave(&mut self, id: TicketId) -> Result<bool, P::Error> {
        self.lapse(Some(id))?;
        let Some(place) = self.places.by_id(id)? else { return Ok(false) };
        self.depart(&place)?;
        Ok(true)
    }

    /// Removes a place by force. Returns a token that is higher than any token of that place, and
    /// no higher than that of any place behind it: the next place's, or a new one if it was the
    /// last. `None` if there is no such place.
    ///
    /// # Errors
    ///
    /// As [`enter`](Line::enter).
    pub fn evict(&mut self, id: TicketId) -> Result<Option<Seq>, P::Error> {
        self.lapse(Some(id))?;
        let Some(place) = self.places.by_id(id)? else { return Ok(None) };
        let behind = self.places.first_from(Seq(place.seq.0 + 1))?;
        self.depart(&place)?;
        if let Some(behind) = behind {
            return Ok(Some(behind.seq));
        }
        self.head.last = self.head.last.saturating_add(1).max(self.stamp);
        Ok(Some(Seq(self.head.last)))
    }

    /// Removes all expired places.
    ///
    /// # Errors
    ///
    /// As [`enter`](Line::enter).
    pub fn expire(&mut self) -> Result<(), P::Error> {
        self.lapse(None)
    }

    /// Removes one place that is known to exist, and admits those that now fit.
    ///
    /// # Errors
    ///
    /// As [`enter`](Line::enter).
    pub fn depart(&mut self, place: &Place<P::Data>) -> Result<(), P::Error> {
        self.remove(place)?;
        self.advance(None)
    }

    /// Removes all expired places before it admits others, so that no expired place is notified.
    fn lapse(&mut self, asker: Option<TicketId>) -> Result<(), P::Error> {
        if self.now < self.head.due {
            return Ok(());
        }
        while let Some(place) = self.places.lapsed(self.now)? {
            self.remove(&place)?;
        }
        self.advance(asker)?;
        self.head.due = self.places.earliest()?;
        Ok(())
    }

    fn remove(&mut self, place: &Place<P::Data>) -> Result<(), P::Error> {
        self.places.remove(place.seq)?;
        self.head.count -= 1;
        if place.seq < self.head.front {
            self.head.held -= u64::from(place.weight);
        }
        if self.head.count == 0 {
            self.head.due = Time::NEVER;
        }
        Ok(())
    }

    fn join(
        &mut self,
        ticket: &Ticket,
        data: P::Data,
    ) -> Result<Result<Standing, Refusal>, P::Error> {
        let seq = self.head.last.saturating_add(1).max(self.stamp).max(ticket.min_token);
        let Some(last) = seq.checked_add(u64::from(ticket.token_count.max(1)) - 1) else {
            return Ok(Err(Refusal::Exhausted));
        };
        if last > LAST {
            return Ok(Err(Refusal::Exhausted));
        }
        let admitted = self.fits(ticket);
        let seq = Seq(seq);
        let expires = self.expiry(ticket, admitted);
        self.places.push(&Place { id: ticket.id, seq, weight: ticket.weight, expires, data })?;
        self.head.capacity = ticket.capacity;
        self.head.last = last;
        self.head.count += 1;
        self.head.due = self.head.due.min(expires);
        if admitted {
            self.head.held += u64::from(ticket.weight);
        } else {
            self.head.front = self.head.front.min(seq);
        }
        Ok(Ok(self.standing(ticket, seq)))
    }

    fn keep(
        &mut self,
        ticket: &Ticket,
        mut place: Place<P::Data>,
        data: P::Data,
    ) -> Result<Result<Standing, Refusal>, P::Error> {
        if ticket.weight > place.weight {
            return Ok(Err(Refusal::Weight)); // raising a weight could evict those behind
        }
        if ticket.min_token > 0 {
            let reserved = u64::from(ticket.token_count.max(1)) - 1;
            let Some(last) = ticket.min_token.checked_add(reserved).filter(|last| *last <= LAST)
            else {
                return Ok(Err(Refusal::Exhausted));
            };
            self.head.last = self.head.last.max(last);
        }
        let admitted = place.seq < self.head.front;
        let lighter = place.weight - ticket.weight;
        place.weight = ticket.weight;
        // Never earlier than before: a renewal that arrives late must not undo a longer one.
        place.expires = place.expires.max(self.expiry(ticket, admitted));
        place.data = data;
        self.places.update(&place)?;
        self.head.due = self.head.due.min(place.expires);
        if lighter > 0 {
            if admitted {
                self.head.held -= u64::from(lighter);
            }
            self.advance(Some(place.id))?;
            if !admitted && place.seq < self.head.front {
                place.expires = place.expires.max(self.expiry(ticket, true));
                self.places.update(&place)?;
            }
        }
        Ok(Ok(self.standing(ticket, place.seq)))
    }

    /// Moves the front past all places that fit now, and notifies them; the asker learns from its
    /// reply.
    fn advance(&mut self, asker: Option<TicketId>) -> Result<(), P::Error> {
        while self.head.front != Seq::END {
            let Some(next) = self.places.first_from(self.head.front)? else {
                self.head.front = Seq::END;
                return Ok(());
            };
            if !rule::fits(self.head.held, next.weight, self.head.capacity) {
                self.head.front = next.seq;
                return Ok(());
            }
            self.head.held += u64::from(next.weight);
            self.head.front = Seq(next.seq.0 + 1);
            if asker != Some(next.id) {
                (self.wake)(&next);
            }
        }
        Ok(())
    }

    /// The admission rule for a new ticket: there are no waiters, and the weight fits.
    fn fits(&self, ticket: &Ticket) -> bool {
        self.head.front == Seq::END && rule::fits(self.head.held, ticket.weight, ticket.capacity)
    }

    fn expiry(&self, ticket: &Ticket, admitted: bool) -> Time {
        self.now.after(if admitted { ticket.lease } else { ticket.wait_lease })
    }

    fn standing(&self, ticket: &Ticket, seq: Seq) -> Standing {
        if seq < self.head.front {
            Standing::Admitted(seq)
        } else {
            Standing::Waiting { seq: Some(seq), again: self.again(ticket, seq) }
        }
    }

    /// When to ask again. The first waiter asks when a holder may have expired. The others ask only
    /// often enough to keep their places, so that an expiry does not wake the whole line.
    fn again(&self, ticket: &Ticket, seq: Seq) -> Duration {
        let keep = ticket.wait_lease / 3;
        let wait =
            if seq == self.head.front { keep.min(self.now.until(self.head.due)) } else { keep };
        wait.max(Duration::from_millis(2))
    }
}
