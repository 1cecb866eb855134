//! The expectations: a store's promises, and the minimum that a run must show to count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::FaultKind;
use crate::report::Rule;

/// The quality of a store's fencing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fences {
    /// It has none.
    None,
    /// They rise while the store keeps its data: violations are reported but do not fail the run.
    BestEffort,
    /// They always rise.
    #[default]
    Strict,
}

/// A bound on the time from the release of a lock to the next waiter's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// The bound in nanoseconds.
    pub bound_ns: u64,
    /// The share of hand-offs, in percent, that must meet the bound.
    pub percent: u32,
}

/// A fault under which the store does not promise some rules: their findings are notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpromised {
    /// The fault.
    pub fault: FaultKind,
    /// The rules.
    pub rules: Vec<Rule>,
    /// Whether a fault with a target excuses only what is found about that process.
    #[serde(default)]
    pub of_target: bool,
}

impl Unpromised {
    /// Under this fault, these rules are not promised to any process.
    pub fn to_all(fault: FaultKind, rules: impl Into<Vec<Rule>>) -> Self {
        Unpromised { fault, rules: rules.into(), of_target: false }
    }

    /// Under this fault of a process, these rules are not promised to that process.
    pub fn to_its_target(fault: FaultKind, rules: impl Into<Vec<Rule>>) -> Self {
        Unpromised { fault, rules: rules.into(), of_target: true }
    }
}

/// The expectations of a check. Times are in nanoseconds.
///
/// The default is the strictest mutex on a perfect network; a test relaxes what its store does not
/// promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools)] // Promises are independent of each other.
pub struct Expect {
    /// The capacity of a lock: 1 for a mutex.
    pub capacity: u64,
    /// Locks with another capacity.
    pub capacities: BTreeMap<String, u64>,
    /// The quality of the fencing tokens.
    pub fences: Fences,
    /// Whether waiters are served in the order of their arrival.
    pub fifo: bool,
    /// Whether a holder is notified of the loss of its lock.
    pub tells_loss: bool,
    /// Whether a live holder that no fault touches keeps its lock.
    pub keeps_leases: bool,
    /// Whether a release reports whether the lock was held.
    pub release_tells: bool,
    /// Whether the history has renewals. If not, leases may last longer than it shows.
    pub renewals_recorded: bool,
    /// Whether nothing was broken: then no lock and no update may be lost.
    pub calm: bool,
    /// Whether the guarded resource took part.
    pub resource: bool,
    /// The fewest grants that make a run count.
    pub min_acquires: usize,
    /// The smallest share of all grants, in percent, for each client.
    pub min_share_percent: u32,
    /// The smallest share of contended attempts, in percent.
    pub min_contention_percent: u32,
    /// The fewest locks that must have been lost (runs with pauses).
    pub min_expiries: usize,
    /// How late after its deadline a holder may be notified, while no rival is admitted.
    pub loss_slack_ns: u64,
    /// How late a request may still arrive at the store.
    pub late_ns: u64,
    /// How long the store keeps a lock closed after its holder is gone.
    pub lock_delay_ns: u64,
    /// How long places that a live client gave up may stay in the store; `None` means for their
    /// lease.
    pub cleanup_ns: Option<u64>,
    /// The tolerance for measuring errors.
    pub grace_ns: u64,
    /// The bound on hand-offs, if there is one.
    pub handoff: Option<Handoff>,
    /// How soon after the last heal a fresh client acquires every lock, if that is promised.
    pub liveness_ns: Option<u64>,
    /// How long the effects of a fault may last after its heal.
    pub settle_ns: u64,
    /// How long a waiter may be silent before the store may remove its place, if that is known.
    pub silence_ns: Option<u64>,
    /// The rules that the store does not promise under some faults.
    pub unpromised: Vec<Unpromised>,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            capacity: 1,
            capacities: BTreeMap::new(),
            fences: Fences::Strict,
            fifo: false,
            tells_loss: true,
            keeps_leases: false,
            release_tells: true,
            renewals_recorded: true,
            calm: false,
            resource: false,
            min_acquires: 300,
            min_share_percent: 1,
            min_contention_percent: 20,
            min_expiries: 0,
            loss_slack_ns: 50_000_000,
            late_ns: 1_000_000_000,
            lock_delay_ns: 0,
            cleanup_ns: None,
            grace_ns: 50_000_000,
            handoff: None,
            liveness_ns: None,
            settle_ns: 1_000_000_000,
            silence_ns: None,
            unpromised: Vec::new(),
        }
    }
}

impl Expect {
    /// Expectations without a minimum size of the run: for single rules and small histories.
    pub fn small() -> Self {
        Self { min_acquires: 0, min_share_percent: 0, min_contention_percent: 0, ..Self::default() }
    }

    /// The capacity of a lock.
    pub fn capacity_of(&self, lock: &str) -> u64 {
        self.capacities.get(lock).copied().unwrap_or(self.capacity)
    }
}
