//! The line and its one rule.
//!
//! [`Line`] works on two things: a small [`Head`] that says how far admission has come, and the
//! [`Places`] themselves, which a store keeps where it likes (a deque in memory, rows in a
//! database). Everything in the head but `last` can be derived from the places; it is kept so that
//! no operation walks the line: entering, keeping and leaving look at a fixed number of places,
//! however many wait or hold. Expiry is the exception, and is paid for by the places that it
//! removes.

use crate::rule;
use crate::{TicketId, Time};
use core::time::Duration;

/// A place in the order. Lower stands nearer the front; the holder's is its fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// Behind every place.
    pub const END: Seq = Seq(u64::MAX);
}

/// The highest token: what a database can keep.
const LAST: u64 = i64::MAX as u64;

/// What one caller wants of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// This attempt's name.
    pub id: TicketId,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// How much weight the line admits at once. All callers of one line must agree.
    pub capacity: u32,
    /// How long it may hold without being heard of.
    pub lease: Duration,
    /// How long it may wait without being heard of; short, so that a dead waiter is soon
    /// forgotten.
    pub wait_lease: Duration,
    /// How many tokens it reserves: its own, and those of the holders it will hand over to
    /// locally.
    pub token_count: u32,
    /// A number that its token, and every later one of the line, must not be below. For a store
    /// that is made of stores, whose own counters must not fall behind one another; 0 otherwise.
    pub min_token: u64,
}

/// How to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    /// Take a place only if it is admitted at once; otherwise leave no trace.
    Try,
    /// Take a place, and keep it while waiting.
    Queue,
    /// Keep the place taken before: poll if it waits, renew if it holds. Never takes a new one.
    Keep(Seq),
}

/// Where a ticket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds. The place is the fencing token.
    Admitted(Seq),
    /// It does not hold (and after [`Enter::Try`] has no place). Look again after `again`, if
    /// nothing wakes you earlier.
    Waiting {
        /// The place in the line, unless it was only a try.
        seq: Option<Seq>,
        /// How long to wait for a notice before looking again.
        again: Duration,
    },
    /// The place to be kept is gone: its lease ran out, or somebody broke the lock.
    Lost,
}

/// Why a ticket cannot stand in a line at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The line is in use with another capacity.
    Capacity {
        /// The capacity that those in the line agreed on.
        line: u32,
    },
    /// The weight is zero, more than the capacity, or more than the place had before.
    Weight,
    /// The tokens of this line are used up.
    Exhausted,
}

/// One place in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<D> {
    /// Whose it is.
    pub id: TicketId,
    /// Where it is.
    pub seq: Seq,
    /// What it weighs.
    pub weight: u32,
    /// When it lapses unless heard of, on the store's clock.
    pub expires: Time,
    /// What the store keeps with it.
    pub data: D,
}

/// Where a line's places are kept. Each method is one look-up or one write.
pub trait Places {
    /// What the store keeps with a place.
    type Data;
    /// What can go wrong in keeping them.
    type Error;
    /// The place of this ticket.
    fn by_id(&mut self, id: TicketId) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// The first place at or behind `seq`.
    fn first_from(&mut self, seq: Seq) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// Adds a place behind all others.
    fn push(&mut self, place: &Place<Self::Data>) -> Result<(), Self::Error>;
    /// Writes the weight, expiry and data of a place that is there.
    fn update(&mut self, place: &Place<Self::Data>) -> Result<(), Self::Error>;
    /// Removes a place.
    fn remove(&mut self, seq: Seq) -> Result<(), Self::Error>;
    /// Some place that has lapsed at `now`.
    fn lapsed(&mut self, now: Time) -> Result<Option<Place<Self::Data>>, Self::Error>;
    /// The earliest expiry of all places, or [`Time::NEVER`].
    fn earliest(&mut self) -> Result<Time, Self::Error>;
}

/// How far a line has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What those in the line agreed on. Free to change while the line is empty.
    pub capacity: u32,
    /// The highest token given or reserved so far.
    pub last: u64,
    /// How many places there are.
    pub count: u64,
    /// The weight of the admitted places.
    pub held: u64,
    /// The first place that waits: those before it are admitted. [`Seq::END`] if nobody waits.
    pub front: Seq,
    /// No place lapses before this.
    pub due: Time,
}

impl Default for Head {
    fn default() -> Self {
        Head { capacity: 0, last: 0, count: 0, held: 0, front: Seq::END, due: Time::NEVER }
    }
}

/// One operation's view of a line: its head, its places, the time, and whom to tell of admission.
///
/// `wake` is called for every place that the operation admitted without its owner knowing.
#[derive(Debug)]
pub struct Line<'a, P: Places, W: FnMut(&Place<P::Data>)> {
    /// How far the line has come; to be written back after the operation.
    pub head: &'a mut Head,
    /// Where its places are.
    pub places: &'a mut P,
    /// The store's clock.
    pub now: Time,
    /// The store's wall clock in microseconds, which keeps tokens rising if `last` is ever lost.
    pub stamp: u64,
    /// Told of every place newly admitted.
    pub wake: W,
}

impl<P: Places, W: FnMut(&Place<P::Data>)> Line<'_, P, W> {
    /// Takes, keeps or renews a place, and says how it stands. Idempotent in the ticket's id.
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

    /// Gives a place up. Says whether there was one; none to give up is fine.
    pub fn leave(&mut self, id: TicketId) -> Result<bool, P::Error> {
        self.lapse(Some(id))?;
        let Some(place) = self.places.by_id(id)? else { return Ok(false) };
        self.depart(&place)?;
        Ok(true)
    }

    /// Removes a place by force. Returns a token that is higher than any of the place's own, and no
    /// higher than that of anybody behind it: the next place's, or a new one if it was the last.
    /// Nothing if there is no such place.
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

    /// Removes whatever has lapsed.
    pub fn expire(&mut self) -> Result<(), P::Error> {
        self.lapse(None)
    }

    /// Removes one place that is known to be there, and lets in whom that admits.
    pub fn depart(&mut self, place: &Place<P::Data>) -> Result<(), P::Error> {
        self.remove(place)?;
        self.advance(None)
    }

    /// Removes all that has lapsed before it lets anybody in: whoever lapsed as well is not told.
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
        // Never shorter than before: a renewal that arrives late must not undo a longer one.
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

    /// Moves the front past everybody who fits now, and tells them; the asker learns by the reply.
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

    /// The rule, for somebody who comes now: nobody waits, and the weight fits.
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

    /// The first in the line looks again when a holder may have lapsed; the others only often
    /// enough to keep their places, so that a lapse does not raise the whole line.
    fn again(&self, ticket: &Ticket, seq: Seq) -> Duration {
        let keep = ticket.wait_lease / 3;
        let wait =
            if seq == self.head.front { keep.min(self.now.until(self.head.due)) } else { keep };
        wait.max(Duration::from_millis(2))
    }
}
