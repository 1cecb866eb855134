//! The plan of a run, which the seed determines: the machines, the faults, and their rates.

use crate::clock::Clock;
use crate::invariants::{Line, Lock};
use crate::rng::Rng;
use std::time::Duration;

/// The class of a run's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Messages lost, duplicated, late and out of order; clients paused past their leases; servers
    /// restarted with their data; locks broken by force; callers cancelled. All guarantees hold.
    Faults,
    /// Also servers that restart without their data, with clocks that run on. Exclusion is not
    /// guaranteed.
    Wipes,
    /// Also servers whose clocks jump, forward or back, and that keep their data. Exclusion is not
    /// guaranteed.
    Jumps,
    /// As `Faults`, with each lock kept by a quorum of three or five servers whose clocks are far
    /// apart and may be set back. All guarantees hold.
    Quorum,
    /// A quorum of servers that restart without their data, one or several at a time, after a
    /// downtime longer than the difference of their clocks. Exclusion is guaranteed as far as nodes
    /// keep their data.
    QuorumWipes,
    /// A quorum of servers whose clocks jump, forward or back, one or several at a time. Exclusion
    /// is guaranteed as far as nodes keep their promises.
    QuorumJumps,
    /// As `Faults`, with clients that decide admission themselves: the library's engine for
    /// ephemeral entries, on a server of sequential entries. All guarantees hold.
    Entries,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 7] = [
        Class::Faults,
        Class::Wipes,
        Class::Jumps,
        Class::Quorum,
        Class::QuorumWipes,
        Class::QuorumJumps,
        Class::Entries,
    ];

    /// Whether a quorum keeps each lock.
    pub fn is_quorum(self) -> bool {
        matches!(self, Class::Quorum | Class::QuorumWipes | Class::QuorumJumps)
    }

    /// The most tokens that a ticket may reserve: entries have one number each.
    pub(crate) fn most_tokens(self) -> u32 {
        if self == Class::Entries { 1 } else { u32::MAX }
    }

    /// Whether every server keeps its promises.
    pub fn is_honest(self) -> bool {
        matches!(self, Class::Faults | Class::Quorum | Class::Entries)
    }
}

/// A bug planted in the simulated client or server, to show that the invariants catch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The client counts its lease from the reply, not from the request.
    ValidFromReply,
    /// The server treats a renewal of an unknown place as a new entry, instead of answering that it
    /// is lost.
    KeepRecreates,
    /// The client repeats a request of unknown outcome with a new ticket.
    RetryWithNewId,
    /// The client treats a notice as a grant.
    NoProofAfterWait,
    /// The server removes the first ticket, instead of the one that leaves.
    LeaveByName,
    /// The server does not use its clock for tokens, so that they fall after the loss of the
    /// counter.
    CounterOnly,
    /// A try overtakes waiters if its weight fits.
    TryOvertakes,
    /// The server never expires a place.
    NeverLapses,
    /// A node ignores the minimum token of a ticket.
    FloorIgnored,
    /// The server reserves one token for a ticket that asks for several.
    SpanIgnored,
    /// The server answers a removal by force with the token of the place removed.
    FenceTooLow,
    /// The server notifies callers of what its reply says.
    CallerNotified,
    /// The client believes a granting reply however late it comes.
    LateGrant,
    /// An error in operation, not in code: nodes that lose their data have clocks far apart, so
    /// that their new tokens start far below the old ones.
    FarClocks,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 14] = [
        Bug::ValidFromReply,
        Bug::KeepRecreates,
        Bug::RetryWithNewId,
        Bug::NoProofAfterWait,
        Bug::LeaveByName,
        Bug::CounterOnly,
        Bug::TryOvertakes,
        Bug::NeverLapses,
        Bug::FloorIgnored,
        Bug::SpanIgnored,
        Bug::FenceTooLow,
        Bug::CallerNotified,
        Bug::LateGrant,
        Bug::FarClocks,
    ];
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    ReadWrite,
}

impl Kind {
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Kind::Mutex => 1,
            Kind::Semaphore => 3,
            Kind::ReadWrite => 1 << 30,
        }
    }

    pub(crate) fn weight(self, rng: &mut Rng) -> u32 {
        match self {
            Kind::Mutex => 1,
            Kind::Semaphore => rng.pick(&[1, 1, 1, 2, 3]),
            Kind::ReadWrite => rng.pick(&[1, 1, 1 << 30]),
        }
    }
}

