//! The toy's world: the clock, the network, the faults, the history.

use std::collections::BTreeMap;

use holdline_checker::resource::{Reply, Request as ToResource, Resource};
use holdline_checker::{Event, FaultKind, History, Op, Phase};

use super::client::{Client, Stage};
use super::store::Store;
use super::{Answer, Bug, LOCKS, MS, Random, Request, TTL, Verb};

const CLIENTS: usize = 6;
const FAULTS: std::ops::Range<u64> = 1_500 * MS..6_000 * MS;
const CLOSING: u64 = 9_000 * MS;
const PROBES: u64 = 9_100 * MS;
const DUMP: u64 = 11_500 * MS;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Timer {
    Start,
    Retry { n: u64, asked: u64 },
    Poll { n: u64 },
    Cancel { n: u64 },
    Renew { n: u64 },
    RenewAgain { n: u64, asked: u64 },
    Deadline { n: u64 },
    Sample { n: u64 },
    Check { n: u64 },
    Write { n: u64 },
    WriteTooLate,
    LeaveAgain { ticket: u64 },
}

#[derive(Debug)]
enum Step {
    ToStore(Request),
    ToClient(Request, Answer),
    Wake { client: usize, life: u32, ticket: u64, fence: u64 },
    Timer { client: usize, life: u32, timer: Timer },
    Fault,
    Heal { n: u64 },
    Close,
    Probe,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) clients: Vec<Client>,
    pub(crate) events: Vec<Event>,
    pub(crate) closing: bool,
    pub(crate) next_ticket: u64,
    pub(crate) next_uid: u64,
    bug: Option<Bug>,
    store: Store,
    resource: Resource,
    queue: BTreeMap<(u64, u64), Step>,
    next: u64,
}

/// Runs the toy once. A calm run has a lossy network and no faults.
pub(crate) fn run(seed: u64, bug: Option<Bug>, calm: bool) -> History {
    let mut world = World {
        now: 0,
        random: Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d)),
        clients: Vec::new(),
        events: Vec::new(),
        closing: false,
        next_ticket: 0,
        next_uid: 0,
        bug,
        store: Store::new(bug),
        resource: Resource::new(),
        queue: BTreeMap::new(),
        next: 0,
    };
    for i in 0..CLIENTS + LOCKS.len() {
        let probe = i.checked_sub(CLIENTS);
        let name = if probe.is_some() { format!("probe{i}") } else { format!("c{i}") };
        world.clients.push(Client { name, probe, ..Client::default() });
        if probe.is_none() {
            world.timer(i, MS * i as u64, Timer::Start);
        }
    }
    if !calm {
        world.push(FAULTS.start, Step::Fault);
    }
    world.push(CLOSING, Step::Close);
    world.push(PROBES, Step::Probe);
    while let Some(((t, _), step)) = world.queue.pop_first() {
        if t > DUMP {
            break;
        }
        world.now = t;
        world.carry_out(step);
    }
    world.dump();
    History::new(world.events)
}

impl World {
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn push(&mut self, t: u64, step: Step) {
        self.next += 1;
        self.queue.insert((t, self.next), step);
    }

    pub(crate) fn timer(&mut self, client: usize, after: u64, timer: Timer) {
        let life = self.clients[client].life;
        self.push(self.now + after, Step::Timer { client, life, timer });
    }

    pub(crate) fn resource(&mut self, request: &ToResource) -> Reply {
        self.next_uid += 1;
        let (reply, event) = self.resource.serve(self.next_uid, request);
        self.events.extend(event.map(|e| e.at(self.now, "resource")));
        reply
    }

    /// How long a message takes; none if it is lost.
    fn delay(&mut self, client: usize) -> Option<u64> {
        let c = &self.clients[client];
        if c.cut_until > self.now || self.random.percent(3) {
            None
        } else if self.clients[client].slow_until > self.now || self.random.percent(1) {
            Some(self.random.between(5 * MS, 100 * MS))
        } else {
            Some(self.random.between(MS / 5, 4 * MS))
        }
    }

    pub(crate) fn send(&mut self, client: usize, lock: usize, ticket: u64, verb: Verb) -> u64 {
        self.next_uid += 1;
        let (id, life, sent) = (self.next_uid, self.clients[client].life, self.now);
        let request = Request { client, life, id, sent, lock, ticket, verb };
        if let Some(delay) = self.delay(client) {
            self.push(self.now + delay, Step::ToStore(request));
        }
        id
    }

    fn carry_out(&mut self, step: Step) {
        let target = match &step {
            Step::ToClient(r, _) => Some((r.client, r.life)),
            Step::Wake { client, life, .. } | Step::Timer { client, life, .. } => {
                Some((*client, *life))
            }
            _ => None,
        };
        if let Some((client, life)) = target {
            if self.clients[client].life != life {
                return;
            }
            // Whatever happens to a stopped process happens when it goes on.
            if self.clients[client].paused_until > self.now {
                return self.push(self.clients[client].paused_until, step);
            }
        }
        match step {
            Step::ToStore(request) => self.serve(&request),
            Step::ToClient(request, answer) => self.answered(request.client, &request, answer),
            Step::Wake { client, ticket, fence, .. } => self.woken(client, ticket, fence),
            Step::Timer { client, timer, .. } => self.ring(client, timer),
            Step::Fault => self.fault(),
            Step::Heal { n } => {
                let event = Event::new(Op::Heal, Phase::Ok, n).at(self.now, "faults");
                self.events.push(event);
            }
            Step::Close => self.closing = true,
            Step::Probe => (CLIENTS..CLIENTS + LOCKS.len()).for_each(|i| self.start(i)),
        }
    }

