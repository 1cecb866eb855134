//! How long a reply is good for, and when to renew.
//!
//! The store starts the lease when it handles a request; the holder counts from *before it sent*
//! that request, so its own deadline can only be earlier. From that deadline it takes off an
//! allowance for clocks that run at different rates, and a margin in which to stop work before
//! anybody else can be let in.

use crate::Time;
use core::time::Duration;

/// How many times a lease is renewed while it lasts; any one success is enough.
const TRIES: u32 = 3;

/// A lease's length, and what the holder keeps back of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How long the store lets the ticket hold.
    pub length: Duration,
    /// How much earlier than that the holder must consider it lost, on top of the drift.
    pub margin: Duration,
}

impl Lease {
    /// What is taken off for clocks that differ in rate: 1% of the lease and 2 ms.
    pub fn drift(&self) -> Duration {
        Self::drift_of(self.length)
    }

    /// The allowance for clocks that differ in rate, for a lease of this length.
    pub fn drift_of(length: Duration) -> Duration {
        length / 100 + Duration::from_millis(2)
    }

    /// How long the holder may use it, from before the request was sent.
    pub fn usable(&self) -> Duration {
        self.length.saturating_sub(self.drift()).saturating_sub(self.margin)
    }

    /// Until when a holder is sure of a lock that a request sent at `sent` gave or renewed.
    pub fn good_until(&self, sent: Time) -> Time {
        sent.after(self.usable())
    }

    /// The time between two renewals, and the time that one of them may take.
    pub fn renew_interval(&self) -> Duration {
        self.usable() / (TRIES + 1)
    }
}

/// What to do next about a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing before this instant.
    Sleep(Time),
    /// Renew now.
    Renew,
    /// The lock is lost: tell the holder.
    Lose,
}

/// One held lock: until when it is good, and when it is to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimer {
    lease: Lease,
    until: Time,
    renew: Time,
    renewed: bool,
    doubted: Time,
}

impl LeaseTimer {
    /// A lock given in reply to a request sent at `sent`. Without `renewed` it is a fixed lease.
    pub fn new(lease: Lease, sent: Time, renewed: bool) -> Self {
        let renew = if renewed { sent.after(lease.renew_interval()) } else { Time::NEVER };
        LeaseTimer { lease, until: lease.good_until(sent), renew, renewed, doubted: Time(0) }
    }

    /// A lock that is good until then, whatever its lease, and to be renewed long before.
    pub fn trusted(lease: Lease, now: Time, until: Time) -> Self {
        let renew = now.after(now.until(until) / (TRIES + 1));
        LeaseTimer { lease, until, renew, renewed: true, doubted: Time(0) }
    }

    /// Until when the holder may be sure of it.
    pub fn until(&self) -> Time {
        self.until
    }

    /// Whether its lease is renewed as time goes by. If not, it is a fixed lease.
    pub fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// The lease that it is held by.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// A request sent at `sent` renewed it by `lease`. Neither here nor in the store does a renewal
    /// shorten what another gave, so replies may overtake one another.
    pub fn renewed(&mut self, lease: Lease, sent: Time) {
        self.until = self.until.max(lease.good_until(sent));
        // What was asked before a hint came does not settle it.
        if self.renewed && sent >= self.doubted {
            let interval = lease.renew_interval().min(self.lease.renew_interval());
            self.renew = self.renew.max(sent.after(interval));
        }
    }

    /// What to do at `now`. After [`Next::Renew`] it asks again one interval later, whatever comes
    /// back.
    pub fn next(&mut self, now: Time) -> Next {
        if now >= self.until {
            return Next::Lose;
        }
        if now < self.renew {
            return Next::Sleep(self.until.min(self.renew));
        }
        self.renew =
            if self.renewed { now.after(self.lease.renew_interval()) } else { Time::NEVER };
        Next::Renew
    }

    /// Asks for a renewal at once, because there is a hint that the lock may be gone. A fixed lease
    /// is asked about once, and stays fixed.
    pub fn verify(&mut self, now: Time) {
        self.renew = self.renew.min(now);
        self.doubted = now;
    }
}
