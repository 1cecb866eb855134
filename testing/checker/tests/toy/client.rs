//! The toy's client: asks, holds, renews, gives back; and tells its user when it lost the lock.

use std::collections::HashMap;

use holdline_checker::{Event, Op, Phase, Reason, Register};

use super::world::{Timer, World};
use super::{Answer, Bug, LOCKS, MS, POLL, RPC, Request, TTL, Verb};

/// The attempt that a client is busy with.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) n: u64,
    pub(crate) lock: usize,
    pub(crate) weight: u64,
    pub(crate) wait: bool,
    pub(crate) ticket: u64,
    pub(crate) stage: Stage,
    /// The newest request: only its answer, if it is a refusal, is believed.
    pub(crate) asked: u64,
    pub(crate) woken: bool,
    pub(crate) fence: u64,
    pub(crate) deadline: u64,
    pub(crate) read: HashMap<Register, Option<u64>>,
    pub(crate) long: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Asking,
    Waiting,
    Holding,
    Releasing,
}

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) life: u32,
    pub(crate) next_n: u64,
    pub(crate) paused_until: u64,
    pub(crate) cut_until: u64,
    pub(crate) slow_until: u64,
    pub(crate) wall: i64,
    pub(crate) probe: Option<usize>,
    pub(crate) job: Option<Job>,
    /// Tickets given up that the store has not confirmed yet, with their locks.
    pub(crate) leaving: HashMap<u64, usize>,
    /// A lost job whose user works on.
    pub(crate) zombie: Option<Job>,
    pub(crate) cache: HashMap<Register, u64>,
}

/// Until when an answer to a request of that time is good: counted from the sending, with a margin.
fn good_until(sent: u64) -> u64 {
    sent + TTL / 100 * 99 - MS
}

impl World {
    pub(super) fn log(&mut self, i: usize, event: Event) {
        self.events.push(event.at(self.now, &self.clients[i].name));
    }

    pub(super) fn about(&mut self, i: usize, op: Op, ph: Phase) -> Event {
        let job = self.clients[i].job.as_ref().expect("a client at work has a job");
        Event::new(op, ph, job.n).lock(LOCKS[job.lock].0)
    }

    pub(super) fn job(&mut self, i: usize) -> &mut Job {
        self.clients[i].job.as_mut().expect("a client at work has a job")
    }

    /// What the client takes for the time.
    pub(super) fn clock(&self, i: usize) -> u64 {
        let wall = if self.has(Bug::WallClockDeadline) { self.clients[i].wall } else { 0 };
        self.now.saturating_add_signed(wall)
    }

    /// How many sections in a hundred last longer than a lease: more while faults are about, so
    /// that they hit somebody, and none towards the end.
    fn long_sections(&self) -> u64 {
        match self.now / MS {
            1_500..6_000 => 30,
            0..7_500 => 5,
            _ => 0,
        }
    }

    /// Begins an attempt.
    pub(crate) fn start(&mut self, i: usize) {
        let probe = self.clients[i].probe;
        if self.clients[i].job.is_some() || (self.closing && probe.is_none()) {
            return;
        }
        let lock = probe.unwrap_or_else(|| self.random.between(0, LOCKS.len() as u64) as usize);
        let heavy = self.random.percent(60) || probe.is_some();
        let wait = self.random.percent(70) || probe.is_some();
        let long = self.random.percent(self.long_sections());
        let client = &mut self.clients[i];
        client.next_n += 1;
        let n = client.next_n;
        self.next_ticket += 1;
        let job = Job {
            n,
            lock,
            weight: LOCKS[lock].2[usize::from(heavy)],
            wait,
            ticket: self.next_ticket,
            stage: Stage::Asking,
            asked: 0,
            woken: false,
            fence: 0,
            deadline: 0,
            read: HashMap::new(),
            long,
        };
        let op = match (probe, wait) {
            (Some(_), _) => Op::Probe,
            (None, true) => Op::Acquire,
            (None, false) => Op::TryAcquire,
        };
        let event = Event::new(op, Phase::Invoke, n).lock(LOCKS[lock].0).weight(job.weight);
        let event = event.owner(&format!("t{}", job.ticket)).ttl_ms(TTL / MS);
        client.job = Some(job);
        self.log(i, event);
        if op == Op::Acquire && self.random.percent(8) {
            let after = self.random.between(0, 60 * MS);
            self.timer(i, after, Timer::Cancel { n });
        }
        self.ask(i);
    }

