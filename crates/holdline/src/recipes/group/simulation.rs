//! A simulation of a group's members in a seeded world of faults and virtual time. The members run
//! the decisions of `claims.rs`. Around them are a line that keeps leases by true time, clocks that
//! run at different rates, delayed and lost requests, and members that pause, crash, leave and
//! return. At every instant no key has two owners (**G26**), and epochs rise from owner to owner
//! (**G27**). Members that break the rules show that the check has power.

use super::claims::{Claims, Look, Looking, Owner, Step};
use super::members::Members;
use super::rendezvous;
use crate::store::TicketId;
use fastrand::Rng;
use holdline_kernel::{Lease, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

const STALE_AFTER: Duration = Duration::from_millis(400);
const LEASE: Lease =
    Lease { length: Duration::from_millis(900), margin: Duration::from_millis(45) };
const MS: u64 = 1_000_000;
const KEYS: u64 = 12;

/// A defect of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// They claim keys as soon as they have joined.
    NoWait,
    /// They keep their epoch after a member has left.
    NoNewEpoch,
    /// They rely on a look for ten times as long.
    StaleLooks,
}

struct Place {
    id: u64,
    token: u64,
    address: Option<Arc<str>>,
    expires: u64,
}

struct Process {
    id: u64,
    address: Arc<str>,
    /// The clock: its offset, and its drift from true time in millionths.
    clock: (u64, i64),
    paused_until: u64,
    good_until: Time,
    claims: Option<Claims>,
    granted: Option<Time>,
    has_joined: bool,
    looking: Option<Looking>,
    /// The number of the look in progress; replies to earlier ones are ignored.
    attempt: u64,
}

/// A message that arrives at the line, or at a member.
enum Message {
    /// A look before anything else, followed by a place in the line.
    LookFirst {
        sent: Time,
    },
    Enter {
        before: Look,
    },
    Entered {
        sent: Time,
        before: Look,
        token: u64,
    },
    Renew {
        sent: Time,
    },
    Renewed {
        sent: Time,
    },
    Look {
        attempt: u64,
        sent: Time,
    },
    Looked {
        attempt: u64,
        sent: Time,
        members: Members,
    },
    TakeToken {
        attempt: u64,
    },
    TokenTaken {
        attempt: u64,
        token: u64,
    },
    /// The member's own step: looking, renewing, ending.
    Act,
    RenewNow,
    Leave,
    Crash,
    Start(Arc<str>),
}

struct World {
    rng: Rng,
    defect: Defect,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    messages: HashMap<u64, (u64, Message)>,
    count: u64,
    token: u64,
    line: Vec<Place>,
    processes: BTreeMap<u64, Process>,
    /// The last owner of each key, and its epoch.
    owners: HashMap<u64, (u64, u64)>,
    changes: u32,
}

impl Process {
    fn local(&self, now: u64) -> Time {
        let (offset, faster) = self.clock;
        let drift = i128::from(now) * i128::from(faster) / 1_000_000;
        Time(offset + u64::try_from(i128::from(now) + drift).unwrap_or_default())
    }
}

impl World {
    fn new(seed: u64, defect: Defect) -> Self {
        World {
            rng: Rng::with_seed(seed),
            defect,
            now: 0,
            queue: BinaryHeap::new(),
            messages: HashMap::new(),
            count: 0,
            token: 0,
            line: Vec::new(),
            processes: BTreeMap::new(),
            owners: HashMap::new(),
            changes: 0,
        }
    }

    /// Sends a message that takes up to this many milliseconds.
    fn send(&mut self, to: u64, within_ms: u64, message: Message) {
        self.count += 1;
        let at = self.now + self.rng.u64(0..=within_ms * MS);
        self.queue.push(Reverse((at, self.count)));
        self.messages.insert(self.count, (to, message));
    }

    /// Sends a message over the network, which loses some.
    fn post(&mut self, to: u64, message: Message) {
        if self.rng.u8(..) > 12 {
            let slow = if self.rng.u8(..) < 20 { 600 } else { 20 };
            self.send(to, slow, message);
        }
    }

