//! A simulated server: the kernel's line for each name, on a clock of its own.

use crate::clock::Clock;
use crate::entries::Entries;
use crate::invariants::{Cause, Fact, Line as At, Lock, PlaceView};
use crate::plan::{Bug, Class};
use crate::world::{Event, Message, World};
use holdline::stores::simulated::{Asked, Question, Told};
use holdline_kernel::{
    Enter, Head, Line, MemoryPlaces, Place, Refusal, Seq, Standing, Ticket, TicketId, Time,
};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Enter(Ticket, Enter),
    Leave(TicketId),
    /// Remove this ticket's place by force.
    Evict(TicketId),
    /// Query the holder.
    Look,
    /// Remove expired places, without a client's request.
    Sweep,
    /// A request of the library's engine for ephemeral entries.
    Ask(Asked),
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Request::Enter(ticket, how) => {
                let Ticket { id, weight, capacity, lease, wait_lease, .. } = ticket;
                write!(f, "{how:?} {id:?} weight {weight}/{capacity} for {lease:?}/{wait_lease:?}")
            }
            Request::Leave(id) => write!(f, "Leave {id:?}"),
            Request::Evict(id) => write!(f, "Evict {id:?}"),
            Request::Look => write!(f, "Look"),
            Request::Sweep => write!(f, "Sweep"),
            Request::Ask(Asked { session, number, question }) => {
                write!(f, "{question:?}, {number} of session {session}")
            }
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Stands(Ok(standing)) => write!(f, "{standing:?}"),
            Answer::Stands(Err(refusal)) => write!(f, "refused: {refusal:?}"),
            Answer::Left(there) => write!(f, "left, there: {there}"),
            Answer::Evicted(seq) => write!(f, "evicted: {seq:?}"),
            Answer::Holder(id) => write!(f, "holds: {id:?}"),
            Answer::Failed => write!(f, "failed"),
            Answer::Told(told) => {
                let places = told.entries.iter().map(|entry| (entry.id, entry.create));
                let places: Vec<_> = places.collect();
                write!(f, "session {}, {} at {}", told.session, told.deleted, told.revision)?;
                write!(f, ": {places:?}")
            }
        }
    }
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Stands(Result<Standing, Refusal>),
    Left(bool),
    Evicted(Option<Seq>),
    Holder(Option<TicketId>),
    /// The quorum or the engine could not decide.
    Failed,
    /// The answer to a request of the engine.
    Told(Told),
}

/// A server with its lines.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) clock: Clock,
    /// The end of its downtime.
    pub(crate) down: u64,
    pub(crate) lines: BTreeMap<Lock, (Head, MemoryPlaces<usize>)>,
    /// Its entries, if clients decide admission.
    pub(crate) entries: Entries,
}

/// A snapshot of a line before or after an operation.
pub(crate) struct Seen {
    pub(crate) places: Vec<PlaceView>,
    pub(crate) expires: Vec<Time>,
    pub(crate) capacity: u32,
}

/// The tickets that an operation wakes.
type Woken = Vec<(usize, TicketId, Seq)>;

impl Server {
    pub(crate) fn new(clock: Clock) -> Self {
        Server { clock, down: 0, lines: BTreeMap::new(), entries: Entries::default() }
    }

    pub(crate) fn count(&self, lock: Lock) -> usize {
        let places = self.lines.get(&lock).map_or(0, |(_, places)| places.iter().count());
        places + self.entries.count(lock)
    }

    /// The first place of a line, as an operator would see it.
    pub(crate) fn first(&self, lock: Lock) -> Option<TicketId> {
        let place = self.lines.get(&lock).and_then(|(_, places)| places.iter().next());
        place.map(|place| place.id).or_else(|| self.entries.first(lock))
    }

    fn seen(&self, lock: Lock) -> Seen {
        let Some((head, places)) = self.lines.get(&lock) else {
            return Seen { places: vec![], expires: vec![], capacity: 0 };
        };
        let place = |place: &Place<usize>| PlaceView {
            id: place.id,
            seq: place.seq,
            weight: place.weight,
            client: place.data,
            admitted: place.seq < head.front,
        };
        Seen {
            places: places.iter().map(place).collect(),
            expires: places.iter().map(|place| place.expires).collect(),
            capacity: head.capacity,
        }
    }

