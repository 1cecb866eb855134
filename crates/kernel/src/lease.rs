//! Leases: how long a lock is known to be held, and when to renew it.
//!
//! The store starts the lease when it handles a request; the holder counts from *before it sent*
//! that request, so its own deadline can only be earlier. The deadline is earlier still by an
//! allowance for clocks that run at different rates, and by a margin in which to stop the work
//! before another ticket can be admitted.

use crate::Time;
use core::time::Duration;

/// The number of renewals sent within one lease; one success suffices.
const TRIES: u32 = 3;

/// A lease: its length, and the holder's safety margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How long the store keeps the ticket's place.
    pub length: Duration,
    /// How much earlier than that the holder considers the lock lost, in addition to the drift
    /// allowance.
    pub margin: Duration,
}

impl Lease {
    /// The drift allowance, for clocks that run at different rates: 1% of the lease and 2 ms.
    pub fn drift(&self) -> Duration {
        Self::drift_of(self.length)
    }

    /// The drift allowance of a lease of this length.
    pub fn drift_of(length: Duration) -> Duration {
        length / 100 + Duration::from_millis(2)
    }

    /// The longest that this time can take by another clock: with a drift allowance, and with one
    /// for the allowance.
    pub fn by_any_clock(time: Duration) -> Duration {
        let drift = Self::drift_of(time);
        time.saturating_add(drift + drift / 50)
    }

    /// How long the holder may rely on the lease, counted from when the request was sent.
    pub fn usable(&self) -> Duration {
        self.length.saturating_sub(self.drift()).saturating_sub(self.margin)
    }

    /// The holder's deadline, if a request sent at `sent` acquired or renewed the lock.
    pub fn good_until(&self, sent: Time) -> Time {
        sent.after(self.usable())
    }

    /// The time between two renewals, which is also the time limit of each.
    pub fn renew_interval(&self) -> Duration {
        self.usable() / (TRIES + 1)
    }
}

/// The next step for a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing before this instant.
    Sleep(Time),
    /// Renew now.
    Renew,
    /// The lock is lost: notify the holder.
    Lose,
}

/// The timer of one held lock: its deadline, and when its renewals are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimer {
    lease: Lease,
    until: Time,
    renew: Time,
    /// The longest time between two renewals, even if the lease would allow more.
    longest: Duration,
    /// The time between two renewals before the current deadline.
    interval: Duration,
    renewed: bool,
    doubted: Time,
}

impl LeaseTimer {
    /// The timer of a lock acquired by a request sent at `sent`. Without `renewed` it is a fixed
    /// lease.
    pub fn new(lease: Lease, sent: Time, renewed: bool) -> Self {
        let interval = lease.renew_interval();
        let renew = if renewed { sent.after(interval) } else { Time::NEVER };
        let until = lease.good_until(sent);
        LeaseTimer { lease, until, renew, longest: interval, interval, renewed, doubted: Time(0) }
    }

    /// The timer of a lock acquired by a notice: valid until `until`, whatever its lease, with the
    /// usual number of attempts to renew it before that.
    pub fn trusted(lease: Lease, now: Time, until: Time) -> Self {
        let interval = now.until(until) / (TRIES + 1);
        let (renew, longest) = (now.after(interval), lease.renew_interval());
        LeaseTimer { lease, until, renew, longest, interval, renewed: true, doubted: Time(0) }
    }

    /// The same timer with at most `interval` between renewals. An interval longer than the lease's
    /// own changes nothing.
    pub fn every(self, interval: Duration, now: Time) -> Self {
        let longest = interval.min(self.longest);
        let interval = interval.min(self.interval);
        let renew = if self.renewed { self.renew.min(now.after(interval)) } else { self.renew };
        LeaseTimer { renew, longest, interval, ..self }
    }

    /// The holder's deadline.
    pub fn until(&self) -> Time {
        self.until
    }

    /// When the next step is due: a renewal, or the deadline.
    pub fn due(&self) -> Time {
        self.until.min(self.renew)
    }

    /// Whether the lease is renewed. If not, it is a fixed lease.
    pub fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// The lease of the lock.
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// Records a renewal by `lease`, sent at `sent`. A renewal never shortens a lease, neither here
    /// nor in the store, so replies may arrive out of order.
    pub fn renewed(&mut self, lease: Lease, sent: Time) {
        let (until, interval) = (lease.good_until(sent), lease.renew_interval().min(self.longest));
        if until > self.until {
            (self.until, self.interval) = (until, interval);
        }
        // A reply to a request sent before the hint does not answer the hint.
        if self.renewed && sent >= self.doubted {
            self.renew = self.renew.max(sent.after(interval));
        }
    }

    /// Records that the lock was there for a request sent at `sent`. A fixed lease needs no other.
    pub fn confirmed(&mut self, sent: Time) {
        if !self.renewed && sent >= self.doubted {
            self.renew = Time::NEVER;
        }
    }

    /// The step that is due at `now`. After [`Next::Renew`] the next renewal is due one interval
    /// later, whatever the reply.
    pub fn next(&mut self, now: Time) -> Next {
        if now >= self.until {
            return Next::Lose;
        }
        if now < self.renew {
            return Next::Sleep(self.due());
        }
        self.renew = now.after(self.interval);
        Next::Renew
    }

    /// Makes a renewal due at once, on a hint that the lock may be gone. A fixed lease stays fixed:
    /// its renewals end when one is [confirmed](Self::confirmed).
    pub fn verify(&mut self, now: Time) {
        self.renew = self.renew.min(now);
        self.doubted = now;
    }
}
