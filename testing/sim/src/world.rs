//! The world: true time, the event queue, and all machines.
//!
//! One loop takes the next event, advances true time to it, and dispatches it; all consequences are
//! new events. All random numbers come from the seed, so the same seed gives the same run.

use crate::client::{Client, Timer};
use crate::faults::Fault;
use crate::invariants::{self, Fact, Invariant, Line, Lock};
use crate::plan::{LEASES, LONGEST_WORK, Plan, SLOWEST, WAIT_LEASES, class_of};
use crate::rng::Rng;
use crate::server::{Answer, Request, Server};
use crate::trace::Trace;
use crate::{Config, Report, Stats, Violation};
use holdline::stores::simulated::Change;
use holdline_kernel::{Seq, TicketId};
use std::collections::BTreeMap;
use std::fmt::{self, Arguments, Display, Formatter};
use std::time::Duration;

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) client: usize,
    pub(crate) call: u64,
    pub(crate) line: Line,
    pub(crate) request: Request,
}

/// An event in the queue.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A request reaches its server.
    Arrives(Message),
    /// A reply reaches its client.
    Replied { client: usize, call: u64, answer: Answer },
    /// A notice about a place reaches its client.
    Noticed { client: usize, id: TicketId, seq: Seq, admitted: bool },
    /// News of a change in a line reach a client that watches it.
    Changed { client: usize, lock: Lock, number: u64, change: Change },
    /// A client's timer fires.
    TimerFires { client: usize, timer: Timer },
    /// A fault occurs.
    Fault(Fault),
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Event::Arrives(message) => {
                write!(f, "call {} of client {}", message.call, message.client)
            }
            Event::Replied { client, call, .. } => {
                write!(f, "the reply to {call} of client {client}")
            }
            Event::Noticed { client, seq, .. } => {
                write!(f, "the notice of {seq:?} to client {client}")
            }
            Event::Changed { client, number, change, .. } => {
                write!(f, "news {number}, {change:?}, to client {client}")
            }
            Event::TimerFires { client, timer } => write!(f, "{timer:?} of client {client}"),
            Event::Fault(fault) => write!(f, "{fault:?}"),
        }
    }
}

impl Event {
    fn client(&self) -> Option<usize> {
        match self {
            Event::Replied { client, .. }
            | Event::Noticed { client, .. }
            | Event::Changed { client, .. }
            | Event::TimerFires { client, .. } => Some(*client),
            Event::Arrives(_) | Event::Fault(_) => None,
        }
    }
}