    fn run(&mut self, seconds: u64) -> Result<u32, String> {
        // In half of the worlds the last two have the same address.
        let last = if self.rng.bool() { 4 } else { 3 };
        for server in [0, 1, 2, 3, last] {
            self.send(0, 2000, Message::Start(format!("server-{server}").into()));
        }
        while let Some(Reverse((at, number))) = self.queue.pop() {
            let paused = self.messages.get(&number).and_then(|(to, _)| self.processes.get(to));
            // Messages for a paused process, or from its line back to it, are read when it resumes.
            if let Some(process) = paused.filter(|process| process.paused_until > at) {
                self.queue.push(Reverse((process.paused_until, number)));
                continue;
            }
            self.now = at.max(self.now);
            if self.now > seconds * 1000 * MS {
                break;
            }
            let (to, message) = self.messages.remove(&number).expect("each is sent once");
            self.line.retain(|place| place.expires > self.now);
            self.judge()?;
            self.receive(to, message);
            self.judge()?;
        }
        Ok(self.changes)
    }

    /// Checks that no key has two owners, and that epochs rise.
    fn judge(&mut self) -> Result<(), String> {
        for key in 0..KEYS {
            let hash = rendezvous::of_key(&key.to_be_bytes());
            let claims = self.processes.values().filter_map(|process| {
                let now = process.local(self.now);
                let claims = process.claims.as_ref().filter(|_| now < process.good_until)?;
                match claims.owner(hash, now) {
                    Owner::Me(epoch) => Some((process.id, epoch)),
                    _ => None,
                }
            });
            let owners: Vec<(u64, u64)> = claims.collect();
            let &[(owner, epoch)] = &owners[..] else {
                if owners.is_empty() {
                    continue;
                }
                return Err(format!("key {key} has several owners: {owners:?}"));
            };
            if let Some((before, last)) = self.owners.insert(key, (owner, epoch)) {
                let rises = if before == owner { epoch >= last } else { epoch > last };
                if !rises {
                    return Err(format!("key {key}: epoch {epoch} of {owner} after {last}"));
                }
                self.changes += u32::from(before != owner);
            }
        }
        Ok(())
    }

    fn receive(&mut self, to: u64, message: Message) {
        match message {
            Message::Start(address) => self.start(address),
            Message::LookFirst { sent } => {
                let before = Look { sent, members: self.members() };
                self.post(to, Message::Enter { before });
            }
            Message::Enter { before } => {
                // The way back to the member and to the line again is one message here.
                let Some(process) = self.processes.get(&to) else { return };
                let (address, sent) = (Arc::clone(&process.address), process.local(self.now));
                let token = self.enter(to, Some(address));
                self.post(to, Message::Entered { sent, before, token });
            }
            Message::TakeToken { attempt } => {
                let token = self.enter(0, None);
                self.post(to, Message::TokenTaken { attempt, token });
            }
            Message::Renew { sent } => {
                let expires = self.now + nanos(LEASE.length);
                let Some(place) = self.line.iter_mut().find(|place| place.id == to) else { return };
                place.expires = place.expires.max(expires);
                self.post(to, Message::Renewed { sent });
            }
            Message::Look { attempt, sent } => {
                let members = self.members();
                self.post(to, Message::Looked { attempt, sent, members });
            }
            Message::Leave => {
                // It stops first, and then leaves the line.
                if let Some(process) = self.processes.remove(&to) {
                    self.line.retain(|place| place.id != to);
                    self.send(0, 3000, Message::Start(process.address));
                }
            }
            Message::Crash => {
                if let Some(process) = self.processes.remove(&to) {
                    self.send(0, 1500, Message::Start(process.address));
                }
            }
            own => self.receive_at(to, own),
        }
    }

    fn members(&self) -> Members {
        Members::from_places(self.line.iter().filter_map(|place| {
            let address = Arc::clone(place.address.as_ref()?);
            Some((TicketId(place.id.into()), place.token, address))
        }))
    }

    fn enter(&mut self, id: u64, address: Option<Arc<str>>) -> u64 {
        self.token += 1;
        let token = self.token;
        if address.is_some() {
            let expires = self.now + nanos(LEASE.length);
            self.line.push(Place { id, token, address, expires });
        }
        token
    }

    fn start(&mut self, address: Arc<str>) {
        self.count += 1;
        let id = self.count;
        let clock = (self.rng.u64(0..1000 * MS), self.rng.i64(-4000..=4000));
        let process = Process {
            id,
            address,
            clock,
            paused_until: 0,
            good_until: Time(0),
            claims: None,
            granted: None,
            has_joined: false,
            looking: None,
            attempt: 0,
        };
        let sent = process.local(self.now);
        self.processes.insert(id, process);
        self.post(id, Message::LookFirst { sent });
        self.send(id, 50, Message::Act);
        self.send(id, 200, Message::RenewNow);
        let end = if self.rng.bool() { Message::Crash } else { Message::Leave };
        self.send(id, 12_000, end);
    }