    fn serve(&mut self, request: &Request) {
        let (answer, wakes) = self.store.serve(self.now, request);
        if let Some(delay) = self.delay(request.client) {
            self.push(self.now + delay, Step::ToClient(*request, answer));
        }
        for wake in wakes {
            let delay = self.delay(wake.client).filter(|_| !self.random.percent(15));
            if let Some(delay) = delay {
                let (client, life) = (wake.client, self.clients[wake.client].life);
                let (ticket, fence) = (wake.ticket, wake.fence);
                self.push(self.now + delay, Step::Wake { client, life, ticket, fence });
            }
        }
    }

    fn ring(&mut self, i: usize, timer: Timer) {
        let job = self.clients[i].job.as_ref().map(|j| (j.n, j.stage, j.asked));
        let at = |n: u64, stage: Stage| job.is_some_and(|j| j.0 == n && j.1 == stage);
        let asking = |n: u64| at(n, Stage::Asking) || at(n, Stage::Waiting);
        let newest = |asked: u64| job.is_some_and(|j| j.2 == asked);
        match timer {
            Timer::Start => self.start(i),
            Timer::Retry { n, asked } if asking(n) && newest(asked) => self.retry(i),
            Timer::Poll { n } if at(n, Stage::Waiting) && newest(0) => self.ask(i),
            Timer::Cancel { n } if asking(n) => self.cancel(i),
            Timer::Renew { n } if at(n, Stage::Holding) => self.renew(i),
            Timer::Renew { n } if at(n, Stage::Releasing) && self.has(Bug::RenewAfterRelease) => {
                self.renew(i);
            }
            Timer::RenewAgain { n, asked } if at(n, Stage::Holding) && newest(asked) => {
                self.renew(i);
            }
            Timer::Deadline { n } if at(n, Stage::Holding) => self.deadline(i),
            Timer::Sample { n } if at(n, Stage::Holding) => self.sample(i),
            Timer::Check { n } if at(n, Stage::Holding) => self.check_then_write(i),
            Timer::Write { n } if at(n, Stage::Holding) => self.write(i),
            Timer::WriteTooLate => self.write_too_late(i),
            Timer::LeaveAgain { ticket } => {
                if let Some(lock) = self.clients[i].leaving.get(&ticket).copied() {
                    self.leave(i, ticket, lock);
                }
            }
            _ => {}
        }
    }

    /// Breaks something for a while, and plans the next fault.
    fn fault(&mut self) {
        let next = self.now + self.random.between(100 * MS, 300 * MS);
        if next < FAULTS.end {
            self.push(next, Step::Fault);
        }
        let mut i = self.random.between(0, CLIENTS as u64) as usize;
        // A fault has the most effect where somebody holds a lock.
        if self.random.percent(60) {
            let holds = |c: &usize| {
                self.clients[*c].job.as_ref().is_some_and(|j| j.stage == Stage::Holding && j.long)
            };
            i = (0..CLIENTS).map(|c| (c + i) % CLIENTS).find(holds).unwrap_or(i);
        }
        let lasts = self.random.between(TTL / 10, TTL * 3);
        let until = self.now + lasts;
        let now = self.now;
        let target = self.clients[i].name.clone();
        let kind = match self.random.between(0, 100) {
            0..45 if self.clients[i].paused_until <= now => {
                self.clients[i].paused_until = until;
                FaultKind::Pause
            }
            45..65 => {
                self.clients[i].cut_until = self.clients[i].cut_until.max(until);
                FaultKind::Partition
            }
            65..75 => {
                self.clients[i].slow_until = self.clients[i].slow_until.max(until);
                FaultKind::Slow
            }
            75..82 if self.clients[i].paused_until <= now => return self.kill(i),
            _ => {
                // A clock that is set back is worst for somebody who sleeps.
                i = (0..CLIENTS).find(|c| self.clients[*c].paused_until > now).unwrap_or(i);
                self.clients[i].wall -= 2 * TTL.cast_signed();
                FaultKind::ClientClock
            }
        };
        let target = if kind == FaultKind::ClientClock { &self.clients[i].name } else { &target };
        self.next_uid += 1;
        let n = self.next_uid;
        let event = Event::new(Op::Fault, Phase::Ok, n).fault(kind).target(target);
        self.events.push(event.at(now, "faults"));
        self.push(until, Step::Heal { n });
    }

    fn kill(&mut self, i: usize) {
        self.next_uid += 1;
        let event = Event::new(Op::Fault, Phase::Ok, self.next_uid).fault(FaultKind::Kill);
        self.events.push(event.target(&self.clients[i].name).at(self.now, "faults"));
        let (life, wall) = (self.clients[i].life + 1, self.clients[i].wall);
        let name = format!("c{i}.{life}");
        // The new process has a name and a network of its own.
        let fresh = Client { name, life, wall, ..Client::default() };
        self.clients[i] = fresh;
        self.timer(i, 20 * MS, Timer::Start);
    }

    fn dump(&mut self) {
        for (lock, (name, ..)) in LOCKS.iter().enumerate() {
            let owners = self.store.owners(self.now, lock);
            let event = Event::new(Op::StoreDump, Phase::Ok, lock as u64).lock(name);
            self.events.push(event.owners(owners).at(self.now, "store"));
        }
        let dump = self.resource.dump(0);
        self.events.extend(dump.into_iter().map(|e| e.at(self.now, "resource")));
    }
}
