//! What a store promises, and what a run must have shown to count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::FaultKind;
use crate::report::Rule;

/// How good a store's fencing tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fences {
    /// It has none.
    None,
    /// They rise while the store keeps its data: faults are reported and do not fail the run.
    BestEffort,
    /// They always rise.
    #[default]
    Strict,
}

/// A bound on the time from "the lock is free" to "the next waiter has it".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// The bound in nanoseconds.
    pub bound_ns: u64,
    /// The share of hand-offs, in percent, that must keep the bound.
    pub percent: u32,
}

/// A fault under which the store does not promise some rules: what they find is a note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpromised {
    /// The fault.
    pub fault: FaultKind,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// What the checker may expect. Times are in nanoseconds.
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
    /// How good the fencing tokens are.
    pub fences: Fences,
    /// Whether waiters are served in the order of their arrival.
    pub fifo: bool,
    /// Whether a holder is told that it lost its lock.
    pub tells_loss: bool,
    /// Whether a live holder that no fault touches keeps its lock.
    pub keeps_leases: bool,
    /// Whether a release says whether the lock was held.
    pub release_tells: bool,
    /// Whether renewals are in the history. If not, leases may last longer than the history shows.
    pub renewals_recorded: bool,
    /// Whether nothing was broken: then no lock may be lost and no update either.
    pub calm: bool,
    /// Whether the guarded resource took part.
    pub resource: bool,
    /// The fewest grants that make a run count.
    pub min_acquires: usize,
    /// The smallest share of all grants, in percent, for each client.
    pub min_share_percent: u32,
    /// The smallest share of attempts, in percent, that met somebody else.
    pub min_contention_percent: u32,
    /// The fewest locks that must have been lost (runs with pauses).
    pub min_expiries: usize,
    /// How late after its deadline a holder may be told, while no rival is in.
    pub loss_slack_ns: u64,
    /// How late a request may still reach the store.
    pub late_ns: u64,
    /// How long the store keeps a lock closed after its holder is gone.
    pub lock_delay_ns: u64,
    /// How long what a live client gave up may linger in the store; none means its lease.
    pub cleanup_ns: Option<u64>,
    /// Room for measuring errors.
    pub grace_ns: u64,
    /// The bound on hand-offs, if there is one.
    pub handoff: Option<Handoff>,
    /// How soon after the last heal a fresh client gets every lock, if that is promised.
    pub liveness_ns: Option<u64>,
    /// How long the effects of a fault may be felt after its heal.
    pub settle_ns: u64,
    /// What the store does not promise under which fault.
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
            unpromised: Vec::new(),
        }
    }
}

impl Expect {
    /// No demands on the size of the run: for single rules and small histories.
    pub fn small() -> Self {
        Self { min_acquires: 0, min_share_percent: 0, min_contention_percent: 0, ..Self::default() }
    }

    /// The capacity of a lock.
    pub fn capacity_of(&self, lock: &str) -> u64 {
        self.capacities.get(lock).copied().unwrap_or(self.capacity)
    }
}