/// A lock, and the server that keeps it, unless a quorum does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockPlan {
    server: usize,
    pub(crate) kind: Kind,
}

/// The rates of network faults, in thousandths of all messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkFaults {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) slow: u64,
}

/// The longest delay of a message.
pub(crate) const SLOWEST: Duration = Duration::from_secs(3);
/// The longest time that a holder works while there are faults.
pub(crate) const LONGEST_WORK: Duration = Duration::from_secs(5);
/// The leases of clients.
pub(crate) const LEASES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// The wait leases of clients.
pub(crate) const WAIT_LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// The initial state of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) class: Class,
    pub(crate) servers: Vec<Clock>,
    /// The number of servers that lose data or whose clocks jump: the first ones.
    pub(crate) bad: usize,
    pub(crate) locks: Vec<LockPlan>,
    pub(crate) clients: Vec<Clock>,
    pub(crate) network_faults: NetworkFaults,
    /// When the faults stop, in true time.
    pub(crate) calm: u64,
    /// The mean time between two faults.
    pub(crate) between_faults: u64,
}

/// The class of a seed's faults: four of eight seeds have single servers, four have quorums.
pub(crate) fn class_of(seed: u64) -> Class {
    match seed % 8 {
        0 | 1 => Class::Faults,
        2 => Class::Wipes,
        3 => Class::Jumps,
        4 | 5 => Class::Quorum,
        6 => Class::QuorumWipes,
        _ => Class::QuorumJumps,
    }
}

impl Plan {
    pub(crate) fn new(class: Class, bug: Option<Bug>, rng: &mut Rng) -> Self {
        // The rates differ by less than 1%, which is the allowance of a lease. Nodes that lose
        // their data have synchronised clocks, and restart only after a while.
        let near = class == Class::QuorumWipes && bug != Some(Bug::FarClocks);
        let (spread, ppm) = if near { (10_000_000, 100) } else { (1_000_000_000_000, 4_000) };
        let mut clock = |base: u64, spread: u64, most: u64| Clock {
            offset: base + rng.below(spread),
            ppm: rng.between(0, 2 * most).cast_signed() - most.cast_signed(),
        };
        let mut servers: Vec<Clock> =
            (0..5).map(|_| clock(1_000_000_000_000, spread, ppm)).collect();
        let ppm = if near { 100 } else { 5_000 };
        let mut clients: Vec<Clock> = (0..8).map(|_| clock(0, 1_000_000_000_000, ppm)).collect();
        servers.truncate(if class.is_quorum() { rng.pick(&[3, 3, 5]) } else { 2 });
        let bad = if class.is_quorum() { rng.pick(&[1, servers.len()]) } else { servers.len() };
        clients.truncate(rng.between(2, 8) as usize);
        let kinds = [Kind::Mutex, Kind::Mutex, Kind::Semaphore, Kind::ReadWrite];
        let kinds = if class.is_quorum() { &kinds[..1] } else { &kinds[..] };
        let lock =
            |rng: &mut Rng| LockPlan { server: rng.below(2) as usize, kind: rng.pick(kinds) };
        let locks = (0..rng.between(1, 3)).map(|_| lock(rng)).collect();
        let network_faults = match rng.below(4) {
            0 => NetworkFaults { lost: 0, doubled: 0, slow: 0 },
            1 => NetworkFaults { lost: 20, doubled: 20, slow: 20 },
            2 => NetworkFaults { lost: 100, doubled: 50, slow: 50 },
            _ => NetworkFaults { lost: 20, doubled: 200, slow: 200 },
        };
        let calm = rng.between(20, 60) * 1_000_000_000;
        let between_faults = rng.between(200, 2_000) * 1_000_000;
        Plan { class, servers, bad, locks, clients, network_faults, calm, between_faults }
    }

    /// The lines of a lock: one, or one on each node.
    pub(crate) fn lines(&self, lock: Lock) -> impl Iterator<Item = Line> + use<> {
        let one = self.locks[lock].server;
        let all = match self.class {
            Class::Entries => 0..1, // a session is on one server
            class if class.is_quorum() => 0..self.servers.len(),
            _ => one..one + 1,
        };
        all.map(move |server| (lock, server))
    }

    /// The number of servers that must grant a lock.
    pub(crate) fn majority(&self) -> usize {
        if self.class.is_quorum() { self.servers.len() / 2 + 1 } else { 1 }
    }
}
