//! One ticket's life until it is admitted or given up, as a machine without I/O.
//!
//! The driver feeds it what happened and does what it says. It never holds a lock on a guess: a
//! grant needs a reply that says "admitted" and that is still good when it arrives; after a failure
//! whose outcome is unknown the same question is asked again, which the line answers the same way.

use crate::{Backoff, Enter, Lease, Seq, Standing, Time};
use core::time::Duration;

/// How an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Ask once.
    Try,
    /// Keep a place in the line, if the store has places; look when told to, or when it says so.
    Listen,
    /// Keep a place in the line; look by this schedule.
    Poll(Backoff),
    /// Keep no place: ask again by this schedule, and enter only if admitted at once.
    Barge(Backoff),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request sent at `sent` was answered.
    Reply {
        /// When the request was sent.
        sent: Time,
        /// What the store said.
        standing: Standing,
    },
    /// A request failed in a way that may pass; it may or may not have been carried out.
    Failed,
    /// The wait is over, or something woke us.
    Woken,
    /// The line said by itself that the ticket's place of this number was admitted. (A ticket may
    /// have lost one place and got another since.)
    AdmittedByNotice(Seq),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the store.
    Send(Enter),
    /// Wait until this instant; if there is a place in the line, also for a notice about it.
    Wait {
        /// When to stop waiting.
        until: Time,
        /// The place that a notice would be about.
        seq: Option<Seq>,
    },
    /// It holds: since a request sent at `sent`.
    Grant {
        /// The fencing token.
        seq: Seq,
        /// When the request that gave it was sent.
        sent: Time,
    },
    /// It holds: the line said so by itself, and keeps it for as long as it said in its last answer
    /// that it would. It is to be renewed before this instant.
    GrantOnNotice {
        /// The fencing token.
        seq: Seq,
        /// Until when the holder is sure of it.
        until: Time,
    },
    /// The ticket has no place. Begin again with a new one, by [`Acquisition::restart`].
    Restart,
    /// It was not admitted within the time, or not at once. Leave the line.
    GiveUp,
    /// The store is given up: it failed for longer than the acquisition outlasts, or for all of the
    /// time. Leave the line, and report the last error.
    Fail,
}

/// One ticket on its way in.
#[derive(Clone, Debug)]
pub struct Acquisition {
    mode: WaitMode,
    lease: Lease,
    limit: Time,
    seq: Option<Seq>,
    looks: u32,
    failures: u32,
    /// How long an outage of a store that has answered before may last.
    outage: Duration,
    /// The store has answered this client at some time.
    reached: bool,
    /// When the first of the failures in a row was seen.
    away_since: Time,
    /// The last request was answered, so that its ticket is settled.
    settled: bool,
    /// How long a place is kept from an answer on that says to wait, and when the last of those
    /// was asked for.
    patient: Option<Lease>,
    asked: Time,
}

/// Failures in a row after which an acquisition gives up a store that it does not outlast.
const FAILURES: u32 = 5;

impl Acquisition {
    /// An acquisition that must be admitted before `limit` (perhaps [`Time::NEVER`]).
    pub fn new(mode: WaitMode, lease: Lease, limit: Time) -> Self {
        Acquisition {
            mode,
            lease,
            limit,
            seq: None,
            looks: 0,
            failures: 0,
            outage: Duration::ZERO,
            reached: false,
            away_since: Time::NEVER,
            settled: false,
            patient: None,
            asked: Time(0),
        }
    }

    /// Lets it take the line's own word for an admission. A place that waits is kept for this long
    /// after every answer, also when it is admitted meanwhile; and whoever holds will renew.
    pub fn trusting(mut self, wait_lease: Duration) -> Self {
        self.patient = Some(Lease { length: wait_lease, ..self.lease });
        self
    }

