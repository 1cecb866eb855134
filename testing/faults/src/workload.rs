//! The next action of a client: which lock, how, and for how long.

use fastrand::Rng;
use holdline::{Client, Guard, Leader, Mutex, Result, RwLock, Semaphore, WriteGuard};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

/// The number of permits of the semaphore.
pub(crate) const PERMITS: u32 = 3;
/// The weight of a writer: all of a read-write lock.
pub(crate) const ALL: u32 = 1 << 30;

/// The behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Behaviour {
    /// Waits, tries, gives up and cancels, and stops its work when notified of a loss.
    Good,
    /// Good, but only tries.
    TryOnly,
    /// Goes on with its work whatever it is told. It keeps no place while it waits: an admitted
    /// place may last for as long as waiters may be silent, which is more than a short lease.
    IgnoresLosses,
    /// Good, but its store sometimes answers "admitted" to a waiter.
    Deceived,
}

/// A kind of lock, and how much of it is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Mutex(u8),
    Permits(u32),
    Read,
    Write,
}

/// The way to ask for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Wait,
    Try,
    Within(Duration),
    /// Wait, and drop the future after this time.
    Cancel(Duration),
}

/// The average length of a section, and the time for which the lock is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) work: Duration,
    pub(crate) lease: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    pub(crate) way: Way,
    pub(crate) work: Duration,
    /// Drop the guard instead of unlocking it.
    pub(crate) drop: bool,
    /// The pause after it.
    pub(crate) rest: Duration,
}

/// The names of all locks of a run, with their capacities.
pub(crate) fn locks(run: &str, weights: bool) -> Vec<(String, u32)> {
    let mut locks = vec![(format!("{run}-m0"), 1), (format!("{run}-m1"), 1)];
    if weights {
        locks.extend([(format!("{run}-s"), PERMITS), (format!("{run}-rw"), ALL)]);
    }
    locks
}

impl Kind {
    pub(crate) fn name(self, run: &str) -> String {
        match self {
            Kind::Mutex(at) => format!("{run}-m{at}"),
            Kind::Permits(_) => format!("{run}-s"),
            Kind::Read | Kind::Write => format!("{run}-rw"),
        }
    }

    pub(crate) fn weight(self) -> u32 {
        match self {
            Kind::Mutex(_) | Kind::Read => 1,
            Kind::Permits(n) => n,
            Kind::Write => ALL,
        }
    }

    /// Whether the holder is exclusive, so that it may use the guarded resource.
    pub(crate) fn alone(self) -> bool {
        matches!(self, Kind::Mutex(_) | Kind::Write)
    }
}

fn millis(rng: &mut Rng, range: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

/// The longest section: 60 times as long as usual, but no more than three leases, which is enough
/// for renewals.
pub(crate) fn longest(work: Duration, lease: Duration) -> Duration {
    (work * 60).min(lease * 3).max(work * 2)
}

impl Workload {
    pub(crate) fn random(
        rng: &mut Rng,
        behaviour: Behaviour,
        weights: bool,
        times: &Times,
    ) -> Self {
        let kind = match rng
            .u32(..if weights && behaviour != Behaviour::IgnoresLosses { 10 } else { 5 })
        {
            0..=4 => Kind::Mutex(rng.u8(..2)),
            5 | 6 => Kind::Permits(rng.u32(1..=2)),
            7 | 8 => Kind::Read,
            _ => Kind::Write,
        };
        let way = match (behaviour, rng.u32(..10)) {
            (Behaviour::TryOnly, _) | (Behaviour::Good, 0) => Way::Try,
            (Behaviour::Good, 1) => Way::Within(millis(rng, 0..=30)),
            (Behaviour::Good, 2) => Way::Cancel(millis(rng, 0..=15)),
            _ => Way::Wait,
        };
        let rest = match behaviour {
            Behaviour::Good | Behaviour::Deceived => millis(rng, 0..=120),
            Behaviour::TryOnly => millis(rng, 2..=30),
            Behaviour::IgnoresLosses => millis(rng, 0..=50),
        };
        // A few take long enough to be renewed.
        let long = behaviour != Behaviour::IgnoresLosses && rng.u32(..40) == 0;
        let most = if long { longest(times.work, times.lease) } else { times.work * 2 };
        let work = most.mul_f64(rng.f64());
        Workload { kind, way, work, drop: rng.u32(..12) == 0, rest }
    }

    /// The same, but the second mutex is waited for or tried, and unlocked: then it is certain when
    /// it was free. A dropped one may have stayed for a lease.
    pub(crate) fn certain(self) -> Self {
        match (self.kind, self.way) {
            (Kind::Mutex(1), Way::Try) => Workload { drop: false, ..self },
            (Kind::Mutex(1), _) => Workload { drop: false, way: Way::Wait, ..self },
            _ => self,
        }
    }
}

/// A held lock of any kind.
pub(crate) enum AnyGuard {
    Plain(Guard),
    Writer(WriteGuard),
    Leader(Leader),
}

impl Deref for AnyGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        match self {
            AnyGuard::Plain(guard) => guard,
            AnyGuard::Writer(guard) => guard,
            AnyGuard::Leader(leader) => leader,
        }
    }
}

impl AnyGuard {
    pub(crate) async fn unlock(self) -> Result<()> {
        match self {
            AnyGuard::Plain(guard) => guard.unlock().await,
            AnyGuard::Writer(guard) => guard.unlock().await,
            AnyGuard::Leader(leader) => leader.resign().await,
        }
    }
}

/// The client that asks, and its lease.
pub(crate) struct Acquirer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) label: &'a str,
    pub(crate) lease: Duration,
    /// Whether to keep no place in the line of a mutex.
    pub(crate) unfair: bool,
}

impl Acquirer<'_> {
    /// Asks for a lock through its recipe.
    pub(crate) async fn take(&self, kind: Kind, name: &str, way: Way) -> Result<Option<AnyGuard>> {
        macro_rules! made {
            ($recipe:expr) => {
                $recipe.lease(self.lease).margin(self.lease / 8).label(self.label)
            };
        }
        let guard = match kind {
            Kind::Mutex(_) => {
                let mutex = made!(Mutex::new(self.client, name));
                let mutex = if self.unfair { mutex.unfair() } else { mutex };
                match way {
                    Way::Try => mutex.try_lock().await,
                    Way::Within(time) => mutex.lock_within(time).await,
                    Way::Wait | Way::Cancel(_) => mutex.lock().await.map(Some),
                }
            }
            Kind::Permits(n) => {
                let semaphore = made!(Semaphore::new(self.client, name, PERMITS));
                match way {
                    Way::Try => semaphore.try_acquire(n).await,
                    Way::Within(time) => semaphore.acquire_within(n, time).await,
                    Way::Wait | Way::Cancel(_) => semaphore.acquire(n).await.map(Some),
                }
            }
            Kind::Read => {
                let lock = made!(RwLock::new(self.client, name));
                match way {
                    Way::Try => lock.try_read().await,
                    Way::Within(time) => lock.read_within(time).await,
                    Way::Wait | Way::Cancel(_) => lock.read().await.map(Some),
                }
            }
            Kind::Write => {
                let lock = made!(RwLock::new(self.client, name));
                let writer = match way {
                    Way::Try => lock.try_write().await,
                    Way::Within(time) => lock.write_within(time).await,
                    Way::Wait | Way::Cancel(_) => lock.write().await.map(Some),
                };
                return Ok(writer?.map(AnyGuard::Writer));
            }
        };
        Ok(guard?.map(AnyGuard::Plain))
    }
}
