//! What a seed decides before anything happens: who is there, what may go wrong, and how badly.

use crate::clock::Clock;
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
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 8] = [
        Bug::ValidFromReply,
        Bug::KeepRecreates,
        Bug::RetryWithNewId,
        Bug::NoProofAfterWait,
        Bug::LeaveByName,
        Bug::CounterOnly,
        Bug::TryOvertakes,
        Bug::NeverLapses,
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

/// One line, and the server that keeps it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockPlan {
    pub(crate) server: usize,
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
/// The patience that clients use.
pub(crate) const PATIENCES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// The world as it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) class: Class,
    pub(crate) servers: Vec<Clock>,
    pub(crate) locks: Vec<LockPlan>,
    pub(crate) clients: Vec<Clock>,
    pub(crate) weather: Weather,
    /// When the faults stop, in true time.
    pub(crate) calm: u64,
    /// How long from one fault to the next, on average.
    pub(crate) between_faults: u64,
}

/// Every fourth seed forgets, every fourth jumps, and two of four do neither.
pub(crate) fn class_of(seed: u64) -> Class {
    match seed % 4 {
        2 => Class::Wipes,
        3 => Class::Jumps,
        _ => Class::Faults,
    }
}

impl Plan {
    pub(crate) fn new(class: Class, rng: &mut Rng) -> Self {
        let mut clock = |base: u64, most: u64| Clock {
            offset: base + rng.below(1_000_000_000_000),
            ppm: rng.between(0, 2 * most).cast_signed() - most.cast_signed(),
        };
        // Together less than 1% apart, which is what a lease allows for.
        let server_clock = 1_000_000_000_000;
        let servers = vec![clock(server_clock, 4_000), clock(server_clock, 4_000)];
        let mut clients: Vec<Clock> = (0..8).map(|_| clock(0, 5_000)).collect();
        clients.truncate(rng.between(2, 8) as usize);
        let kinds = [Kind::Mutex, Kind::Mutex, Kind::Semaphore, Kind::ReadWrite];
        let lock =
            |rng: &mut Rng| LockPlan { server: rng.below(2) as usize, kind: rng.pick(&kinds) };
        let locks = (0..rng.between(1, 3)).map(|_| lock(rng)).collect();
        let weather = match rng.below(4) {
            0 => Weather { lost: 0, doubled: 0, slow: 0 },
            1 => Weather { lost: 20, doubled: 20, slow: 20 },
            2 => Weather { lost: 100, doubled: 50, slow: 50 },
            _ => Weather { lost: 20, doubled: 200, slow: 200 },
        };
        let calm = rng.between(20, 60) * 1_000_000_000;
        let between_faults = rng.between(200, 2_000) * 1_000_000;
        Plan { class, servers, locks, clients, weather, calm, between_faults }
    }
}
