//! The naive model of the line: a list of places, and the rule computed from scratch each time. It
//! keeps no head, no counters and no marks, so it shares no shortcut with the code under test.
#![allow(dead_code, reason = "each test file uses its own part of it")]

use core::convert::Infallible;
use core::time::Duration;
use holdline_kernel::{
    Enter, Head, Line, MemoryPlaces, Place, Places, Refusal, Seq, Standing, Ticket, TicketId, Time,
};

/// The shortest wait that a line ever asks for.
pub(crate) const SOONEST: Duration = Duration::from_millis(2);

/// One operation on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Enter by this ticket.
    Enter(Ticket, Enter),
    /// Leave the line.
    Leave(TicketId),
    /// Remove the place by force.
    Evict(TicketId),
    /// Remove all expired places.
    Expire,
}

impl Op {
    /// The ticket of the operation's caller, who learns the outcome from the reply.
    pub(crate) fn asker(&self) -> Option<TicketId> {
        match self {
            Op::Enter(ticket, _) => Some(ticket.id),
            Op::Leave(id) | Op::Evict(id) => Some(*id),
            Op::Expire => None,
        }
    }
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A standing, or a refusal.
    Stands(Result<Standing, Refusal>),
    /// Whether there was a place to leave.
    Left(bool),
    /// The token that an eviction returned.
    Evicted(Option<Seq>),
    /// No answer.
    Done,
}

/// A place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelPlace {
    pub(crate) id: TicketId,
    pub(crate) seq: Seq,
    pub(crate) weight: u32,
    pub(crate) expires: Time,
}

/// The naive line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Naive {
    pub(crate) spots: Vec<ModelPlace>,
    pub(crate) capacity: u32,
    pub(crate) last: u64,
}

impl Naive {
    /// The rule: the weight ahead, plus its own, fits the capacity.
    pub(crate) fn admitted(&self, at: usize) -> bool {
        let sum: u64 =
            self.spots[..=at].iter().map(|model_place| u64::from(model_place.weight)).sum();
        sum <= u64::from(self.capacity)
    }

    /// The holders.
    pub(crate) fn holders(&self) -> Vec<(TicketId, Seq)> {
        let admitted = (0..self.spots.len()).filter(|&at| self.admitted(at));
        admitted.map(|at| (self.spots[at].id, self.spots[at].seq)).collect()
    }

    fn find(&self, id: TicketId) -> Option<usize> {
        self.spots.iter().position(|model_place| model_place.id == id)
    }

    fn earliest(&self) -> Time {
        self.spots.iter().map(|model_place| model_place.expires).min().unwrap_or(Time::NEVER)
    }

    fn lapse(&mut self, now: Time) {
        self.spots.retain(|model_place| model_place.expires > now);
    }

    fn remove(&mut self, id: TicketId) -> bool {
        let before = self.spots.len();
        self.spots.retain(|model_place| model_place.id != id);
        self.spots.len() < before
    }

    /// Carries out an operation.
    pub(crate) fn apply(&mut self, op: Op, now: Time, stamp: u64) -> Answer {
        if let Op::Enter(ticket, _) = op
            && (ticket.weight == 0 || ticket.weight > ticket.capacity)
        {
            return Answer::Stands(Err(Refusal::Weight));
        }
        self.lapse(now);
        match op {
            Op::Expire => Answer::Done,
            Op::Leave(id) => Answer::Left(self.remove(id)),
            Op::Evict(id) => Answer::Evicted(self.evict(id, stamp)),
            Op::Enter(ticket, how) => Answer::Stands(self.enter(ticket, how, now, stamp)),
        }
    }

    fn evict(&mut self, id: TicketId, stamp: u64) -> Option<Seq> {
        let at = self.spots.iter().position(|model_place| model_place.id == id)?;
        let behind = self.spots.get(at + 1).map(|model_place| model_place.seq);
        self.remove(id);
        Some(behind.unwrap_or_else(|| {
            self.last = (self.last + 1).max(stamp);
            Seq(self.last)
        }))
    }