    /// Lets an acquisition that waits go on through an outage of up to this long, once the store
    /// has answered: it asks again with growing pauses until the store is back. `reached` says
    /// that it has answered this client before. A store that never answered is given up after a
    /// few tries, and so is any by [`WaitMode::Try`].
    pub fn outlasting(mut self, outage: Duration, reached: bool) -> Self {
        self.outage = outage;
        self.reached = reached;
        self
    }

    /// The first thing to do, also with a new ticket after [`Action::Restart`].
    pub fn restart(&mut self) -> Action {
        self.seq = None;
        self.settled = false;
        Action::Send(self.verb())
    }

    /// Takes in what happened, and says what to do. `random` is any random number.
    pub fn step(&mut self, now: Time, random: u64, event: Event) -> Action {
        match event {
            Event::Reply { sent, standing } => {
                self.failures = 0;
                self.reached = true;
                self.settled = true;
                self.reply(now, random, sent, standing)
            }
            Event::Failed => self.failed(now, random),
            Event::AdmittedByNotice(seq) => match self.word(now, seq) {
                Some(trust) => trust,
                None => self.step(now, random, Event::Woken),
            },
            Event::Woken if now >= self.limit => self.over(),
            // Who keeps no place comes back as somebody new: a ticket is for one attempt.
            Event::Woken if matches!(self.mode, WaitMode::Barge(_)) && self.settled => {
                Action::Restart
            }
            Event::Woken => Action::Send(self.verb()),
        }
    }

    /// What the line's word is worth: as much as its last answer, if enough is left of that to
    /// renew the lock in, and nothing is open since.
    fn word(&self, now: Time, seq: Seq) -> Option<Action> {
        let patient = self.patient?;
        let until = patient.good_until(self.asked);
        let good = self.settled && self.seq == Some(seq) && now.after(patient.usable() / 4) < until;
        good.then_some(Action::GrantOnNotice { seq, until })
    }

    fn reply(&mut self, now: Time, random: u64, sent: Time, standing: Standing) -> Action {
        match standing {
            Standing::Admitted(seq) if now < self.lease.good_until(sent) => {
                Action::Grant { seq, sent }
            }
            // Admitted, but the answer took longer than it is good for. Prove it again.
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
                    WaitMode::Poll(schedule) => schedule.pause(self.looks, random).min(again),
                    WaitMode::Barge(schedule) => schedule.pause(self.looks, random),
                    WaitMode::Try | WaitMode::Listen => again,
                };
                self.looks = self.looks.saturating_add(1);
                self.wait(now, pause)
            }
            Standing::Lost if now >= self.limit || self.mode == WaitMode::Try => Action::GiveUp,
            Standing::Lost => Action::Restart,
        }
    }

    fn failed(&mut self, now: Time, random: u64) -> Action {
        if self.failures == 0 {
            self.away_since = now;
        }
        self.failures = self.failures.saturating_add(1);
        self.settled = false;
        if now >= self.limit {
            return self.over();
        }
        let outlasts =
            self.reached && self.mode != WaitMode::Try && now < self.away_since.after(self.outage);
        if self.failures >= FAILURES && !outlasts {
            return Action::Fail;
        }
        let backoff =
            Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1)).jitter(50);
        self.wait(now, backoff.pause(self.failures - 1, random))
    }

    /// The limit is over: the lock was not to be had, or the store could not be asked.
    fn over(&self) -> Action {
        // One answer that the limit cut off is no news: the one before it was to wait.
        let asked = self.failures == 0 || (self.failures == 1 && self.looks > 0);
        if asked { Action::GiveUp } else { Action::Fail }
    }

    fn wait(&self, now: Time, pause: Duration) -> Action {
        Action::Wait { until: now.after(pause).min(self.limit), seq: self.seq }
    }

    /// Asking is always safe to repeat: the line knows the ticket.
    fn verb(&self) -> Enter {
        match (self.seq, self.mode) {
            (Some(seq), _) => Enter::Keep(seq),
            (None, WaitMode::Try | WaitMode::Barge(_)) => Enter::Try,
            (None, WaitMode::Listen | WaitMode::Poll(_)) => Enter::Queue,
        }
    }
}
