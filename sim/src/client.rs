//! A client: it runs the kernel's acquisitions as the library's driver does.

use crate::clock::Clock;
use crate::invariants::{Fact, Lock, Settled};
use crate::plan::{Bug, LEASES, LONGEST_WORK, Plan, WAIT_LEASES};
use crate::quorum::End;
use crate::renewer::{Holding, Leaving};
use crate::server::{Answer, Request};
use crate::world::{Event, Letter, World};
use holdline_kernel::{
    Acquisition, Action, Backoff, Event as Happened, Lease, LeaseTimer, Seq, Ticket, TicketId,
    Time, WaitMode,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a client set a timer for. Each carries what makes it stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// Want a lock.
    Begin,
    /// A request has had its time.
    Due { call: u64 },
    /// The wait is over.
    Wake { turn: u64 },
    /// The renewer has something to do.
    Keep { turn: u64 },
    /// The work is done.
    Done { attempt: u64 },
    /// The caller wants it no longer.
    Cancel { attempt: u64 },
    /// Something at the quorum has a time limit.
    Look,
    /// A leave was not answered.
    LeaveAgain { id: TicketId },
}

/// An acquisition, and what the driver knows beside it.
#[derive(Debug)]
pub(crate) struct Claiming {
    pub(crate) lock: Lock,
    pub(crate) ticket: Ticket,
    pub(crate) lease: Lease,
    acquisition: Acquisition,
    /// The request that is out, and when it was sent.
    call: Option<(u64, Time)>,
    /// The timer of the wait, if it waits.
    turn: Option<u64>,
    /// A notice came while a request was out; and of which place's admission the last one was.
    noticed: bool,
    told: Option<Seq>,
}

/// What a client is doing.
#[derive(Debug)]
pub(crate) enum State {
    Idle,
    Claiming(Box<Claiming>),
    Held(Box<Holding>),
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) clock: Clock,
    pub(crate) asleep_until: u64,
    /// Its end of the quorum, if locks are kept by one.
    pub(crate) end: Option<End>,
    pub(crate) state: State,
    pub(crate) leaving: BTreeMap<TicketId, Leaving>,
    /// How many locks it will still want once the faults have stopped.
    pub(crate) encores: u32,
    /// A server has answered it.
    pub(crate) reached: bool,
    pub(crate) attempt: u64,
    /// When the attempt began, in true time.
    began: u64,
    count: u64,
}

impl Client {
    pub(crate) fn new(plan: &Plan, client: usize) -> Self {
        Client {
            clock: plan.clients[client],
            end: plan.class.is_quorum().then(|| End::new(plan.servers.len())),
            asleep_until: 0,
            state: State::Idle,
            leaving: BTreeMap::new(),
            encores: 2,
            reached: false,
            attempt: 0,
            began: 0,
            count: 0,
        }
    }
}

impl World {
    pub(crate) fn local(&self, client: usize) -> Time {
        self.clients[client].clock.local(self.now)
    }

    /// Sets a timer by the client's own clock.
    pub(crate) fn alarm(&mut self, client: usize, at: Time, alarm: Alarm) {
        let at = self.clients[client].clock.when(at);
        if at < u64::MAX {
            self.at(at, Event::Rings { client, alarm });
        }
    }

    pub(crate) fn fresh(&mut self, client: usize) -> u64 {
        self.clients[client].count += 1;
        self.clients[client].count
    }

    /// Sends a request, and returns the number of the call.
    pub(crate) fn call(&mut self, client: usize, lock: Lock, request: Request) -> u64 {
        let call = self.fresh(client);
        self.call_as(client, call, lock, request);
        call
    }

    fn call_as(&mut self, client: usize, call: u64, lock: Lock, request: Request) {
        self.note(format_args!("client {client} calls {call}: {request} in line {lock}"));
        if self.clients[client].end.is_some() {
            self.ask_quorum(client, call, lock, request);
        } else if let Some(line) = self.plan.lines(lock).next() {
            self.post(client, line.1, Event::Arrives(Letter { client, call, line, request }));
        }
    }

    pub(crate) fn ring(&mut self, client: usize, alarm: Alarm) {
        match alarm {
            Alarm::Begin => self.begin(client),
            Alarm::Due { call } => self.timed_out(client, call),
            Alarm::Wake { turn } => self.wake(client, turn),
            Alarm::Keep { turn } => self.renewer_wakes(client, turn),
            Alarm::Done { attempt } if self.clients[client].attempt == attempt => {
                self.release(client);
            }
            Alarm::Cancel { attempt } if self.clients[client].attempt == attempt => {
                self.cancel(client);
            }
            Alarm::Done { .. } | Alarm::Cancel { .. } => {}
            Alarm::Look => self.look(client),
            Alarm::LeaveAgain { id } => self.leave_again(client, id),
        }
    }