    fn enter(
        &mut self,
        ticket: Ticket,
        how: Enter,
        now: Time,
        stamp: u64,
    ) -> Result<Standing, Refusal> {
        if !self.spots.is_empty() && self.capacity != ticket.capacity {
            return Err(Refusal::Capacity { line: self.capacity });
        }
        match (self.find(ticket.id), how) {
            (Some(at), Enter::Keep(seq)) if self.spots[at].seq != seq => Ok(Standing::Lost),
            (None, Enter::Keep(_)) => Ok(Standing::Lost),
            (Some(at), _) if ticket.weight > self.spots[at].weight => Err(Refusal::Weight),
            (Some(at), _) => {
                if !self.admitted(at) {
                    // It entered as a waiter, even if its lower weight admits it.
                    let model_place = &mut self.spots[at];
                    model_place.expires = model_place.expires.max(now.after(ticket.wait_lease));
                }
                self.spots[at].weight = ticket.weight;
                if ticket.min_token > 0 {
                    let reserved = u64::from(ticket.token_count.max(1)) - 1;
                    self.last = self.last.max(ticket.min_token + reserved);
                }
                Ok(self.stands(at, ticket, now))
            }
            (None, _) => {
                let before = self.clone();
                self.capacity = ticket.capacity;
                let seq = Seq((self.last + 1).max(stamp).max(ticket.min_token));
                self.last = seq.0 + u64::from(ticket.token_count.max(1)) - 1;
                let fresh = ModelPlace { id: ticket.id, seq, weight: ticket.weight, expires: now };
                self.spots.push(fresh);
                let at = self.spots.len() - 1;
                if how == Enter::Try && !self.admitted(at) {
                    *self = before;
                    return Ok(Standing::Waiting { seq: None, again: Duration::ZERO });
                }
                Ok(self.stands(at, ticket, now))
            }
        }
    }

    fn stands(&mut self, at: usize, ticket: Ticket, now: Time) -> Standing {
        let admitted = self.admitted(at);
        let model_place = &mut self.spots[at];
        let lasts = if admitted { ticket.lease } else { ticket.wait_lease };
        model_place.expires = model_place.expires.max(now.after(lasts));
        if admitted {
            Standing::Admitted(model_place.seq)
        } else {
            // The wait is checked separately, as bounds.
            Standing::Waiting { seq: Some(model_place.seq), again: Duration::ZERO }
        }
    }
}

/// The line under test and its model.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) head: Head,
    pub(crate) places: MemoryPlaces<()>,
    pub(crate) naive: Naive,
    pub(crate) now: Time,
    pub(crate) stamp: u64,
}

impl Default for Pair {
    fn default() -> Self {
        Pair {
            head: Head::default(),
            places: MemoryPlaces::default(),
            naive: Naive::default(),
            now: Time(0),
            stamp: 0,
        }
    }
}

/// Runs one operation on a line over any places.
pub(crate) fn run<P: Places<Data = (), Error = Infallible>>(
    head: &mut Head,
    places: &mut P,
    (now, stamp): (Time, u64),
    op: Op,
) -> (Answer, Vec<TicketId>) {
    let mut woken = Vec::new();
    let wake = |place: &Place<()>| woken.push(place.id);
    let mut line = Line { head, places, now, stamp, wake };
    let answer = match op {
        Op::Enter(ticket, how) => match line.enter(&ticket, how, ()) {
            Ok(standing) => Answer::Stands(standing),
            Err(never) => match never {},
        },
        Op::Leave(id) => match line.leave(id) {
            Ok(left) => Answer::Left(left),
            Err(never) => match never {},
        },
        Op::Evict(id) => match line.evict(id) {
            Ok(token) => Answer::Evicted(token),
            Err(never) => match never {},
        },
        Op::Expire => match line.expire() {
            Ok(()) => Answer::Done,
            Err(never) => match never {},
        },
    };
    (answer, woken)
}

impl Pair {
    /// The places of the line under test, in the model's type.
    pub(crate) fn spots(&self) -> Vec<ModelPlace> {
        let model_place = |p: &Place<()>| ModelPlace {
            id: p.id,
            seq: p.seq,
            weight: p.weight,
            expires: p.expires,
        };
        self.places.iter().map(model_place).collect()
    }

    fn run(&mut self, op: Op) -> (Answer, Vec<TicketId>) {
        run(&mut self.head, &mut self.places, (self.now, self.stamp), op)
    }

    /// Runs one operation on both, and checks all that must hold after any step.
    pub(crate) fn step(&mut self, op: Op) -> Answer {
        let before = self.clone();
        let (answer, woken) = self.run(op);
        let expected = self.naive.apply(op, self.now, self.stamp);
        self.same_answer(op, answer, expected);
        assert_eq!(self.spots(), self.naive.spots, "places differ after {op:?}");
        self.head_is_derived();
        self.step_is_fair(&before, op, &woken);
        if matches!(answer, Answer::Stands(Err(Refusal::Weight | Refusal::Capacity { .. }))) {
            self.refused_changes_nothing(&before, op);
        }
        self.again_is_the_same(op, answer);
        answer
    }