    /// Sends the question (again), and looks for an answer in time.
    pub(crate) fn ask(&mut self, i: usize) {
        let job = self.clients[i].job.clone().expect("only a client with a job asks");
        let verb = Verb::Enter { weight: job.weight, wait: job.wait };
        let id = self.send(i, job.lock, job.ticket, verb);
        self.job(i).asked = id;
        self.timer(i, RPC, Timer::Retry { n: job.n, asked: id });
    }

    pub(crate) fn retry(&mut self, i: usize) {
        if self.has(Bug::RetryNewOwner) && self.job(i).stage == Stage::Asking {
            self.next_ticket += 1;
            self.job(i).ticket = self.next_ticket;
        }
        self.ask(i);
    }

    pub(crate) fn answered(&mut self, i: usize, request: &Request, answer: Answer) {
        if request.verb == Verb::Leave {
            self.clients[i].leaving.remove(&request.ticket);
        }
        let Some(job) = self.clients[i].job.clone() else { return };
        if job.ticket != request.ticket {
            return;
        }
        let asking = matches!(job.stage, Stage::Asking | Stage::Waiting);
        match (request.verb, answer) {
            (Verb::Enter { .. }, Answer::Admitted { fence }) if asking => {
                let ignores_answers = self.has(Bug::NotificationOnly);
                if !(ignores_answers && job.stage == Stage::Waiting && !job.woken) {
                    self.granted(i, request.sent, fence);
                } else if request.id == job.asked {
                    self.job(i).asked = 0;
                    self.timer(i, POLL, Timer::Poll { n: job.n });
                }
            }
            (Verb::Enter { .. }, Answer::Waiting) if asking => {
                if job.stage == Stage::Asking {
                    self.job(i).stage = Stage::Waiting;
                    let event = self.about(i, Op::Enqueue, Phase::Ok);
                    self.log(i, event);
                }
                if request.id == job.asked {
                    self.job(i).asked = 0;
                    self.timer(i, POLL, Timer::Poll { n: job.n });
                }
            }
            (Verb::Enter { .. }, Answer::Busy) if asking && request.id == job.asked => {
                let op = if job.wait { Op::Acquire } else { Op::TryAcquire };
                let event = self.about(i, op, Phase::Fail).reason(Reason::Busy);
                self.log(i, event);
                self.idle(i);
            }
            (Verb::Keep, _) if job.stage == Stage::Holding => self.renewed(i, request, answer),
            (Verb::Leave, _) if job.stage == Stage::Releasing => {
                let event = self.about(i, Op::Release, Phase::Ok);
                let gone = answer != Answer::Left;
                let mut event = if gone { event.reason(Reason::NotHeld) } else { event };
                event.ph = if gone { Phase::Fail } else { Phase::Ok };
                self.log(i, event);
                self.idle(i);
            }
            _ => {}
        }
    }

    pub(crate) fn woken(&mut self, i: usize, ticket: u64, fence: u64) {
        let waiting = |j: &Job| j.ticket == ticket && j.stage == Stage::Waiting;
        if !self.clients[i].job.as_ref().is_some_and(waiting) {
            return;
        }
        self.job(i).woken = true;
        if self.has(Bug::NoRecheckAfterWait) {
            self.granted(i, self.now, fence);
        } else {
            self.ask(i);
        }
    }

    fn granted(&mut self, i: usize, sent: u64, fence: u64) {
        let from = if self.has(Bug::ValidityFromReply) { self.now } else { sent };
        let deadline = good_until(from);
        if deadline <= self.now {
            // Too old to be believed. Ask again; the store knows the ticket or takes it anew.
            if self.job(i).asked == 0 {
                self.ask(i);
            }
            return;
        }
        let wall = if self.has(Bug::WallClockDeadline) { self.clients[i].wall } else { 0 };
        let job = self.job(i);
        job.stage = Stage::Holding;
        job.fence = fence;
        job.deadline = deadline.saturating_add_signed(wall);
        let (n, wait, long) = (job.n, job.wait, job.long);
        let probe = self.clients[i].probe.is_some();
        let op = match (probe, wait) {
            (true, _) => Op::Probe,
            (_, true) => Op::Acquire,
            (_, false) => Op::TryAcquire,
        };
        let event = self.about(i, op, Phase::Ok).fence(fence).deadline(deadline);
        self.log(i, event);
        self.read_resource(i);
        let work = if long {
            self.random.between(500 * MS, 900 * MS)
        } else {
            self.random.between(MS, 15 * MS)
        };
        self.timer(i, deadline - self.now, Timer::Deadline { n });
        self.timer(i, TTL / 3, Timer::Renew { n });
        self.timer(i, work / 2, Timer::Sample { n });
        self.timer(i, work, Timer::Check { n });
    }

