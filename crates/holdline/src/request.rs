//! The acquisition request: everything about one acquisition but the store.

use crate::clock;
use crate::error::Result;
use crate::metrics::LockMetrics;
use crate::names::{self, Name};
use crate::store::{Ticket, TicketId};
use holdline_kernel::{Lease, LeaseTimer, Time, WaitMode};
use std::sync::Arc;
use std::time::Duration;

/// The bounds of local handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handoff {
    /// The most holders that one ticket may serve.
    pub(crate) most: u32,
    /// The longest time that one ticket may serve them.
    pub(crate) time: Duration,
}

/// The terms of a held lock that its holder relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Lease,
    renew: bool,
    renew_interval: Option<Duration>,
}

/// Everything about an acquisition but the store.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) line: Name,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    pub(crate) lease: Lease,
    pub(crate) wait_lease: Duration,
    pub(crate) renew: bool,
    /// The longest interval between renewals, if one was set.
    pub(crate) renew_interval: Option<Duration>,
    pub(crate) token_count: u32,
    pub(crate) note: Arc<str>,
    pub(crate) mode: WaitMode,
    pub(crate) limit: Time,
    /// How long an outage of a store that has answered before may last.
    pub(crate) outage: Duration,
    pub(crate) metrics: LockMetrics,
}

impl AcquireRequest {
    pub(crate) fn terms(&self) -> Terms {
        Terms { lease: self.lease, renew: self.renew, renew_interval: self.renew_interval }
    }

    /// The timer of a lock that was acquired by a request sent at `sent`.
    pub(crate) fn timer(&self, sent: Time) -> LeaseTimer {
        self.often(LeaseTimer::new(self.lease, sent, self.renew))
    }

    /// The timer of a lock that was acquired by a notice and is valid until `until`.
    pub(crate) fn trusted_timer(&self, until: Time) -> LeaseTimer {
        self.often(LeaseTimer::trusted(self.lease, clock::now(), until))
    }

    fn often(&self, timer: LeaseTimer) -> LeaseTimer {
        self.renew_interval.map_or(timer, |interval| timer.every(interval, clock::now()))
    }

    /// A new ticket for this request.
    pub(crate) fn ticket(&self) -> Result<Ticket> {
        Ok(Ticket {
            id: TicketId(names::random()?),
            weight: self.weight,
            capacity: self.capacity,
            lease: self.lease.length,
            wait_lease: self.wait_lease,
            token_count: self.token_count,
            min_token: 0,
        })
    }
}
