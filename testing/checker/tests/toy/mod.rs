//! A toy lock system in virtual time: a store with a line of tickets, clients with leases, a
//! network that loses and delays, faults. Everything follows from a seed.
//!
//! It is right when no bug is planted; each [`Bug`] breaks one thing that real lock systems got
//! wrong.

mod client;
mod section;
mod store;
mod world;

pub(crate) use world::run;

use holdline_checker::{Expect, Fences, Handoff};

/// One millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// The lease.
pub(crate) const TTL: u64 = 400 * MS;
/// After this long without an answer a client asks again.
pub(crate) const RPC: u64 = 15 * MS;
/// How often a waiter looks by itself.
pub(crate) const POLL: u64 = 20 * MS;

/// The locks with their capacities and the weights that clients ask for.
pub(crate) const LOCKS: [(&str, u64, [u64; 2]); 3] =
    [("mutex", 1, [1, 1]), ("readwrite", 1 << 30, [1, 1 << 30]), ("semaphore", 3, [1, 2])];

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    ValidityFromReply,
    LeaveWithoutCompare,
    RenewRecreates,
    NoRecheckAfterWait,
    FenceFromOwner,
    FenceResetWhenEmpty,
    CancelNotCleaned,
    RetryNewOwner,
    WallClockDeadline,
    NotificationOnly,
    RenewAfterRelease,
    RenewerStarves,
    LossNotTold,
    ReaderPastHoldingWriter,
    ReaderPastWaitingWriter,
    NewestFirst,
    TryReadsStaleCopy,
    SemaphoreOffByOne,
    CachedRead,
    TokenFromResource,
}

/// What the toy promises.
pub(crate) fn promises() -> Expect {
    Expect {
        capacities: LOCKS.iter().map(|(n, c, _)| ((*n).to_owned(), *c)).collect(),
        fences: Fences::Strict,
        fifo: true,
        keeps_leases: true,
        resource: true,
        min_acquires: 50,
        min_expiries: 1,
        loss_slack_ns: 5 * MS,
        late_ns: 120 * MS,
        cleanup_ns: Some(60 * MS),
        grace_ns: 10 * MS,
        handoff: Some(Handoff { bound_ns: 150 * MS, percent: 100 }),
        liveness_ns: Some(1_000 * MS),
        settle_ns: 600 * MS,
        ..Expect::default()
    }
}

/// A small generator of random numbers (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// What a client asks of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) life: u32,
    /// Unique, and rising in a client.
    pub(crate) id: u64,
    pub(crate) sent: u64,
    pub(crate) lock: usize,
    pub(crate) ticket: u64,
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Enter { weight: u64, wait: bool },
    Keep,
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Admitted { fence: u64 },
    Waiting,
    Busy,
    NotHeld,
    Left,
}
