//! The simulated renewer, modelled on the library's: it renews held locks, reports losses, and
//! leaves.

use crate::client::{Acquiring, State, Timer};
use crate::invariants::{Fact, Lock};
use crate::plan::{Bug, Class, Kind};
use crate::server::{Answer, Request};
use crate::world::World;
use holdline_kernel::{Enter, LeaseTimer, Next, Seq, Standing, Ticket, TicketId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// A held lock.
#[derive(Debug)]
pub(crate) struct Holding {
    lock: Lock,
    ticket: Ticket,
    seq: Seq,
    hold: LeaseTimer,
    turn: u64,
    /// The renewals under way, and when each was sent.
    calls: BTreeMap<u64, Time>,
}

/// A place to be given up, until the server has confirmed it.
#[derive(Debug)]
pub(crate) struct Leaving {
    lock: Lock,
    call: u64,
    tries: u32,
}

/// The time limit of a leave, and the number of attempts before the place is left to expire.
const LEAVE_TIME: Duration = Duration::from_millis(300);
const LEAVE_TRIES: u32 = 8;

impl World {
    fn holding(&mut self, client: usize) -> Option<&mut Holding> {
        match &mut self.clients[client].state {
            State::Held(holding) => Some(holding),
            _ => None,
        }
    }

    /// Keeps the lock of a granted acquisition.
    pub(crate) fn hold(
        &mut self,
        client: usize,
        acquiring: &Acquiring,
        seq: Seq,
        hold: LeaseTimer,
    ) {
        let &Acquiring { lock, ticket, .. } = acquiring;
        let until = self.clients[client].clock.when(hold.until());
        let holding = Holding { lock, ticket, seq, hold, turn: 0, calls: BTreeMap::new() };
        self.clients[client].state = State::Held(Box::new(holding));
        self.tell(&Fact::Granted { lock, ticket, seq, until });
        self.keep(client);
    }

    pub(crate) fn renewer_wakes(&mut self, client: usize, turn: u64) {
        if self.holding(client).is_some_and(|holding| holding.turn == turn) {
            self.keep(client);
        }
    }

    /// Carries out the lease timer's steps that are due.
    fn keep(&mut self, client: usize) {
        let now = self.local(client);
        loop {
            let Some(holding) = self.holding(client) else { return };
            match holding.hold.next(now) {
                Next::Sleep(until) => {
                    let turn = self.fresh(client);
                    if let Some(holding) = self.holding(client) {
                        holding.turn = turn;
                    }
                    return self.set_timer(client, until, Timer::Keep { turn });
                }
                Next::Renew => self.renew(client, now),
                Next::Lose => return self.lose(client, "its deadline has come"),
            }
        }
    }

    fn renew(&mut self, client: usize, now: Time) {
        self.maybe_lower(client);
        let Some(&mut Holding { lock, ticket, seq, .. }) = self.holding(client) else { return };
        // Noted before the request: the library may answer at once.
        let call = self.fresh(client);
        if let Some(holding) = self.holding(client) {
            holding.calls.insert(call, now);
        }
        self.call_as(client, call, lock, Request::Enter(ticket, Enter::Keep(seq)));
    }

    /// Sometimes downgrades a writer to a reader with its next renewal.
    fn maybe_lower(&mut self, client: usize) {
        let lower = self.rng.chance(200);
        let Some(&mut Holding { lock, ticket, .. }) = self.holding(client) else { return };
        if lower && self.plan.locks[lock].kind == Kind::ReadWrite && ticket.weight > 1 {
            self.note(format_args!("client {client} goes on as a reader"));
            if let Some(holding) = self.holding(client) {
                holding.ticket.weight = 1;
            }
            self.tell(&Fact::Lowered { lock, id: ticket.id, weight: 1 });
        }
    }

    pub(crate) fn renewal_replied(&mut self, client: usize, call: u64, answer: &Answer) {
        let now = self.local(client);
        let from_reply = self.config.bug == Some(Bug::ValidFromReply);
        let clock = self.clients[client].clock;
        let Some(holding) = self.holding(client) else { return };
        let Some(sent) = holding.calls.remove(&call) else { return };
        let sent = if from_reply { now } else { sent };
        if now >= holding.hold.until() {
            return self.lose(client, "the renewal came too late");
        }
        match answer {
            Answer::Stands(Ok(Standing::Admitted(_))) => {
                let lease = holding.hold.lease();
                holding.hold.renewed(lease, sent);
                let (lock, id, seq) = (holding.lock, holding.ticket.id, holding.seq);
                let until = clock.when(holding.hold.until());
                self.tell(&Fact::Renewed { lock, id, seq, until });
                self.keep(client);
            }
            Answer::Stands(Ok(_)) => self.lose(client, "the server does not know it"),
            // A renewal with the old weight, overtaken by one with the lower weight.
            Answer::Stands(Err(_))
            | Answer::Left(_)
            | Answer::Evicted(_)
            | Answer::Holder(_)
            | Answer::Told(_)
            | Answer::Failed => {}
        }
    }

    /// Handles a hint that a held ticket's place may be gone.
    pub(crate) fn verify(&mut self, client: usize, id: TicketId) {
        let now = self.local(client);
        if let Some(holding) = self.holding(client)
            && holding.ticket.id == id
        {
            holding.hold.verify(now);
            self.keep(client);
        }
    }

    fn lose(&mut self, client: usize, why: &str) {
        self.stats.losses += 1;
        self.note(format_args!("client {client} is told that it LOST: {why}"));
        self.stop(client);
    }

    /// Releases the lock when the work is done.
    pub(crate) fn release(&mut self, client: usize) {
        let now = self.local(client);
        let Some(holding) = self.holding(client) else { return };
        if now >= holding.hold.until() {
            return self.lose(client, "its deadline passed while it worked");
        }
        self.note(format_args!("client {client} releases"));
        self.stop(client);
    }

    fn stop(&mut self, client: usize) {
        let Some(&mut Holding { lock, ticket, .. }) = self.holding(client) else { return };
        self.clients[client].state = State::Idle;
        self.tell(&Fact::Ended { lock, id: ticket.id });
        self.leave(client, lock, ticket.id);
        self.rest(client);
    }

    /// Gives up a place, and retries until the server has confirmed it.
    pub(crate) fn leave(&mut self, client: usize, lock: Lock, id: TicketId) {
        self.tell(&Fact::Disowned { id });
        self.send_leave(client, lock, id, 0);
    }

    fn send_leave(&mut self, client: usize, lock: Lock, id: TicketId, tries: u32) {
        let call = self.fresh(client);
        self.clients[client].leaving.insert(id, Leaving { lock, call, tries });
        self.call_as(client, call, lock, Request::Leave(id));
        let again = self.local(client).after(LEAVE_TIME);
        self.set_timer(client, again, Timer::LeaveAgain { id });
    }

    pub(crate) fn leave_again(&mut self, client: usize, id: TicketId) {
        let Some(Leaving { lock, tries, .. }) = self.clients[client].leaving.remove(&id) else {
            return;
        };
        if tries < LEAVE_TRIES {
            self.send_leave(client, lock, id, tries + 1);
        }
    }

    /// Handles the reply to a leave. Returns whether it was one.
    ///
    /// A failed leave is retried only with entries; in a quorum, the other nodes have heard of it.
    pub(crate) fn left(&mut self, client: usize, call: u64, answer: &Answer) -> bool {
        let again = self.plan.class == Class::Entries && matches!(answer, Answer::Failed);
        let leaving = &mut self.clients[client].leaving;
        let is_one = leaving.values().any(|leaving| leaving.call == call);
        leaving.retain(|_, leaving| again || leaving.call != call);
        is_one
    }
}
