//! The toy's line: the rule of admission written out once more, the simplest way, with bugs in it.

use crate::bugs::Bug;
use holdline::store::{Enter, QueueEntry, Refusal, Seq, Standing, Ticket, TicketId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tickets of one lock, front first.
#[derive(Debug)]
pub(crate) struct Line {
    bug: Option<Bug>,
    capacity: u32,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    id: TicketId,
    seq: Seq,
    weight: u32,
    /// Whether it was not admitted when it came.
    waited: bool,
    expires: Instant,
    note: Arc<str>,
}

impl Line {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Line { bug, capacity: 0, places: Vec::new() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The capacity of the tickets in the line; 0 if there are none.
    pub(crate) fn capacity(&self) -> u32 {
        if self.is_empty() {
            0
        } else if self.has(Bug::ShowsNoCapacity) {
            1
        } else {
            self.capacity
        }
    }

    /// Whether each place is admitted: those that fit with all that is ahead of them.
    fn admitted(&self) -> impl Iterator<Item = bool> {
        let mut capacity = u64::from(self.capacity);
        if self.has(Bug::AdmitsOneTooMany) {
            capacity += 1;
        } else if self.has(Bug::AdmitsOneTooFew) && capacity > 1 {
            capacity -= 1;
        }
        let mut ahead = 0;
        self.places.iter().map(move |place| {
            let weight = if self.has(Bug::IgnoresWeights) { 1 } else { u64::from(place.weight) };
            let fits = ahead + weight <= capacity;
            if fits || !self.has(Bug::PassesHeavyWaiters) {
                ahead += weight;
            }
            fits
        })
    }

    fn is_admitted(&self, at: usize) -> bool {
        self.admitted().nth(at).unwrap_or(false)
    }

    fn position(&self, id: TicketId) -> Option<usize> {
        self.places.iter().position(|place| place.id == id)
    }

    /// The tickets, and whether each is admitted.
    pub(crate) fn standings(&self) -> Vec<(TicketId, Seq, bool)> {
        let places = self.places.iter().zip(self.admitted());
        places.map(|(place, admitted)| (place.id, place.seq, admitted)).collect()
    }

    /// Removes the places whose leases are over; `asker` is the ticket that asks by `Keep`.
    pub(crate) fn expire(&mut self, asker: Option<TicketId>) {
        let now = Instant::now();
        let spared = match self.bug {
            Some(Bug::RenewalsRevive) => asker,
            _ => None,
        };
        let admitted: Vec<_> = self.admitted().collect();
        let (holders, waiters) =
            (self.has(Bug::HoldersNeverLapse), self.has(Bug::WaitersNeverLapse));
        let mut admitted = admitted.into_iter();
        self.places.retain(|place| {
            let stays = if admitted.next() == Some(true) { holders } else { waiters };
            stays || place.expires > now || spared == Some(place.id)
        });
    }

    /// Takes, keeps or renews a place. `last` is the highest token so far.
    pub(crate) fn enter(
        &mut self,
        last: &mut u64,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing, Refusal> {
        let other = !self.is_empty() && self.capacity != ticket.capacity;
        if other && !self.has(Bug::AcceptsAnotherCapacity) {
            return Err(Refusal::Capacity { line: self.capacity });
        }
        let mut present = self.position(ticket.id);
        if let (Some(at), Enter::Queue) = (present, how)
            && (self.has(Bug::RetryEntersTwice)
                || (self.has(Bug::RetryMovesToTheEnd) && !self.is_admitted(at)))
        {
            if self.has(Bug::RetryMovesToTheEnd) {
                self.places.remove(at);
            }
            present = None;
        }
        match (present, how) {
            (Some(at), Enter::Keep(seq)) if self.places[at].seq != seq => match self.bug {
                Some(Bug::KeepsAnyPlace) => self.renew(last, at, ticket, note),
                _ => Ok(Standing::Lost),
            },
            (Some(at), _) => self.renew(last, at, ticket, note),
            (None, Enter::Keep(seq)) => self.keep_missing(last, seq, ticket, note),
            (None, _) => Ok(self.join(last, ticket, note, how)),
        }
    }

    /// Answers `Keep` to a ticket without a place.
    fn keep_missing(
        &mut self,
        last: &mut u64,
        seq: Seq,
        ticket: &Ticket,
        note: &Arc<str>,
    ) -> Result<Standing, Refusal> {
        match self.places.iter().position(|place| place.seq == seq) {
            Some(at) if self.has(Bug::KeepsAnothersPlace) => self.renew(last, at, ticket, note),
            _ if self.has(Bug::KeepTakesAPlace) => Ok(self.join(last, ticket, note, Enter::Queue)),
            _ => Ok(Standing::Lost),
        }
    }

    fn renew(
        &mut self,
        last: &mut u64,
        at: usize,
        ticket: &Ticket,
        note: &Arc<str>,
    ) -> Result<Standing, Refusal> {
        if ticket.weight > self.places[at].weight && !self.has(Bug::RaisesWeights) {
            return Err(Refusal::Weight);
        }
        if !self.has(Bug::KeepsBelowLowerBounds) {
            *last = (*last).max(ticket.min_token);
        }
        if !self.has(Bug::KeepsWeights) {
            self.places[at].weight = ticket.weight;
        }
        let admitted = self.is_admitted(at);
        let waits = self.has(Bug::KeepsWaitLeases) && self.places[at].waited;
        let (bug, expires) = (self.bug, self.expiry(ticket, admitted && !waits));
        let place = &mut self.places[at];
        place.expires = match bug {
            Some(Bug::RenewalsExtendNothing) if admitted => place.expires,
            Some(Bug::PollsExtendNothing) if !admitted => place.expires,
            Some(Bug::RenewalsShorten) => expires,
            _ => place.expires.max(expires),
        };
        if bug != Some(Bug::ShowsOldNotes) {
            place.note = Arc::clone(note);
        }
        if bug == Some(Bug::RenewalsChangeTokens) {
            *last += 1;
            place.seq = Seq(*last);
        }
        Ok(self.standing(at, ticket))
    }

    fn join(&mut self, last: &mut u64, ticket: &Ticket, note: &Arc<str>, how: Enter) -> Standing {
        self.capacity = ticket.capacity;
        let is_try = how == Enter::Try;
        let passes =
            (is_try && self.has(Bug::TryPassesWaiters)) || self.has(Bug::LastComeFirstServed);
        let holders = self.admitted().filter(|admitted| *admitted).count();
        let at = if passes { holders } else { self.places.len() };
        let place = Place {
            id: ticket.id,
            seq: self.token(last, ticket),
            weight: ticket.weight,
            waited: false,
            expires: Instant::now(),
            note: Arc::clone(note),
        };
        self.places.insert(at, place);
        let admitted = self.is_admitted(at);
        self.places[at].expires = self.expiry(ticket, admitted);
        self.places[at].waited = !admitted;
        let has_place = match self.bug {
            Some(Bug::TryTakesAPlace) => true,
            Some(Bug::PromisesAQueueItHasNot) => admitted,
            Some(Bug::TryRefusesAlways) => !is_try,
            _ => admitted || !is_try,
        };
        if has_place {
            return self.standing(at, ticket);
        }
        self.places.remove(at);
        Standing::Waiting { seq: None, again: ticket.wait_lease / 3 }
    }

    /// A new token, and as many more as the ticket reserves.
    fn token(&self, last: &mut u64, ticket: &Ticket) -> Seq {
        match self.bug {
            Some(Bug::TokensRepeat) if self.is_empty() && *last > 0 => return Seq(*last),
            Some(Bug::TokensRestart) if self.is_empty() => *last = 0,
            Some(Bug::TokensFall) => {
                *last += 1;
                return Seq(u64::from(u32::MAX) - *last);
            }
            _ => {}
        }
        let ignores = self.has(Bug::JoinsBelowLowerBounds);
        let seq = (*last + 1).max(if ignores { 0 } else { ticket.min_token });
        let count = if self.has(Bug::IgnoresTokenCounts) { 1 } else { ticket.token_count.max(1) };
        *last = seq + u64::from(count) - 1;
        Seq(seq)
    }

    fn expiry(&self, ticket: &Ticket, admitted: bool) -> Instant {
        let whole = admitted || self.has(Bug::IgnoresWaitLeases);
        let lease = if whole { ticket.lease } else { ticket.wait_lease };
        Instant::now()
            + match self.bug {
                Some(Bug::LapsesTooSoon) => lease / 2,
                Some(Bug::LapsesTooLate) => lease * 2,
                _ => lease,
            }
    }

    fn standing(&self, at: usize, ticket: &Ticket) -> Standing {
        let place = &self.places[at];
        if self.is_admitted(at) {
            let changes = place.waited && self.has(Bug::AdmissionChangesTokens);
            return Standing::Admitted(Seq(place.seq.0 + u64::from(changes)));
        }
        let soonest = self.places[..at].iter().map(|ahead| ahead.expires).min();
        let lapse = soonest.unwrap_or(place.expires).saturating_duration_since(Instant::now());
        let again = match self.bug {
            Some(Bug::AsksTooSeldom) => Duration::from_secs(60),
            Some(Bug::AsksWithoutAPause) => Duration::ZERO,
            _ => (ticket.wait_lease / 3).min(lapse).max(Duration::from_millis(2)),
        };
        Standing::Waiting { seq: Some(place.seq), again }
    }

    /// Gives a place up, and returns whether there was one.
    pub(crate) fn leave(&mut self, id: TicketId) -> bool {
        let found = self.position(id);
        let stays = found.is_some_and(|at| match self.bug {
            Some(Bug::LeaveKeepsHolders) => self.is_admitted(at),
            Some(Bug::LeaveKeepsWaiters) => !self.is_admitted(at),
            _ => false,
        });
        let removed = match self.bug {
            Some(Bug::LeaveRemovesTheFirst) if !self.is_empty() => Some(0),
            _ => found.filter(|_| !stays),
        };
        if let Some(at) = removed {
            self.places.remove(at);
            if self.has(Bug::ForgetsWaiters) {
                self.places.clear();
            }
        }
        match self.bug {
            Some(Bug::LeaveSaysAlwaysYes) => true,
            Some(Bug::LeaveSaysAlwaysNo) => false,
            _ => removed.or(found).is_some(),
        }
    }

    /// Removes a place by force, and returns a token that fences its ticket.
    pub(crate) fn evict(&mut self, last: &mut u64, id: TicketId) -> Option<Seq> {
        let at = match (self.bug, self.position(id)) {
            (Some(Bug::EvictRemovesTheFirst), Some(_)) => 0,
            (Some(Bug::EvictRemovesForStrangers), None) if !self.is_empty() => 0,
            (_, found) => found?,
        };
        let own = self.places[at].seq;
        let behind = self.places.get(at + 1).map(|place| place.seq);
        if !self.has(Bug::EvictRemovesNothing) {
            self.places.remove(at);
        }
        match self.bug {
            Some(Bug::EvictGivesNoToken) => None,
            Some(Bug::EvictGivesALowToken) => Some(own),
            Some(Bug::EvictGivesAHighToken) => Some(Seq(*last + 1000)),
            _ => behind.or_else(|| {
                *last += 1;
                Some(Seq(*last))
            }),
        }
    }

    /// Whether a list has the line.
    pub(crate) fn is_listed(&self) -> bool {
        self.has(Bug::ListsEmptyLines)
            || self.has(Bug::ListsLapsedPlaces)
            || !self.view().is_empty()
    }

    /// The places as a snapshot shows them.
    pub(crate) fn view(&self) -> Vec<QueueEntry> {
        let now = Instant::now();
        let lasting = self.has(Bug::HoldersNeverLapse) || self.has(Bug::WaitersNeverLapse);
        let places = self.places.iter().zip(self.admitted());
        let places = places.filter(|(place, _)| lasting || place.expires > now);
        let entries = places.map(|(place, admitted)| QueueEntry {
            id: place.id,
            seq: place.seq,
            weight: place.weight,
            admitted,
            expires_in: place.expires.saturating_duration_since(now),
            note: Arc::clone(&place.note),
        });
        self.distorted(entries.collect())
    }

    /// A view as the bugs of snapshots show it.
    fn distorted(&self, mut view: Vec<QueueEntry>) -> Vec<QueueEntry> {
        let Some(bug) = self.bug else { return view };
        let first = view.first().map(|entry| Arc::clone(&entry.note));
        view.retain(|entry| match bug {
            Bug::HidesHolders => !entry.admitted,
            Bug::HidesWaiters => entry.admitted,
            _ => true,
        });
        for entry in &mut view {
            match (bug, &first) {
                (Bug::ShowsWaitersAsHolders, _) => entry.admitted = true,
                (Bug::ShowsAnothersNote, Some(first)) => entry.note = Arc::clone(first),
                (Bug::ShowsNoNotes, _) => entry.note = "".into(),
                (Bug::ShowsNoWeights, _) => entry.weight = 1,
                (Bug::ShowsNoWeightsOfWaiters, _) if !entry.admitted => entry.weight = 1,
                (Bug::ShowsNoLeasesOfWaiters, _) if !entry.admitted => {
                    entry.expires_in = Duration::ZERO;
                }
                _ => {}
            }
        }
        if bug == Bug::ShowsTheLastFirst {
            view.reverse();
        }
        view
    }
}
