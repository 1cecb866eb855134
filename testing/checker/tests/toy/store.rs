//! The toy's store: one line of tickets per lock. Admission is derived from the order.

use std::collections::HashMap;

use super::{Answer, Bug, LOCKS, MS, Request, TTL, Verb};

#[derive(Debug, Clone, Copy)]
struct Ticket {
    id: u64,
    client: usize,
    weight: u64,
    fence: u64,
    expires: u64,
}

#[derive(Debug, Default)]
struct Line {
    tickets: Vec<Ticket>,
    /// Attempts that are over, with the answer that each gets from now on.
    over: HashMap<u64, Answer>,
    last_fence: u64,
    /// A stale copy of the weight in the line, for one of the bugs.
    copy: (u64, u64),
}

#[derive(Debug)]
pub(crate) struct Store {
    lines: Vec<Line>,
    bug: Option<Bug>,
}

/// The waiter that is to be told that it is admitted.
#[derive(Debug)]
pub(crate) struct Wake {
    pub(crate) client: usize,
    pub(crate) ticket: u64,
    pub(crate) fence: u64,
}

impl Store {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Self { lines: LOCKS.iter().map(|_| Line::default()).collect(), bug }
    }

    pub(crate) fn serve(&mut self, now: u64, request: &Request) -> (Answer, Vec<Wake>) {
        let before = self.admitted(request.lock);
        self.lines[request.lock].tickets.retain(|t| t.expires > now);
        if self.lines[request.lock].tickets.is_empty() && self.has(Bug::FenceResetWhenEmpty) {
            self.lines[request.lock].last_fence = 0;
        }
        let answer = match request.verb {
            Verb::Enter { weight, wait } => self.enter(now, request, weight, wait),
            Verb::Keep => self.keep(now, request),
            Verb::Leave => self.leave(request),
        };
        let after = self.admitted(request.lock).into_iter();
        let new = after.filter(|t| t.id != request.ticket && !before.iter().any(|b| b.id == t.id));
        let wake = |t: Ticket| Wake { client: t.client, ticket: t.id, fence: t.fence };
        (answer, new.map(wake).collect())
    }

    /// The owners in a line: everybody whose lease runs.
    pub(crate) fn owners(&self, now: u64, lock: usize) -> Vec<String> {
        let live = self.lines[lock].tickets.iter().filter(|t| t.expires > now);
        live.map(|t| format!("t{}", t.id)).collect()
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn admitted(&self, lock: usize) -> Vec<Ticket> {
        let (name, capacity, _) = LOCKS[lock];
        let extra = u64::from(name == "semaphore" && self.has(Bug::SemaphoreOffByOne));
        let mut weight = 0;
        let prefix = |t: &&Ticket| {
            weight += t.weight;
            let blind = self.has(Bug::ReaderPastHoldingWriter) && capacity > 3 && t.weight == 1;
            weight <= capacity + extra || blind
        };
        self.lines[lock].tickets.iter().take_while(prefix).copied().collect()
    }

    fn enter(&mut self, now: u64, request: &Request, weight: u64, wait: bool) -> Answer {
        let line = &mut self.lines[request.lock];
        if let Some(answer) = line.over.get(&request.ticket) {
            return *answer;
        }
        let stale_view = self.bug == Some(Bug::TryReadsStaleCopy);
        if stale_view && now >= line.copy.0 + 300 * MS {
            line.copy = (now, line.tickets.iter().map(|t| t.weight).sum());
        }
        if let Some(mine) = line.tickets.iter_mut().find(|t| t.id == request.ticket) {
            mine.expires = now + TTL;
        } else {
            let seen = if stale_view && !wait { line.copy.1 } else { 0 };
            let fence = if self.bug == Some(Bug::FenceFromOwner) {
                request.ticket.wrapping_mul(0x9e37_79b9) % 1_000_003
            } else {
                line.last_fence + 1
            };
            line.last_fence += 1;
            let (id, client) = (request.ticket, request.client);
            let ticket = Ticket { id, client, weight, fence, expires: now + TTL };
            let at = self.place(request.lock, weight);
            self.lines[request.lock].tickets.insert(at, ticket);
            if seen + weight > LOCKS[request.lock].1 {
                return self.refuse(request);
            }
        }
        match self.admitted(request.lock).iter().find(|t| t.id == request.ticket) {
            Some(mine) => Answer::Admitted { fence: mine.fence },
            None if wait => Answer::Waiting,
            None => self.refuse(request),
        }
    }

    fn refuse(&mut self, request: &Request) -> Answer {
        let line = &mut self.lines[request.lock];
        line.tickets.retain(|t| t.id != request.ticket);
        line.over.insert(request.ticket, Answer::Busy);
        Answer::Busy
    }

    /// Where a new ticket goes: the end, if no bug says otherwise.
    fn place(&self, lock: usize, weight: u64) -> usize {
        let admitted = self.admitted(lock);
        let readers = admitted.iter().all(|t| t.weight == 1);
        let overtakes = LOCKS[lock].0 == "readwrite" && weight == 1 && readers;
        match self.bug {
            Some(Bug::NewestFirst) => admitted.len(),
            Some(Bug::ReaderPastWaitingWriter) if overtakes => admitted.len(),
            _ => self.lines[lock].tickets.len(),
        }
    }

    fn keep(&mut self, now: u64, request: &Request) -> Answer {
        let admitted = self.admitted(request.lock);
        let recreates = self.has(Bug::RenewRecreates) || self.has(Bug::RenewAfterRelease);
        let line = &mut self.lines[request.lock];
        if let Some(mine) = admitted.iter().find(|t| t.id == request.ticket) {
            let held = line.tickets.iter_mut().filter(|t| t.id == mine.id);
            held.for_each(|t| t.expires = now + TTL);
            return Answer::Admitted { fence: mine.fence };
        }
        if recreates {
            let (id, client) = (request.ticket, request.client);
            let fence = line.last_fence;
            let back = Ticket { id, client, weight: 1, fence, expires: now + TTL };
            line.tickets.insert(0, back);
            return Answer::Admitted { fence };
        }
        Answer::NotHeld
    }

    fn leave(&mut self, request: &Request) -> Answer {
        let blind = self.has(Bug::LeaveWithoutCompare);
        let line = &mut self.lines[request.lock];
        if let Some(answer) = line.over.get(&request.ticket) {
            return *answer;
        }
        let mut at = line.tickets.iter().position(|t| t.id == request.ticket);
        if at.is_none() && blind && !line.tickets.is_empty() {
            at = Some(0);
        }
        let answer = at.map_or(Answer::NotHeld, |at| {
            line.tickets.remove(at);
            Answer::Left
        });
        line.over.insert(request.ticket, answer);
        answer
    }
}