    pub(crate) fn renew(&mut self, i: usize) {
        let job = self.clients[i].job.clone().expect("only a holder renews");
        if self.has(Bug::RenewerStarves) && job.long {
            return;
        }
        let id = self.send(i, job.lock, job.ticket, Verb::Keep);
        let event = self.about(i, Op::Renew, Phase::Invoke).k(id);
        self.log(i, event);
        self.job(i).asked = id;
        self.timer(i, RPC, Timer::RenewAgain { n: job.n, asked: id });
    }

    fn renewed(&mut self, i: usize, request: &Request, answer: Answer) {
        let n = self.job(i).n;
        if let Answer::Admitted { fence } = answer {
            let from = if self.has(Bug::ValidityFromReply) { self.now } else { request.sent };
            let deadline = good_until(from);
            let event = self.about(i, Op::Renew, Phase::Ok).k(request.id);
            let keeps_fence = !self.has(Bug::RenewRecreates);
            let event = if keeps_fence { event.fence(fence) } else { event };
            self.log(i, event.deadline(deadline));
            let wall = if self.has(Bug::WallClockDeadline) { self.clients[i].wall } else { 0 };
            let job = self.job(i);
            job.deadline = job.deadline.max(deadline.saturating_add_signed(wall));
            if job.asked == request.id {
                job.asked = 0;
                self.timer(i, TTL / 3, Timer::Renew { n });
            }
        } else if !self.has(Bug::LossNotTold) {
            let event = self.about(i, Op::Renew, Phase::Fail).k(request.id);
            self.log(i, event.reason(Reason::NotHeld));
            self.lose(i);
        }
    }

    /// The deadline may have been moved by renewals.
    pub(crate) fn deadline(&mut self, i: usize) {
        let (n, deadline) = (self.job(i).n, self.job(i).deadline);
        let clock = self.clock(i);
        if clock < deadline {
            self.timer(i, (deadline - clock).min(TTL), Timer::Deadline { n });
        } else if !self.has(Bug::RenewRecreates) && !self.has(Bug::LossNotTold) {
            self.lose(i);
        }
    }

    pub(super) fn lose(&mut self, i: usize) {
        let event = self.about(i, Op::Lost, Phase::Info);
        self.log(i, event);
        // Half of the users do not listen.
        if i % 2 == 1 {
            self.clients[i].zombie = Some(self.job(i).clone());
            let late = self.random.between(MS, 60 * MS);
            self.timer(i, late, Timer::WriteTooLate);
        }
        self.release(i);
    }

    pub(crate) fn release(&mut self, i: usize) {
        let event = self.about(i, Op::Release, Phase::Invoke);
        self.log(i, event);
        let job = self.job(i);
        job.stage = Stage::Releasing;
        let (ticket, lock) = (job.ticket, job.lock);
        self.leave(i, ticket, lock);
    }

    pub(crate) fn cancel(&mut self, i: usize) {
        let event = self.about(i, Op::Acquire, Phase::Info).reason(Reason::Cancelled);
        self.log(i, event);
        let job = self.job(i);
        let (ticket, lock) = (job.ticket, job.lock);
        if !self.has(Bug::CancelNotCleaned) {
            self.leave(i, ticket, lock);
        }
        self.idle(i);
    }

    /// Gives a ticket up, again and again until the store has heard it.
    pub(crate) fn leave(&mut self, i: usize, ticket: u64, lock: usize) {
        self.clients[i].leaving.insert(ticket, lock);
        self.send(i, lock, ticket, Verb::Leave);
        self.timer(i, RPC, Timer::LeaveAgain { ticket });
    }

    fn idle(&mut self, i: usize) {
        self.clients[i].job = None;
        if self.clients[i].probe.is_none() {
            let think = self.random.between(MS, 20 * MS);
            self.timer(i, think, Timer::Start);
        }
    }
}