    /// Carries out a request, with the planted bugs.
    fn act(
        &mut self,
        at: u64,
        lock: Lock,
        client: usize,
        request: Request,
        bug: Option<Bug>,
    ) -> (Answer, Woken) {
        let first = self.first(lock);
        let now = self.clock.local(at);
        let stamp = if bug == Some(Bug::CounterOnly) { 0 } else { now.0 / 1_000 };
        let (head, places) = self.lines.entry(lock).or_default();
        if bug == Some(Bug::NeverLapses) {
            head.due = Time::NEVER;
        }
        let mut woken = Vec::new();
        let wake = |place: &Place<usize>| woken.push((place.data, place.id, place.seq));
        let mut line = Line { head, places, now, stamp, wake };
        let answer = match request {
            Request::Enter(mut ticket, mut how) => {
                if bug == Some(Bug::FloorIgnored) && matches!(how, Enter::Keep(_)) {
                    ticket.min_token = 0;
                }
                if bug == Some(Bug::SpanIgnored) {
                    ticket.token_count = 1;
                }
                if bug == Some(Bug::TryOvertakes) && how == Enter::Try {
                    line.head.front = Seq::END;
                }
                let known = line.places.iter().any(|place| place.id == ticket.id);
                if bug == Some(Bug::KeepRecreates) && matches!(how, Enter::Keep(_)) && !known {
                    how = Enter::Queue;
                }
                let Ok(standing) = line.enter(&ticket, how, client);
                if bug == Some(Bug::CallerNotified)
                    && how == Enter::Queue
                    && let Ok(Standing::Admitted(seq)) = standing
                {
                    woken.push((client, ticket.id, seq));
                }
                Answer::Stands(standing)
            }
            Request::Leave(id) => {
                let id = if bug == Some(Bug::LeaveByName) { first.unwrap_or(id) } else { id };
                let Ok(there) = line.leave(id);
                Answer::Left(there)
            }
            Request::Evict(id) => {
                let place = line.places.iter().find(|place| place.id == id).map(|place| place.seq);
                let Ok(seq) = line.evict(id);
                Answer::Evicted(if bug == Some(Bug::FenceTooLow) { seq.and(place) } else { seq })
            }
            Request::Look => Answer::Holder(first),
            Request::Sweep | Request::Ask(_) => {
                let Ok(()) = line.expire();
                Answer::Left(false)
            }
        };
        (answer, woken)
    }
}

impl World {
    /// Handles a request that arrives.
    pub(crate) fn serve(&mut self, message: Message) {
        let Message { client, call, line, request } = message;
        let server = line.1;
        if self.servers[server].down > self.now {
            self.note(format_args!("server {server} is down for client {client}"));
            return;
        }
        let answer = if let Request::Ask(_) = request {
            let answer = self.operate_entries(line, client, request);
            let Some(answer) = answer else { return }; // overtaken
            answer
        } else {
            self.operate(line, client, request)
        };
        self.note(format_args!("  line {line:?}: {request} of client {client}: {answer}"));
        self.post(client, server, Event::Replied { client, call, answer });
    }

    /// Removes expired places.
    pub(crate) fn sweep(&mut self, line: At) {
        self.operate(line, usize::MAX, Request::Sweep);
    }

    /// Carries out one operation, notifies the tickets that it wakes, and reports what changed.
    pub(crate) fn operate(&mut self, line: At, client: usize, request: Request) -> Answer {
        if self.plan.class == Class::Entries {
            return self.operate_entries(line, client, request).unwrap_or(Answer::Failed);
        }
        let (now, bug) = (self.now, self.config.bug);
        let (lock, server) = line;
        let before = self.servers[server].seen(lock);
        let (answer, mut woken) = self.servers[server].act(now, lock, client, request, bug);
        let after = self.servers[server].seen(lock);
        self.tell_notified(line, request, &before, &after, &woken);
        if let Request::Evict(id) = request
            && let Some(place) = before.places.iter().find(|place| place.id == id)
            && answer != Answer::Evicted(None)
        {
            self.stats.evictions += 1;
            self.note(format_args!("line {line:?}: {place:?} is broken by force"));
            woken.push((place.client, id, place.seq));
        }
        for (client, id, seq) in woken {
            self.stats.notices += 1;
            // A quorum asks each of its servers, whatever the others answer.
            let evicted = matches!(request, Request::Evict(victim) if victim == id);
            let admitted = !evicted && !self.plan.class.is_quorum();
            self.post(client, server, Event::Noticed { client, id, seq, admitted });
        }
        self.tell_removed(line, &before, &after, request);
        self.tell_line(line, &before, &after);
        self.tell_numbers(line, request, &answer, (&before, &after));
        answer
    }

