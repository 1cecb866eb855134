//! The acquisition: one ticket until it is admitted or given up, as a state machine without I/O.
//!
//! The driver passes it events and carries out its actions. It never takes a lock on a guess: a
//! grant needs a reply that says "admitted" and is still valid when it arrives. After a failure
//! with an unknown outcome, the same request is sent again, which the line answers in the same way.

use crate::{Backoff, Enter, Lease, Seq, Standing, Time};
use core::time::Duration;

/// How an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Send one request.
    Try,
    /// Keep a place in the line, if the store has places. Ask again on a notice, or when the last
    /// reply says.
    Listen,
    /// Keep a place in the line; poll by this schedule.
    Poll(Backoff),
    /// Keep no place: ask again by this schedule, and enter only if admitted at once.
    Barge(Backoff),
}

/// An event that the driver passes to an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request sent at `sent` was answered.
    Reply {
        /// When the request was sent.
        sent: Time,
        /// The ticket's standing, from the reply.
        standing: Standing,
    },
    /// A request failed with a retryable error; it may or may not have been carried out.
    Failed {
        /// When the request was sent.
        sent: Time,
    },
    /// The timer of a wait has ended, or a notice came.
    Woken,
    /// A notice from the line: the ticket was admitted with this place number. (It may have lost
    /// that place since, and got another.)
    AdmittedByNotice(Seq),
}

/// What the driver is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this request to the store.
    Send(Enter),
    /// Wait until this instant or, if the ticket has a place in the line, for a notice about it.
    Wait {
        /// When the wait ends.
        until: Time,
        /// The place that a notice would be about.
        seq: Option<Seq>,
    },
    /// The lock is acquired, by the reply to a request sent at `sent`.
    Grant {
        /// The fencing token.
        seq: Seq,
        /// When the request that acquired it was sent.
        sent: Time,
    },
    /// The lock is acquired, by a notice. The store keeps the place only for as long as its last
    /// reply promised, so the lock must be renewed before `until`.
    GrantOnNotice {
        /// The fencing token.
        seq: Seq,
        /// Until when the lock is known to be held.
        until: Time,
    },
    /// The ticket has no place. Start again with a new ticket, by [`Acquisition::restart`].
    Restart,
    /// The ticket was not admitted before the limit, or not at once for a try. Leave the line.
    GiveUp,
    /// The store is unavailable: it failed for longer than the acquisition waits out, or until the
    /// limit. Leave the line, and report the last error.
    Fail,
}

/// The state of one acquisition.
#[derive(Clone, Debug)]
pub struct Acquisition {
    mode: WaitMode,
    lease: Lease,
    limit: Time,
    seq: Option<Seq>,
    polls: u32,
    failures: u32,
    /// How long an outage of a store that has answered before may last.
    outage: Duration,
    /// Whether the store has answered this client before.
    reached: bool,
    /// When the request was sent that was the first of the consecutive failures.
    away_since: Time,
    /// Whether the last request was answered, so that no outcome is unknown.
    settled: bool,
    /// The wait lease, if notices are trusted: the store keeps a waiting place this long, counted
    /// from when the request at `asked` was sent.
    notice_lease: Option<Lease>,
    asked: Time,
}

/// The number of consecutive failures that end an acquisition which waits out no outage.
const FAILURES: u32 = 5;

/// The least rest of a lease with which a notice alone grants the lock. With less, a request
/// confirms it and begins a whole lease: no holder starts with a lease that a slow renewal could
/// outlast.
const LEAST_ON_NOTICE: Duration = Duration::from_secs(1);

impl Acquisition {
    /// Creates an acquisition that must be admitted before `limit` (perhaps [`Time::NEVER`]).
    pub fn new(mode: WaitMode, lease: Lease, limit: Time) -> Self {
        Acquisition {
            mode,
            lease,
            limit,
            seq: None,
            polls: 0,
            failures: 0,
            outage: Duration::ZERO,
            reached: false,
            away_since: Time::NEVER,
            settled: false,
            notice_lease: None,
            asked: Time(0),
        }
    }

    /// Accepts a notice as proof of admission, if a second of the lease is left. The store must
    /// keep a waiting place for `wait_lease` after every reply, even if it is admitted meanwhile,
    /// and the holder must renew.
    pub fn trusting(mut self, wait_lease: Duration) -> Self {
        self.notice_lease = Some(Lease { length: wait_lease, ..self.lease });
        self
    }

    /// Waits out an outage of up to `outage`, if the acquisition waits and the store has answered
    /// before: requests are retried with exponential back-off. `reached` says whether the store has
    /// answered this client before. An acquisition gives up after a few attempts if the store has
    /// never answered, or in [`WaitMode::Try`].
    pub fn outlasting(mut self, outage: Duration, reached: bool) -> Self {
        self.outage = outage;
        self.reached = reached;
        self
    }

    /// The first action; also the first action with a new ticket, after [`Action::Restart`].
    pub fn restart(&mut self) -> Action {
        self.seq = None;
        self.settled = false;
        Action::Send(self.request())
    }

