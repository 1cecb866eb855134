//! The options that all recipes share, and the acquisition request that they make.

use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{LockMetrics, Recipe};
use crate::names::Name;
use crate::owner_info::OwnerInfo;
use crate::request::{AcquireRequest, Handoff};
use crate::store::{Capabilities, Store, check_capacity, check_lease, unsupported};
use holdline_kernel::{Backoff, Lease, Time, WaitMode};
use std::sync::Arc;
use std::time::Duration;

/// How long a recipe waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Not,
    Within(Duration),
    Forever,
}

impl Wait {
    /// The rest of this wait, if it began at `start`.
    pub(crate) fn left_since(self, start: Time) -> Self {
        match self {
            Wait::Within(time) => Wait::Within(clock::now().until(start.after(time))),
            other => other,
        }
    }
}

/// How long a client tolerates a store that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The time limit of a call that does not wait for a lock, retries included.
    pub(crate) response_timeout: Duration,
    /// The longest outage that waiting acquisitions and observers wait out.
    pub(crate) outage: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { response_timeout: Duration::from_millis(1800), outage: Duration::MAX }
    }
}

/// The policy of [`Guard::protect`](crate::Guard::protect) when the lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Stop the work, and return an error: the conservative policy.
    #[default]
    Stop,
    /// Let the work finish: for work that is harmless when done twice, or that a fencing token
    /// protects.
    Continue,
}

/// The options of a recipe. Each recipe has a copy, which its own methods change.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
    pub(crate) renew_interval: Option<Duration>,
    pub(crate) margin: Option<Duration>,
    pub(crate) schedule: Option<Backoff>,
    pub(crate) fair: bool,
    pub(crate) label: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) on_loss: OnLoss,
    pub(crate) handoff: Option<Handoff>,
    /// Whether a store without fencing tokens is refused.
    pub(crate) fenced: bool,
    /// The recipe's label in metrics.
    pub(crate) recipe: Recipe,
}

/// The default lease.
const LEASE: Duration = Duration::from_secs(10);
/// How long a waiter may stay silent before it loses its place.
const WAIT_LEASE: Duration = Duration::from_secs(3);
/// The shortest interval between two renewals.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// The default poll schedule of an unfair waiter.
const BARGE: Backoff =
    Backoff::exponential(Duration::from_millis(5), Duration::from_millis(100)).jitter(50);

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: LEASE,
            renew: true,
            renew_interval: None,
            margin: None,
            schedule: None,
            fair: true,
            label: None,
            value: None,
            on_loss: OnLoss::Stop,
            handoff: None,
            fenced: false,
            recipe: Recipe::default(),
        }
    }
}

impl Options {
    /// The default options of this recipe.
    pub(crate) fn new(recipe: Recipe) -> Self {
        Options { recipe, ..Options::default() }
    }