/// The state of a simulation.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// The ends of the partitions between clients and servers.
    pub(crate) cut: BTreeMap<(usize, usize), u64>,
    pub(crate) stats: Stats,
    /// The locks that an operator is about to break, by client and call.
    pub(crate) breaking: BTreeMap<(usize, u64), (Lock, TicketId)>,
    /// The total by which servers' clocks were set back.
    pub(crate) set_back: Duration,
    queue: BTreeMap<(u64, u64), Event>,
    order: u64,
    rules: Vec<Box<dyn Invariant>>,
    violation: Option<Violation>,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let mut rng = Rng::new(config.seed);
        let class = config.class.unwrap_or_else(|| class_of(config.seed));
        let mut plan = Plan::new(class, config.bug, &mut rng);
        plan.bad = config.bad.unwrap_or(plan.bad).clamp(1, plan.servers.len());
        // The library's own random numbers.
        fastrand::seed(config.seed);
        let servers = plan.servers.iter().map(|clock| Server::new(*clock)).collect();
        let clients = (0..plan.clients.len()).map(|client| Client::new(&plan, client)).collect();
        let mut rules = invariants::all(&plan, config.exclusion_anyway);
        rules.retain(|rule| config.only.is_none_or(|only| rule.name() == only));
        World {
            now: 0,
            rng,
            trace: Trace::new(config.keep_trace),
            servers,
            clients,
            cut: BTreeMap::new(),
            stats: Stats::default(),
            breaking: BTreeMap::new(),
            set_back: Duration::ZERO,
            queue: BTreeMap::new(),
            order: 0,
            rules,
            violation: None,
            config,
            plan,
        }
    }

    /// Runs the simulation to its end.
    pub(crate) fn run(mut self) -> Report {
        self.note(format_args!("{:?}", self.plan.clone()));
        for client in 0..self.clients.len() {
            let at = self.rng.below(1_000_000_000);
            self.at(at, Event::TimerFires { client, timer: Timer::Begin });
        }
        self.at(self.plan.between_faults, Event::Fault(Fault::Next));
        self.at(self.plan.calm, Event::Fault(Fault::Calm));
        let end = self.plan.calm.saturating_add(120_000_000_000);
        while self.violation.is_none() {
            let Some(((at, order), event)) = self.queue.pop_first() else { break };
            if at > end {
                self.queue.insert((at, order), event);
                break;
            }
            self.now = at;
            self.dispatch(event);
        }
        if self.violation.is_none() {
            self.over();
        }
        Report {
            seed: self.config.seed,
            class: self.plan.class,
            violation: self.violation,
            trace_hash: self.trace.hash,
            trace: self.trace.lines,
            stats: self.stats,
        }
    }

    fn dispatch(&mut self, event: Event) {
        self.stats.events += 1;
        if let Some(client) = event.client() {
            let asleep_until = self.clients[client].asleep_until;
            if asleep_until > self.now {
                self.at(asleep_until, event);
                return;
            }
        }
        match event {
            Event::Arrives(message) => self.serve(message),
            Event::Replied { client, call, answer } => self.delivered(client, call, answer),
            Event::Noticed { client, id, seq, admitted } => {
                self.noticed(client, id, seq, admitted);
            }
            Event::Changed { client, lock, number, change } => {
                self.hear(client, lock, number, change);
            }
            Event::TimerFires { client, timer } => self.timer_fired(client, timer),
            Event::Fault(fault) => self.fault(fault),
        }
    }

    /// Ends all faults, and sets the bound for the acquisitions that wait.
    pub(crate) fn calm(&mut self) {
        let most = |of: &[Duration]| of.iter().copied().max().unwrap_or_default();
        // The bound covers everything still under way: a slow message, a lease or wait lease that
        // it renews, work already begun, a clock set back; then a poll and a turn of each waiter.
        let under_way = SLOWEST + most(&LEASES).max(most(&WAIT_LEASES)) + LONGEST_WORK;
        let turns = Duration::from_millis(500) * self.clients.len() as u32;
        let bound = under_way + self.set_back + most(&WAIT_LEASES) / 3 + turns;
        self.note(format_args!("the faults stop; everybody is admitted within {bound:?}"));
        self.stats.calm_bound = bound.as_millis() as u64;
        self.tell(&Fact::Calm { bound: bound.as_nanos() as u64 });
    }

    /// Lets all leases expire, and reports what is left in each line.
    fn over(&mut self) {
        self.now += 10_000_000_000 + self.set_back.as_nanos() as u64;
        for line in self.lines() {
            self.sweep(line);
            let left = self.servers[line.1].count(line.0);
            self.tell(&Fact::Over { line, left });
        }
    }

    /// All lines.
    pub(crate) fn lines(&self) -> Vec<Line> {
        (0..self.plan.locks.len()).flat_map(|lock| self.plan.lines(lock)).collect()
    }

    /// Schedules an event at true time `at`; events of one instant keep their order.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.insert((at.max(self.now), self.order), event);
    }

    pub(crate) fn after(&mut self, wait: Duration, event: Event) {
        self.at(self.now + wait.as_nanos() as u64, event);
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.now >= self.plan.calm
    }

    pub(crate) fn note(&mut self, what: Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Reports a fact to every invariant. The first violation ends the run.
    pub(crate) fn tell(&mut self, fact: &Fact<'_>) {
        for rule in &mut self.rules {
            if let Err(what) = rule.see(self.now, fact)
                && self.violation.is_none()
            {
                self.trace.note(self.now, format_args!("VIOLATED {}: {what}", rule.name()));
                self.violation = Some(Violation { invariant: rule.name(), what, at: self.now });
            }
        }
    }
}
