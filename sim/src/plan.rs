//! What a seed decides before anything happens: who is there, what may go wrong, and how badly.

use crate::clock::Clock;
use crate::invariants::{Line, Lock};
use crate::rng::Rng;
use std::time::Duration;

/// Which faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Messages lost, doubled, late and out of order; clients paused past their leases; servers
    /// restarted with their data; locks broken by force; callers cancelled. Everything is promised.
    Faults,
    /// Also servers that restart without their data, with clocks that run on. Exclusion is not
    /// promised.
    Wipes,
    /// Also servers whose clocks jump, forward or back, and that keep their data. Exclusion is not
    /// promised.
    Jumps,
    /// As `Faults`, with each lock kept by a quorum of three or five servers whose clocks are far
    /// apart, and may be set back. Everything is promised.
    Quorum,
    /// A quorum of servers that restart without their data, one or several at a time. They stay
    /// away
    /// for longer than their clocks are apart. Exclusion is promised as far as nodes remember.
    QuorumWipes,
    /// A quorum of servers whose clocks jump, forward or back, one or several at a time. Exclusion
    /// is promised as far as nodes keep their word.
    QuorumJumps,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 6] = [
        Class::Faults,
        Class::Wipes,
        Class::Jumps,
        Class::Quorum,
        Class::QuorumWipes,
        Class::QuorumJumps,
    ];

    /// Whether several servers keep each lock together.
    pub fn is_quorum(self) -> bool {
        matches!(self, Class::Quorum | Class::QuorumWipes | Class::QuorumJumps)
    }

    /// Whether every server does what it promised.
    pub fn is_honest(self) -> bool {
        matches!(self, Class::Faults | Class::Quorum)
    }
}

/// A mistake planted in the simulated client or server, to show that the invariants have power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The client counts its lease from the reply, not from the request.
    ValidFromReply,
    /// The server takes a place that it does not find for a new one, instead of calling it lost.
    KeepRecreates,
    /// The client repeats a request of unknown outcome with a new ticket.
    RetryWithNewId,
    /// The client takes a wake-up for a grant.
    NoProofAfterWait,
    /// The server removes whoever is first, instead of the ticket that leaves.
    LeaveByName,
    /// The server does not use its clock for tokens, so that a lost counter takes them back.
    CounterOnly,
    /// A try passes those who wait, if its weight fits.
    TryOvertakes,
    /// The server never lets a place lapse.
    NeverLapses,
    /// A node forgets which number its later ones must be above, so that lifting it is in vain.
    FloorIgnored,
    /// No mistake of the code, but of who runs it: nodes that forget have clocks that are far
    /// apart, so that their numbers start far below those that were given.
    FarClocks,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::ValidFromReply,
        Bug::KeepRecreates,
        Bug::RetryWithNewId,
        Bug::NoProofAfterWait,
        Bug::LeaveByName,
        Bug::CounterOnly,
        Bug::TryOvertakes,
        Bug::NeverLapses,
        Bug::FloorIgnored,
        Bug::FarClocks,
    ];
}

/// What kind of lock a line is.
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

/// One lock, and the server that keeps it, unless a quorum does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockPlan {
    server: usize,
    pub(crate) kind: Kind,
}

/// How bad the network is, in thousandths of all messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) slow: u64,
}

/// A slow message takes up to so long.
pub(crate) const SLOWEST: Duration = Duration::from_secs(3);
/// A holder in the time of faults works for up to so long.
pub(crate) const LONGEST_WORK: Duration = Duration::from_secs(5);
/// The leases that clients use.
pub(crate) const LEASES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// The wait_lease that clients use.
pub(crate) const WAIT_LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// The world as it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) class: Class,
    pub(crate) servers: Vec<Clock>,
    /// How many of the servers forget or jump: those are the first.
    pub(crate) bad: usize,
    pub(crate) locks: Vec<LockPlan>,
    pub(crate) clients: Vec<Clock>,
    pub(crate) weather: Weather,
    /// When the faults stop, in true time.
    pub(crate) calm: u64,
    /// How long from one fault to the next, on average.
    pub(crate) between_faults: u64,
}

/// Four of eight seeds are about single servers, four about quorums.
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
        // Together less than 1% apart, which is what a lease allows for. Nodes that forget go by
        // clocks that somebody keeps right, and are started again only after a while.
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
        let weather = match rng.below(4) {
            0 => Weather { lost: 0, doubled: 0, slow: 0 },
            1 => Weather { lost: 20, doubled: 20, slow: 20 },
            2 => Weather { lost: 100, doubled: 50, slow: 50 },
            _ => Weather { lost: 20, doubled: 200, slow: 200 },
        };
        let calm = rng.between(20, 60) * 1_000_000_000;
        let between_faults = rng.between(200, 2_000) * 1_000_000;
        Plan { class, servers, bad, locks, clients, weather, calm, between_faults }
    }

    /// The lines that keep a lock: one, or one on each node.
    pub(crate) fn lines(&self, lock: Lock) -> impl Iterator<Item = Line> + use<> {
        let one = self.locks[lock].server;
        let all = if self.class.is_quorum() { 0..self.servers.len() } else { one..one + 1 };
        all.map(move |server| (lock, server))
    }

    /// How many servers it takes to keep a lock.
    pub(crate) fn majority(&self) -> usize {
        if self.class.is_quorum() { self.servers.len() / 2 + 1 } else { 1 }
    }
}