    fn same_answer(&self, op: Op, answer: Answer, expected: Answer) {
        let Answer::Stands(Ok(Standing::Waiting { seq, again })) = answer else {
            assert_eq!(answer, expected, "answer to {op:?} in {:?}", self.naive);
            return;
        };
        let same = Standing::Waiting { seq, again: Duration::ZERO };
        assert_eq!(Answer::Stands(Ok(same)), expected, "answer to {op:?} in {:?}", self.naive);
        let Op::Enter(ticket, _) = op else { unreachable!("only entering gives a standing") };
        let longest = (ticket.wait_lease / 3).max(SOONEST);
        assert!((SOONEST..=longest).contains(&again), "{again:?} is not a wait: {op:?}");
        let first_waiter = (0..self.naive.spots.len()).find(|&at| !self.naive.admitted(at));
        if seq.is_some() && first_waiter.map(|at| self.naive.spots[at].seq) == seq {
            let lapse = self.now.until(self.naive.earliest()).max(SOONEST);
            assert!(again <= lapse, "the first waiter sleeps through a lapse: {op:?}");
        } else if seq.is_some() {
            assert_eq!(again, longest, "a lapse would wake the whole line: {op:?}");
        }
    }

    fn head_is_derived(&self) {
        let naive = &self.naive;
        let (mut held, mut front, mut prefix) = (0, Seq::END, true);
        for at in 0..naive.spots.len() {
            if naive.admitted(at) {
                assert!(prefix, "the admitted are no prefix: {naive:?}");
                held += u64::from(naive.spots[at].weight);
            } else {
                front = front.min(naive.spots[at].seq);
                prefix = false;
            }
        }
        assert!(naive.spots.is_empty() || held <= u64::from(naive.capacity));
        let head = self.head;
        assert_eq!(head.count, naive.spots.len() as u64, "count: {naive:?}");
        assert_eq!(head.held, held, "held: {naive:?}");
        assert_eq!(head.front, front, "front: {naive:?}");
        assert_eq!(head.last, naive.last, "last: {naive:?}");
        assert!(head.due <= naive.earliest(), "due would sleep through a lapse: {naive:?}");
        assert!(head.count > 0 || head.due == Time::NEVER, "due of an empty line");
        assert!(head.count == 0 || head.capacity == naive.capacity, "capacity: {naive:?}");
    }

    /// Checks that no holder is un-admitted, place numbers rise, and exactly those newly admitted
    /// are woken.
    fn step_is_fair(&self, before: &Pair, op: Op, woken: &[TicketId]) {
        let (was, is) = (before.naive.holders(), self.naive.holders());
        let there = |seq: Seq| self.naive.spots.iter().any(|model_place| model_place.seq == seq);
        for holder in &was {
            assert!(is.contains(holder) || !there(holder.1), "{op:?} un-admitted {holder:?}");
        }
        assert!(self.head.last >= before.head.last, "{op:?} took the tokens back");
        assert!(self.naive.spots.is_sorted_by(|a, b| a.seq < b.seq), "seqs do not rise");
        for model_place in &self.naive.spots {
            let old = before
                .naive
                .spots
                .iter()
                .any(|o| o.id == model_place.id && o.seq == model_place.seq);
            assert!(old || model_place.seq.0 > before.head.last, "{op:?} reused a token");
        }
        let let_in: Vec<TicketId> = is
            .iter()
            .filter(|holder| !was.contains(holder) && Some(holder.0) != op.asker())
            .map(|holder| holder.0)
            .collect();
        assert_eq!(woken, let_in, "woken by {op:?} in {:?}", before.naive);
    }

    fn refused_changes_nothing(&self, before: &Pair, op: Op) {
        let mut lapsed = before.clone();
        if before.naive.spots.iter().any(|model_place| model_place.expires <= self.now)
            && self.spots() != before.spots()
        {
            lapsed.run(Op::Expire);
        }
        assert_eq!(self.spots(), lapsed.spots(), "a refusal changed the line: {op:?}");
        assert_eq!(self.head.last, before.head.last, "a refusal spent a token: {op:?}");
    }

    /// Checks idempotence: the same operation again gives the same answer, changes nothing and
    /// wakes nobody.
    fn again_is_the_same(&self, op: Op, answer: Answer) {
        let mut twice = self.clone();
        let (second, woken) = twice.run(op);
        match answer {
            Answer::Left(_) => assert_eq!(second, Answer::Left(false)),
            Answer::Evicted(_) => assert_eq!(second, Answer::Evicted(None)),
            _ => assert_eq!(second, answer, "{op:?} twice in {:?}", self.naive),
        }
        assert_eq!(twice.spots(), self.spots(), "{op:?} is not idempotent");
        assert_eq!(twice.head, self.head, "{op:?} is not idempotent");
        assert_eq!(woken, [], "{op:?} wakes twice");
    }
}
