//! A simulated client: it runs the kernel's acquisitions as the library's driver does.

use crate::clock::Clock;
use crate::invariants::{Fact, Lock, Settled};
use crate::library::StoreClient;
use crate::plan::{Bug, Class, LEASES, LONGEST_WORK, Plan, WAIT_LEASES};
use crate::renewer::{Holding, Leaving};
use crate::server::{Answer, Request};
use crate::world::{Event, Message, World};
use holdline_kernel::{
    Acquisition, Action, Backoff, Event as Happened, Lease, LeaseTimer, Seq, Standing, Ticket,
    TicketId, Time, WaitMode,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The purpose of a client's timer. Each carries an id, by which an outdated timer is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Begin an acquisition.
    Begin,
    /// The time limit of a request.
    Due { call: u64 },
    /// The end of a wait.
    Wake { turn: u64 },
    /// A renewer's step is due.
    Keep { turn: u64 },
    /// The end of the work under the lock.
    Done { attempt: u64 },
    /// The moment when the caller cancels.
    Cancel { attempt: u64 },
    /// A time limit inside the quorum's client.
    Look,
    /// The retry of a leave that was not answered.
    LeaveAgain { id: TicketId },
}

/// An acquisition with the driver's state.
#[derive(Debug)]
pub(crate) struct Acquiring {
    pub(crate) lock: Lock,
    pub(crate) ticket: Ticket,
    pub(crate) lease: Lease,
    mode: WaitMode,
    acquisition: Acquisition,
    /// The request under way, and when it was sent.
    call: Option<(u64, Time)>,
    /// The timer of the wait, if it waits.
    turn: Option<u64>,
    /// Whether a notice came while a request was under way, and the place that the last notice
    /// admitted.
    noticed: bool,
    told: Option<Seq>,
}

/// The state of a client.
#[derive(Debug)]
pub(crate) enum State {
    Idle,
    Acquiring(Box<Acquiring>),
    Held(Box<Holding>),
}