    fn mode(&mut self) -> WaitMode {
        let ms = Duration::from_millis;
        let schedule = self.rng.pick(&[
            Backoff::fixed(ms(50)),
            Backoff::shrinking(ms(50)),
            Backoff::exponential(ms(10), ms(200)).jitter(50),
        ]);
        match self.rng.below(10) {
            0 => WaitMode::Try,
            // It has no queue.
            _ if self.plan.class.is_quorum() => WaitMode::Barge(schedule),
            1 | 2 => WaitMode::Poll(schedule),
            3 => WaitMode::Barge(schedule),
            _ => WaitMode::Listen,
        }
    }

    fn begin(&mut self, client: usize) {
        if self.is_calm() {
            if self.clients[client].encores == 0 {
                return;
            }
            self.clients[client].encores -= 1;
        }
        let lock = self.rng.below(self.plan.locks.len() as u64) as usize;
        let kind = self.plan.locks[lock].kind;
        let length = self.rng.pick(&LEASES);
        let margin = Duration::from_millis(self.rng.pick(&[5, 20, 100]));
        let ticket = Ticket {
            id: TicketId(self.rng.id()),
            weight: kind.weight(&mut self.rng),
            capacity: kind.capacity(),
            lease: length,
            wait_lease: self.rng.pick(&WAIT_LEASES),
            token_count: self.rng.pick(&[1, 1, 3]),
            min_token: 0,
        };
        let mode = self.mode();
        let limited = self.rng.chance(200);
        let limit = self.rng.millis(20, 3_000);
        let limit = if limited { self.local(client).after(limit) } else { Time::NEVER };
        let lease = Lease { length, margin };
        let mut acquisition = Acquisition::new(mode, lease, limit)
            .outlasting(Duration::MAX, self.clients[client].reached)
            .trusting(ticket.wait_lease);
        let action = acquisition.restart();
        self.clients[client].attempt += 1;
        self.clients[client].began = self.now;
        self.note(format_args!("client {client} wants line {lock}: {mode:?}"));
        self.tell(&Fact::Began { client, patient: !limited && mode != WaitMode::Try });
        self.tell(&Fact::Goes { client, id: ticket.id });
        let claiming = Claiming {
            lock,
            ticket,
            lease,
            acquisition,
            call: None,
            turn: None,
            noticed: false,
            told: None,
        };
        self.clients[client].state = State::Claiming(Box::new(claiming));
        if !self.is_calm() && self.rng.chance(100) {
            let wait = self.rng.millis(0, 2_000);
            let attempt = self.clients[client].attempt;
            self.after(wait, Event::Rings { client, alarm: Alarm::Cancel { attempt } });
        }
        self.perform(client, action);
    }

    fn claiming(&mut self, client: usize) -> Option<&mut Claiming> {
        match &mut self.clients[client].state {
            State::Claiming(claiming) => Some(claiming),
            _ => None,
        }
    }

    fn step(&mut self, client: usize, happened: Happened) {
        let (now, random) = (self.local(client), self.rng.next());
        if let Some(claiming) = self.claiming(client) {
            (claiming.call, claiming.turn) = (None, None);
            let action = claiming.acquisition.step(now, random, happened);
            self.perform(client, action);
        }
    }

    fn perform(&mut self, client: usize, action: Action) {
        let now = self.local(client);
        match action {
            Action::Send(how) => {
                let Some(&mut Claiming { lock, ticket, lease, .. }) = self.claiming(client) else {
                    return;
                };
                // Noted before it is asked: a quorum may have the answer at once.
                let call = self.fresh(client);
                let time = (lease.length / 3).max(Duration::from_millis(250));
                self.alarm(client, now.after(time), Alarm::Due { call });
                if let Some(claiming) = self.claiming(client) {
                    claiming.call = Some((call, now));
                }
                self.call_as(client, call, lock, Request::Enter(ticket, how));
            }
            Action::Wait { until, .. } => {
                let turn = self.fresh(client);
                let Some(claiming) = self.claiming(client) else { return };
                claiming.turn = Some(turn);
                // Subscribe, then ask, then wait: a notice that came in between is not lost.
                let at = if std::mem::take(&mut claiming.noticed) { now } else { until };
                self.alarm(client, at, Alarm::Wake { turn });
            }
            Action::Grant { seq, sent } => {
                let renewed = !self.rng.chance(100);
                self.granted(client, seq, |lease| LeaseTimer::new(lease, sent, renewed));
            }
            Action::GrantOnNotice { seq, until } => {
                self.granted(client, seq, |lease| LeaseTimer::trusted(lease, now, until));
            }
            Action::Restart => {
                self.new_ticket(client, true);
                if let Some(claiming) = self.claiming(client) {
                    let action = claiming.acquisition.restart();
                    self.perform(client, action);
                }
            }
            Action::GiveUp => self.end_claim(client, Settled::GaveUp),
            Action::Fail => self.end_claim(client, Settled::Failed),
        }
    }