    /// Reports the number of a place that was entered, and the token that fences one that was
    /// removed by force.
    fn tell_numbers(
        &mut self,
        line: At,
        request: Request,
        answer: &Answer,
        (before, after): (&Seen, &Seen),
    ) {
        match (request, answer) {
            (
                Request::Enter(ticket, _),
                &Answer::Stands(Ok(
                    Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. },
                )),
            ) => {
                let new = !before.places.iter().any(|place| place.seq == seq);
                self.tell(&Fact::Entered { line, ticket, seq, new });
            }
            (Request::Evict(id), &Answer::Evicted(Some(fence))) => {
                let place = before.places.iter().find(|place| place.id == id);
                let seq = place.map_or(Seq(0), |place| place.seq);
                let behind = after.places.iter().map(|place| place.seq).find(|it| *it > seq);
                self.tell(&Fact::Fenced { line, seq, fence, behind });
            }
            _ => {}
        }
    }

    /// Reports the places that a request admitted, and the places that it notified.
    fn tell_notified(
        &mut self,
        line: At,
        request: Request,
        before: &Seen,
        after: &Seen,
        woken: &Woken,
    ) {
        let caller = match request {
            Request::Enter(Ticket { id, .. }, _) | Request::Leave(id) | Request::Evict(id) => {
                Some(id)
            }
            Request::Look | Request::Sweep | Request::Ask(_) => None,
        };
        let waited = |seq| !before.places.iter().any(|place| place.seq == seq && place.admitted);
        let admitted: Vec<Seq> = after
            .places
            .iter()
            .filter(|place| place.admitted && waited(place.seq) && Some(place.id) != caller)
            .map(|place| place.seq)
            .collect();
        let notified: Vec<Seq> = woken.iter().map(|(_, _, seq)| *seq).collect();
        self.tell(&Fact::Notified { line, admitted: &admitted, notified: &notified });
    }

    pub(crate) fn tell_removed(&mut self, line: At, before: &Seen, after: &Seen, request: Request) {
        for place in &before.places {
            if after.places.iter().any(|other| other.seq == place.seq) {
                continue;
            }
            let cause = match request {
                Request::Leave(id) if id == place.id => Cause::Left,
                Request::Ask(Asked { question: Question::Delete(id), .. }) if id == place.id => {
                    Cause::Left
                }
                Request::Evict(id) if id == place.id => Cause::Evicted,
                _ => Cause::Lapsed,
            };
            if cause == Cause::Lapsed {
                self.stats.lapses += 1;
                self.note(format_args!("  line {line:?}: {:?} is gone", place.seq));
            }
            self.tell(&Fact::Removed { line, id: place.id, seq: place.seq, cause });
        }
    }

    pub(crate) fn tell_line(&mut self, line: At, before: &Seen, after: &Seen) {
        let clock = self.servers[line.1].clock;
        self.tell(&Fact::Line { line, capacity: after.capacity, places: &after.places });
        for (place, expires) in after.places.iter().zip(&after.expires) {
            let (id, seq) = (place.id, place.seq);
            // Waiting places too: a place is kept as long if it is admitted meanwhile.
            self.tell(&Fact::Promised { line, id, seq, until: clock.when(*expires) });
            if !place.admitted {
                continue;
            }
            if !before.places.iter().any(|other| other.seq == seq && other.admitted) {
                self.tell(&Fact::Admitted { line, seq });
            }
        }
    }
}