    /// The next action after an event. `random` is any random number.
    pub fn step(&mut self, now: Time, random: u64, event: Event) -> Action {
        match event {
            Event::Reply { sent, standing } => {
                self.reached = true;
                self.settled = true;
                // To a try, the loss of its ticket says nothing about the lock: it is a failure.
                let fails = self.mode == WaitMode::Try && standing == Standing::Lost;
                self.failures = if fails { self.failures.saturating_add(1) } else { 0 };
                self.reply(now, random, sent, standing)
            }
            Event::Failed { sent } => self.failed(now, random, sent),
            Event::AdmittedByNotice(seq) => match self.grant_on_notice(now, seq) {
                Some(grant) => grant,
                None => self.step(now, random, Event::Woken),
            },
            Event::Woken if now >= self.limit => self.limit_reached(),
            // Without a place, each attempt takes a new ticket.
            Event::Woken if matches!(self.mode, WaitMode::Barge(_)) && self.settled => {
                Action::Restart
            }
            Event::Woken => Action::Send(self.request()),
        }
    }

    /// The grant that a notice gives, for as long as the last reply promised. `None` if too little
    /// of that is left, or if the outcome of a request is unknown.
    fn grant_on_notice(&self, now: Time, seq: Seq) -> Option<Action> {
        let notice_lease = self.notice_lease?;
        let until = notice_lease.good_until(self.asked);
        let enough = LEAST_ON_NOTICE.max(notice_lease.usable() / 4);
        let good = self.settled && self.seq == Some(seq) && now.after(enough) < until;
        good.then_some(Action::GrantOnNotice { seq, until })
    }

    fn reply(&mut self, now: Time, random: u64, sent: Time, standing: Standing) -> Action {
        match standing {
            Standing::Admitted(seq) if now < self.lease.good_until(sent) => {
                Action::Grant { seq, sent }
            }
            // Admitted, but the reply came after the end of the lease that it reports. Ask again.
            Standing::Admitted(seq) if now < self.limit => {
                self.seq = Some(seq);
                Action::Send(Enter::Keep(seq))
            }
            Standing::Waiting { .. } if self.mode == WaitMode::Try || now >= self.limit => {
                Action::GiveUp
            }
            Standing::Admitted(_) => Action::GiveUp,
            Standing::Waiting { seq, again } => {
                self.seq = seq;
                self.asked = sent;
                let pause = match self.mode {
                    WaitMode::Poll(schedule) => schedule.pause(self.polls, random).min(again),
                    WaitMode::Barge(schedule) => schedule.pause(self.polls, random),
                    WaitMode::Try | WaitMode::Listen => again,
                };
                self.polls = self.polls.saturating_add(1);
                self.wait(now, pause)
            }
            Standing::Lost => self.lost(now),
        }
    }

    /// The action after the loss of the ticket. A try is told that the lock is taken only if the
    /// store said so.
    fn lost(&self, now: Time) -> Action {
        let over = now >= self.limit;
        match self.mode {
            WaitMode::Try if over || self.failures >= FAILURES => Action::Fail,
            _ if over => Action::GiveUp,
            _ => Action::Restart,
        }
    }

    fn failed(&mut self, now: Time, random: u64, sent: Time) -> Action {
        self.settled = false;
        // A call that the limit cut off says nothing about the store.
        if now >= self.limit {
            return self.limit_reached();
        }
        if self.failures == 0 {
            self.away_since = sent;
        }
        self.failures = self.failures.saturating_add(1);
        let over = match self.outage_end() {
            // One lost reply is no outage, however long it was waited for.
            Some(end) => self.failures > 1 && now >= end,
            None => self.failures >= FAILURES,
        };
        if over {
            return Action::Fail;
        }
        let backoff =
            Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1)).jitter(50);
        self.wait(now, backoff.pause(self.failures - 1, random))
    }

    /// When an outage that has begun will have lasted too long; `None` if the acquisition waits out
    /// none, and gives up after a few attempts.
    fn outage_end(&self) -> Option<Time> {
        let outlasts = self.reached && self.mode != WaitMode::Try && !self.outage.is_zero();
        outlasts.then(|| self.away_since.after(self.outage))
    }

    /// The time after which no answer is of use, because the store has been away for too long;
    /// [`Time::NEVER`] while there is no outage, or if the acquisition waits out none.
    pub fn patience(&self) -> Time {
        let failing = self.failures > 0;
        self.outage_end().filter(|_| failing).unwrap_or(Time::NEVER)
    }

    /// The action at the limit: no lock, or an error if the store could not be asked.
    fn limit_reached(&self) -> Action {
        // One failed call is no outage: the reply before it said to wait.
        let told_to_wait = self.polls > 0 && self.failures <= 1;
        if told_to_wait { Action::GiveUp } else { Action::Fail }
    }

    fn wait(&self, now: Time, pause: Duration) -> Action {
        Action::Wait { until: now.after(pause).min(self.limit), seq: self.seq }
    }

    /// The request to send. It is safe to repeat, because the line knows the ticket.
    fn request(&self) -> Enter {
        match (self.seq, self.mode) {
            (Some(seq), _) => Enter::Keep(seq),
            (None, WaitMode::Try | WaitMode::Barge(_)) => Enter::Try,
            (None, WaitMode::Listen | WaitMode::Poll(_)) => Enter::Queue,
        }
    }
}