    /// Performs a member's own step.
    fn receive_at(&mut self, to: u64, message: Message) {
        let Some(mut process) = self.processes.remove(&to) else { return };
        let now = process.local(self.now);
        match message {
            Message::Entered { sent, before, token } if process.claims.is_none() => {
                process.good_until = LEASE.good_until(sent);
                process.granted = Some(now);
                let stale_after =
                    STALE_AFTER * if self.defect == Defect::StaleLooks { 10 } else { 1 };
                process.claims = Some(Claims::new(TicketId(to.into()), stale_after, before, token));
            }
            Message::RenewNow => {
                self.post(to, Message::Renew { sent: now });
                self.send(to, 400, Message::RenewNow);
            }
            Message::Renewed { sent } if now < process.good_until => {
                process.good_until = process.good_until.max(LEASE.good_until(sent));
            }
            Message::Act => {
                if let Some(claims) = &mut process.claims {
                    process.looking = Some(claims.start_looking(now));
                    process.attempt += 1;
                    self.step(&mut process, now);
                }
                if self.rng.u8(..) < 4 {
                    process.paused_until = self.now + self.rng.u64(0..2500 * MS);
                }
                // Some members are asked about keys only now and then.
                let pause = if self.rng.u8(..) < 30 { 1500 } else { 150 };
                self.send(to, pause, Message::Act);
            }
            Message::TokenTaken { attempt, token } if attempt == process.attempt => {
                if let Some(looking) = &mut process.looking {
                    looking.token_taken(token);
                    self.step(&mut process, now);
                }
            }
            Message::Looked { attempt, sent, members } if attempt == process.attempt => {
                let Some(mut looking) = process.looking.take() else { return self.keep(process) };
                if let Some((look, epoch)) = looking.looked(sent, members, now) {
                    self.rely_on(&mut process, look, epoch, now);
                } else {
                    process.looking = Some(looking);
                    self.step(&mut process, now);
                }
            }
            _ => {}
        }
        self.keep(process);
    }

    fn keep(&mut self, process: Process) {
        self.processes.insert(process.id, process);
    }

    fn rely_on(&self, process: &mut Process, look: Look, epoch: u64, now: Time) {
        let Some(claims) = &mut process.claims else { return };
        claims.rely_on(look, epoch, now);
        if let Some(granted) = process.granted.filter(|_| !process.has_joined) {
            let early = Time(granted.0.saturating_sub(nanos(STALE_AFTER) * 2));
            let no_wait = matches!(self.defect, Defect::NoWait | Defect::StaleLooks);
            claims.joined(if no_wait { early } else { granted }, now);
            if self.defect == Defect::StaleLooks {
                claims.joined(Time(early.0.saturating_sub(nanos(STALE_AFTER) * 7)), now);
            }
            process.has_joined = true;
        }
    }

    fn step(&mut self, process: &mut Process, now: Time) {
        let Some(looking) = &mut process.looking else { return };
        let mut step = looking.step(now);
        if step == Step::TakeToken && self.defect == Defect::NoNewEpoch {
            let epoch = process.claims.as_ref().map_or(0, Claims::epoch);
            looking.token_taken(epoch);
            step = looking.step(now);
        }
        let attempt = process.attempt;
        match step {
            Step::TakeToken => self.post(process.id, Message::TakeToken { attempt }),
            Step::Look => self.post(process.id, Message::Look { attempt, sent: now }),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn outcome(seed: u64, defect: Defect) -> Result<u32, String> {
    World::new(seed, defect).run(30).map_err(|why| format!("seed {seed}: {why}"))
}

#[test]
fn no_key_has_two_owners_and_epochs_rise() {
    let changes: u32 =
        (0..60).map(|seed| outcome(seed, Defect::None).unwrap_or_else(|why| panic!("{why}"))).sum();
    assert!(changes > 2_000, "keys changed their owner {changes} times only");
}

#[test]
fn members_that_do_not_keep_the_rules_are_found_out() {
    for defect in [Defect::NoWait, Defect::NoNewEpoch, Defect::StaleLooks] {
        let found = (0..20).filter(|seed| outcome(*seed, defect).is_err()).count();
        assert!(found >= 10, "{defect:?} was found in {found} of 20 worlds");
    }
}