    /// Builds the request to the store, or says why the options are invalid.
    pub(crate) fn request(
        &self,
        store: &dyn Store,
        bounds: Bounds,
        line: Name,
        (weight, capacity): (u32, u32),
        wait: Wait,
        metrics: LockMetrics,
    ) -> Result<AcquireRequest> {
        let capabilities = store.capabilities();
        check_lease(store, self.lease)?;
        check_capacity(store, capacity)?;
        if self.fenced && !capabilities.fencing_tokens {
            return Err(unsupported(store, "fencing tokens"));
        }
        if self.handoff.is_some() && !capabilities.token_ranges {
            return Err(unsupported(store, "local handoff"));
        }
        if self.handoff.is_some_and(|handoff| handoff.most == 0) {
            return Err(Error::new(ErrorKind::Invalid, "local handoff needs at least 1 holder"));
        }
        let note = kept(&OwnerInfo::here(self.label.clone(), self.value.clone()), &line)?;
        let margin = self.margin.unwrap_or(self.lease / 20);
        let lease = Lease { length: self.lease, margin };
        if lease.usable() < self.lease / 4 {
            let message = format!(
                "a margin of {margin:?} leaves too little of a lease of {:?}; use at most half",
                self.lease
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.check_interval(lease)?;
        Ok(AcquireRequest {
            line,
            weight,
            capacity,
            lease,
            // An admitted place keeps its lease as a waiter at first: it must not exceed a
            // holder's.
            wait_lease: WAIT_LEASE.min(self.lease),
            renew: self.renew,
            renew_interval: self.renew_interval,
            token_count: self.handoff.map_or(1, |handoff| handoff.most),
            note,
            mode: self.mode(wait, capabilities),
            limit: match wait {
                Wait::Within(time) => clock::now().after(time),
                Wait::Not => clock::now().after(bounds.response_timeout),
                Wait::Forever => Time::NEVER,
            },
            outage: bounds.outage,
            metrics,
        })
    }

    fn check_interval(&self, lease: Lease) -> Result<()> {
        let Some(interval) = self.renew_interval else { return Ok(()) };
        let longest = lease.renew_interval();
        if (MIN_INTERVAL..=longest).contains(&interval) {
            return Ok(());
        }
        let message = format!(
            "a renewal every {interval:?} is refused: with a lease of {:?} it can be from \
             {MIN_INTERVAL:?} to {longest:?}, so that one that fails can be tried again",
            self.lease
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    fn mode(&self, wait: Wait, capabilities: Capabilities) -> WaitMode {
        match (wait, self.schedule) {
            (Wait::Not, _) => WaitMode::Try,
            (_, None) if self.fair && (capabilities.fair_queue || capabilities.notifications) => {
                WaitMode::Listen
            }
            (_, Some(schedule)) if self.fair && capabilities.fair_queue => WaitMode::Poll(schedule),
            (_, schedule) => WaitMode::Barge(schedule.unwrap_or(BARGE)),
        }
    }
}

/// Encodes the owner information for the store; an error if it is too long.
pub(crate) fn kept(info: &OwnerInfo, line: &Name) -> Result<Arc<str>> {
    info.write().map_err(|most| {
        let message = format!(
            "the note of lock \"{line}\" (label, value, reason) is longer than {most} bytes"
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

/// The option methods about holding, for a recipe that has a field `options`.
macro_rules! holding_methods {
    () => {
        /// Sets the lease: how long the lock outlives its last renewal, and so the longest time for
        /// which a crash or a cut connection keeps others out. Default: 10 s. The lock is renewed
        /// while the guard lives.
        ///
        /// [`Capabilities`](crate::store::Capabilities) says which leases a store accepts. All
        /// options are checked on acquisition: an invalid one is an error of kind
        /// [`Invalid`](crate::ErrorKind::Invalid), one that the store does not support is
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub fn lease(mut self, lease: ::std::time::Duration) -> Self {
            self.options.lease = lease;
            self.options.renew = true;
            self
        }

        /// Sets the longest interval between renewals. Default, and maximum: a quarter of the time
        /// for which a holder may rely on a lease (the lease without the margin and the allowance
        /// for clock drift). At least 10 ms. On stores that send no notice, a shorter interval
        /// detects sooner that the lock was broken.
        pub fn renew_every(mut self, interval: ::std::time::Duration) -> Self {
            self.options.renew_interval = Some(interval);
            self
        }

        /// Sets the margin: how long before another client can be admitted the holder learns of a
        /// loss. Default: a twentieth of the lease. At least a quarter of the lease must be left.
        /// Choose a larger margin if the work takes longer to stop.
        pub fn margin(mut self, margin: ::std::time::Duration) -> Self {
            self.options.margin = Some(margin);
            self
        }

        /// Sets a label, which is shown to people who inspect the lock.
        pub fn label(mut self, label: impl Into<String>) -> Self {
            self.options.label = Some(label.into());
            self
        }

        /// Sets what [`protect`](crate::Guard::protect) does when the lock is lost. Default:
        /// [`OnLoss::Stop`](crate::OnLoss::Stop).
        pub fn on_loss(mut self, on_loss: $crate::OnLoss) -> Self {
            self.options.on_loss = on_loss;
            self
        }
    };
}
pub(crate) use holding_methods;

/// The option methods of a recipe that has a field `options` and waits.
macro_rules! option_methods {
    () => {
        $crate::options::holding_methods!();

        /// Refuses a store without fencing tokens, with an error of kind
        /// [`Unsupported`](crate::ErrorKind::Unsupported). For locks whose
        /// [token](crate::Guard::token) is checked by what they guard: on such a store it is 0 for
        /// every holder, and checks nothing.
        pub fn fenced(mut self) -> Self {
            self.options.fenced = true;
            self
        }

        /// Sets a lease that is not renewed, in place of [`lease`](Self::lease): the lock is lost
        /// after this time, whatever happens, and the holder learns of it a
        /// [`margin`](Self::margin) before.
        pub fn fixed_lease(mut self, lease: ::std::time::Duration) -> Self {
            self.options.lease = lease;
            self.options.renew = false;
            self
        }

        /// Polls the store by this schedule while waiting, instead of listening for notices. The
        /// waiter keeps its place in the line, unless [`unfair`](Self::unfair) is set.
        pub fn poll(mut self, schedule: $crate::Backoff) -> Self {
            self.options.schedule = Some(schedule);
            self
        }

        /// Keeps no place in the line while waiting: the first request after a release gets the
        /// lock. That may take very long while another client locks again at once.
        pub fn unfair(mut self) -> Self {
            self.options.fair = false;
            self
        }
    };
}
pub(crate) use option_methods;