    fn new_ticket(&mut self, client: usize, disown: bool) {
        let id = TicketId(self.rng.id());
        let Some(claiming) = self.claiming(client) else { return };
        let old = std::mem::replace(&mut claiming.ticket.id, id);
        (claiming.noticed, claiming.told) = (false, None);
        if disown {
            self.tell(&Fact::Disowned { id: old });
        }
        self.tell(&Fact::Goes { client, id });
    }

    fn granted(&mut self, client: usize, seq: Seq, hold: impl FnOnce(Lease) -> LeaseTimer) {
        let state = std::mem::replace(&mut self.clients[client].state, State::Idle);
        let State::Claiming(claiming) = state else { return };
        self.stats.grants += 1;
        self.note(format_args!("client {client} is GRANTED {seq:?} of line {}", claiming.lock));
        self.settled(client, Settled::Granted);
        let most = if self.is_calm() {
            20
        } else {
            self.rng.pick(&[5, 50, 50, 500, LONGEST_WORK.as_millis() as u64])
        };
        let work = self.rng.millis(0, most);
        let attempt = self.clients[client].attempt;
        self.after(work, Event::Rings { client, alarm: Alarm::Done { attempt } });
        let hold = hold(claiming.lease);
        self.hold(client, &claiming, seq, hold);
    }

    fn settled(&mut self, client: usize, how: Settled) {
        if self.is_calm() {
            let since = self.clients[client].began.max(self.plan.calm);
            self.stats.calm_wait = self.stats.calm_wait.max((self.now - since) / 1_000_000);
        }
        self.tell(&Fact::Settled { client, how });
    }

    fn end_claim(&mut self, client: usize, how: Settled) {
        let state = std::mem::replace(&mut self.clients[client].state, State::Idle);
        let State::Claiming(claiming) = state else { return };
        self.note(format_args!("client {client} ends its acquisition: {how:?}"));
        if let Some((call, _)) = claiming.call {
            self.drop_call(client, call);
        }
        self.settled(client, how);
        self.leave(client, claiming.lock, claiming.ticket.id);
        self.rest(client);
    }

    fn cancel(&mut self, client: usize) {
        match self.clients[client].state {
            State::Idle => {}
            State::Claiming(_) => self.end_claim(client, Settled::Cancelled),
            State::Held(_) => self.release(client),
        }
    }

    /// Wants the next lock after a while.
    pub(crate) fn rest(&mut self, client: usize) {
        let longest = self.rng.pick(&[1, 50, 500]);
        let wait = self.rng.millis(0, longest);
        self.after(wait, Event::Rings { client, alarm: Alarm::Begin });
    }

    pub(crate) fn replied(&mut self, client: usize, call: u64, answer: Answer) {
        let now = self.local(client);
        if let Some(claiming) = self.claiming(client)
            && let Some((out, sent)) = claiming.call
            && out == call
        {
            let Answer::Stands(standing) = answer else {
                return self.step(client, Happened::Failed);
            };
            let sent = if self.config.bug == Some(Bug::ValidFromReply) { now } else { sent };
            match standing {
                Ok(standing) => {
                    self.clients[client].reached = true;
                    self.step(client, Happened::Reply { sent, standing });
                }
                Err(refusal) => {
                    panic!("an acquisition never changes its weight or capacity: {refusal:?}")
                }
            }
            return;
        }
        if !self.left(client, call) {
            self.renewal_replied(client, call, answer);
        }
    }

    fn timed_out(&mut self, client: usize, call: u64) {
        let out = self.claiming(client).and_then(|claiming| claiming.call);
        if out.is_some_and(|(out, _)| out == call) {
            self.note(format_args!("client {client}: no answer to call {call}"));
            self.drop_call(client, call);
            if self.config.bug == Some(Bug::RetryWithNewId) {
                self.new_ticket(client, false);
            }
            self.step(client, Happened::Failed);
        }
    }

    fn wake(&mut self, client: usize, turn: u64) {
        let claiming = self.claiming(client).filter(|claiming| claiming.turn == Some(turn));
        let Some(claiming) = claiming else { return };
        let told = claiming.told.take();
        self.step(client, told.map_or(Happened::Woken, Happened::AdmittedByNotice));
    }

    /// A notice about a place: that it was admitted, or else removed by force.
    pub(crate) fn noticed(&mut self, client: usize, id: TicketId, seq: Seq, admitted: bool) {
        let now = self.local(client);
        let blind = self.config.bug == Some(Bug::NoProofAfterWait);
        self.doubt(client, id);
        let Some(claiming) = self.claiming(client) else { return };
        if claiming.ticket.id != id {
            return;
        }
        if blind {
            self.granted(client, seq, |lease| LeaseTimer::new(lease, now, true));
        } else if claiming.turn.is_some() {
            self.step(
                client,
                if admitted { Happened::AdmittedByNotice(seq) } else { Happened::Woken },
            );
        } else {
            (claiming.noticed, claiming.told) = (true, admitted.then_some(seq));
        }
    }
}