/// A simulated client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) clock: Clock,
    pub(crate) asleep_until: u64,
    /// The library's own store, if one keeps the locks.
    pub(crate) end: Option<StoreClient>,
    pub(crate) state: State,
    pub(crate) leaving: BTreeMap<TicketId, Leaving>,
    /// The number of acquisitions yet to begin after the faults have stopped.
    pub(crate) attempts_left: u32,
    /// Whether a server has answered it.
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
            end: match plan.class {
                Class::Entries => Some(StoreClient::of_entries()),
                class if class.is_quorum() => Some(StoreClient::of_quorum(plan.servers.len())),
                _ => None,
            },
            asleep_until: 0,
            state: State::Idle,
            leaving: BTreeMap::new(),
            attempts_left: 2,
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
    pub(crate) fn set_timer(&mut self, client: usize, at: Time, timer: Timer) {
        let at = self.clients[client].clock.when(at);
        if at < u64::MAX {
            self.at(at, Event::TimerFires { client, timer });
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

    /// Sends a request as the call of this number.
    pub(crate) fn call_as(&mut self, client: usize, call: u64, lock: Lock, request: Request) {
        self.note(format_args!("client {client} calls {call}: {request} in line {lock}"));
        if self.clients[client].end.is_some() {
            self.ask_library(client, call, lock, request);
        } else if let Some(line) = self.plan.lines(lock).next() {
            self.post(client, line.1, Event::Arrives(Message { client, call, line, request }));
        }
    }

    pub(crate) fn timer_fired(&mut self, client: usize, timer: Timer) {
        match timer {
            Timer::Begin => self.begin(client),
            Timer::Due { call } => self.timed_out(client, call),
            Timer::Wake { turn } => self.wake(client, turn),
            Timer::Keep { turn } => self.renewer_wakes(client, turn),
            Timer::Done { attempt } if self.clients[client].attempt == attempt => {
                self.release(client);
            }
            Timer::Cancel { attempt } if self.clients[client].attempt == attempt => {
                self.cancel(client);
            }
            Timer::Done { .. } | Timer::Cancel { .. } => {}
            Timer::Look => self.look(client),
            Timer::LeaveAgain { id } => self.leave_again(client, id),
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
            // A quorum has no queue.
            _ if self.plan.class.is_quorum() => WaitMode::Barge(schedule),
            1 | 2 => WaitMode::Poll(schedule),
            3 => WaitMode::Barge(schedule),
            _ => WaitMode::Listen,
        }
    }

    fn begin(&mut self, client: usize) {
        if self.is_calm() {
            if self.clients[client].attempts_left == 0 {
                return;
            }
            self.clients[client].attempts_left -= 1;
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
            token_count: self.rng.pick(&[1, 1, 3]).min(self.plan.class.most_tokens()),
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
        self.tell(&Fact::Uses { client, id: ticket.id });
        let acquiring = Acquiring {
            lock,
            ticket,
            lease,
            mode,
            acquisition,
            call: None,
            turn: None,
            noticed: false,
            told: None,
        };
        self.clients[client].state = State::Acquiring(Box::new(acquiring));
        if !self.is_calm() && self.rng.chance(100) {
            let wait = self.rng.millis(0, 2_000);
            let attempt = self.clients[client].attempt;
            self.after(wait, Event::TimerFires { client, timer: Timer::Cancel { attempt } });
        }
        self.perform(client, action);
    }

    fn acquiring(&mut self, client: usize) -> Option<&mut Acquiring> {
        match &mut self.clients[client].state {
            State::Acquiring(acquiring) => Some(acquiring),
            _ => None,
        }
    }

    fn step(&mut self, client: usize, happened: Happened) {
        let (now, random) = (self.local(client), self.rng.next());
        if let Some(acquiring) = self.acquiring(client) {
            (acquiring.call, acquiring.turn) = (None, None);
            let action = acquiring.acquisition.step(now, random, happened);
            self.perform(client, action);
        }
    }

    fn perform(&mut self, client: usize, action: Action) {
        let now = self.local(client);
        match action {
            Action::Send(how) => {
                let Some(&mut Acquiring { lock, ticket, lease, .. }) = self.acquiring(client)
                else {
                    return;
                };
                // Noted before the request: a quorum may answer at once.
                let call = self.fresh(client);
                let time = (lease.length / 3).max(Duration::from_millis(250));
                self.set_timer(client, now.after(time), Timer::Due { call });
                if let Some(acquiring) = self.acquiring(client) {
                    acquiring.call = Some((call, now));
                }
                self.call_as(client, call, lock, Request::Enter(ticket, how));
            }
            Action::Wait { until, seq } => {
                let turn = self.fresh(client);
                let Some(acquiring) = self.acquiring(client) else { return };
                acquiring.turn = Some(turn);
                let listens = acquiring.mode == WaitMode::Listen && seq.is_some();
                let (lock, id) = (acquiring.lock, acquiring.ticket.id);
                // Subscribe, then ask, then wait: a notice that came in between is not lost.
                let at = if std::mem::take(&mut acquiring.noticed) { now } else { until };
                self.set_timer(client, at, Timer::Wake { turn });
                self.await_notice(client, lock, listens.then_some(id));
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
                if let Some(acquiring) = self.acquiring(client) {
                    let action = acquiring.acquisition.restart();
                    self.perform(client, action);
                }
            }
            Action::GiveUp => self.end_acquisition(client, Settled::GaveUp),
            Action::Fail => self.end_acquisition(client, Settled::Failed),
        }
    }

    fn new_ticket(&mut self, client: usize, disown: bool) {
        let id = TicketId(self.rng.id());
        let Some(acquiring) = self.acquiring(client) else { return };
        let old = std::mem::replace(&mut acquiring.ticket.id, id);
        (acquiring.noticed, acquiring.told) = (false, None);
        if disown {
            self.tell(&Fact::Disowned { id: old });
        }
        self.tell(&Fact::Uses { client, id });
    }

    fn granted(&mut self, client: usize, seq: Seq, hold: impl FnOnce(Lease) -> LeaseTimer) {
        let state = std::mem::replace(&mut self.clients[client].state, State::Idle);
        let State::Acquiring(acquiring) = state else { return };
        self.stats.grants += 1;
        self.note(format_args!("client {client} is GRANTED {seq:?} of line {}", acquiring.lock));
        self.settled(client, Settled::Granted);
        let most = if self.is_calm() {
            20
        } else {
            self.rng.pick(&[5, 50, 50, 500, LONGEST_WORK.as_millis() as u64])
        };
        let work = self.rng.millis(0, most);
        let attempt = self.clients[client].attempt;
        self.after(work, Event::TimerFires { client, timer: Timer::Done { attempt } });
        let hold = hold(acquiring.lease);
        self.hold(client, &acquiring, seq, hold);
    }

    fn settled(&mut self, client: usize, how: Settled) {
        if self.is_calm() {
            let since = self.clients[client].began.max(self.plan.calm);
            self.stats.calm_wait = self.stats.calm_wait.max((self.now - since) / 1_000_000);
        }
        self.tell(&Fact::Settled { client, how });
    }

    fn end_acquisition(&mut self, client: usize, how: Settled) {
        let state = std::mem::replace(&mut self.clients[client].state, State::Idle);
        let State::Acquiring(acquiring) = state else { return };
        self.note(format_args!("client {client} ends its acquisition: {how:?}"));
        if let Some((call, _)) = acquiring.call {
            self.drop_call(client, call);
        }
        self.settled(client, how);
        self.leave(client, acquiring.lock, acquiring.ticket.id);
        self.rest(client);
    }

    fn cancel(&mut self, client: usize) {
        match self.clients[client].state {
            State::Idle => {}
            State::Acquiring(_) => self.end_acquisition(client, Settled::Cancelled),
            State::Held(_) => self.release(client),
        }
    }

    /// Begins the next acquisition after a pause.
    pub(crate) fn rest(&mut self, client: usize) {
        let longest = self.rng.pick(&[1, 50, 500]);
        let wait = self.rng.millis(0, longest);
        self.after(wait, Event::TimerFires { client, timer: Timer::Begin });
    }

    pub(crate) fn replied(&mut self, client: usize, call: u64, answer: &Answer) {
        let now = self.local(client);
        if let Some(acquiring) = self.acquiring(client)
            && let Some((out, sent)) = acquiring.call
            && out == call
        {
            let Answer::Stands(standing) = *answer else {
                return self.step(client, Happened::Failed { sent });
            };
            let sent = if self.config.bug == Some(Bug::ValidFromReply) { now } else { sent };
            match standing {
                Ok(Standing::Admitted(seq)) if self.config.bug == Some(Bug::LateGrant) => {
                    self.granted(client, seq, |lease| LeaseTimer::new(lease, sent, true));
                }
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
        if !self.left(client, call, answer) {
            self.renewal_replied(client, call, answer);
        }
    }

    fn timed_out(&mut self, client: usize, call: u64) {
        let out = self.acquiring(client).and_then(|acquiring| acquiring.call);
        if let Some((out, sent)) = out
            && out == call
        {
            self.note(format_args!("client {client}: no answer to call {call}"));
            self.drop_call(client, call);
            if self.config.bug == Some(Bug::RetryWithNewId) {
                self.new_ticket(client, false);
            }
            self.step(client, Happened::Failed { sent });
        }
    }

    fn wake(&mut self, client: usize, turn: u64) {
        let acquiring = self.acquiring(client).filter(|acquiring| acquiring.turn == Some(turn));
        let Some(acquiring) = acquiring else { return };
        let told = acquiring.told.take();
        self.step(client, told.map_or(Happened::Woken, Happened::AdmittedByNotice));
    }

    /// Handles a notice about a place: that it was admitted, or removed by force.
    pub(crate) fn noticed(&mut self, client: usize, id: TicketId, seq: Seq, admitted: bool) {
        let now = self.local(client);
        let blind = self.config.bug == Some(Bug::NoProofAfterWait);
        self.verify(client, id);
        let Some(acquiring) = self.acquiring(client) else { return };
        if acquiring.ticket.id != id {
            return;
        }
        if blind {
            self.granted(client, seq, |lease| LeaseTimer::new(lease, now, true));
        } else if acquiring.turn.is_some() {
            self.step(
                client,
                if admitted { Happened::AdmittedByNotice(seq) } else { Happened::Woken },
            );
        } else {
            (acquiring.noticed, acquiring.told) = (true, admitted.then_some(seq));
        }
    }
}
