//! The metrics: their names, labels and values.
//!
//! The crate's front page documents them for users. Each client makes its keys and labels once for
//! each kind of lock, so that a measurement allocates nothing. Recorders may be installed at any
//! time. A recorder's panic ends here: it would end an acquisition after its grant, or a release
//! before it is sent, or the process from a drop.

use crate::error::{Error, ErrorKind};
use crate::names::Name;
use crate::sync::contained;
use holdline_kernel::Time;
use metrics::{Key, Label, Level, Metadata, Unit, with_recorder};
use metrics::{describe_counter, describe_gauge, describe_histogram};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

const METADATA: Metadata<'static> = Metadata::new("holdline", Level::INFO, Some("holdline"));

/// The kind of a lock, as a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Recipe {
    #[default]
    Mutex,
    Reentrant,
    RwLock,
    Semaphore,
    Election,
    Multi,
    Group,
}

const RECIPES: [(Recipe, &str); 7] = [
    (Recipe::Mutex, "mutex"),
    (Recipe::Reentrant, "reentrant"),
    (Recipe::RwLock, "rwlock"),
    (Recipe::Semaphore, "semaphore"),
    (Recipe::Election, "election"),
    (Recipe::Multi, "multi"),
    (Recipe::Group, "group"),
];

/// How an acquisition ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acquired,
    /// A try did not find the lock free.
    Busy,
    /// A wait reached its limit.
    Timeout,
    /// The future was dropped.
    Cancelled,
    Error,
}

impl Outcome {
    const ALL: [Outcome; 5] =
        [Outcome::Acquired, Outcome::Busy, Outcome::Timeout, Outcome::Cancelled, Outcome::Error];

    /// The outcome as a label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Outcome::Acquired => "acquired",
            Outcome::Busy => "busy",
            Outcome::Timeout => "timeout",
            Outcome::Cancelled => "cancelled",
            Outcome::Error => "error",
        }
    }
}

const ERRORS: [(ErrorKind, &str); 8] = [
    (ErrorKind::Unavailable, "unavailable"),
    (ErrorKind::Lost, "lost"),
    (ErrorKind::Unknown, "unknown"),
    (ErrorKind::Unsupported, "unsupported"),
    (ErrorKind::Mismatch, "mismatch"),
    (ErrorKind::Invalid, "invalid"),
    (ErrorKind::Denied, "denied"),
    (ErrorKind::Corrupt, "corrupt"),
];

/// The kinds of store, by the beginnings of their addresses.
const STORES: [(&str, &str); 9] = [
    ("memory", "memory"),
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("zks", "zookeeper"),
    ("postgres", "postgres"),
    ("mysql", "mysql"),
    ("quorum", "quorum"),
];

fn kind_of(address: &str) -> &'static str {
    let known = STORES.into_iter().find(|(begin, _)| address.starts_with(begin));
    known.map_or("other", |(_, kind)| kind)
}

/// The metrics of one client, with their labels.
pub(crate) struct StoreMetrics {
    recipes: [RecipeKeys; RECIPES.len()],
    errors: [Key; ERRORS.len()],
    timeouts: Key,
}

/// The metrics of one kind of lock of a client.
struct RecipeKeys {
    waiting: Key,
    held: Key,
    acquire: Key,
    acquisitions: [Key; Outcome::ALL.len()],
    hold: Key,
    losses: Key,
    handoffs: Key,
    renewed: Key,
    not_renewed: Key,
}

impl StoreMetrics {
    /// The metrics of a store with this address.
    pub(crate) fn new(address: &str) -> Self {
        let kind = kind_of(address);
        let store = || Label::from_static_parts("store", kind);
        StoreMetrics {
            recipes: RECIPES.map(|(_, recipe)| {
                let labels = vec![store(), Label::from_static_parts("recipe", recipe)];
                let key = |name: &'static str| Key::from_parts(name, labels.clone());
                let outcome = |name: &'static str, outcome: &'static str| {
                    let label = Label::from_static_parts("outcome", outcome);
                    key(name).with_extra_labels(vec![label])
                };
                let renewals = |result| outcome("holdline_renewals_total", result);
                RecipeKeys {
                    waiting: key("holdline_waiting"),
                    held: key("holdline_held"),
                    acquire: key("holdline_acquire_seconds"),
                    acquisitions: Outcome::ALL
                        .map(|ended| outcome("holdline_acquisitions_total", ended.label())),
                    hold: key("holdline_hold_seconds"),
                    losses: key("holdline_losses_total"),
                    handoffs: key("holdline_handoffs_total"),
                    renewed: renewals("ok"),
                    not_renewed: renewals("failed"),
                }
            }),
            errors: ERRORS.map(|(_, kind)| {
                let labels = vec![store(), Label::from_static_parts("kind", kind)];
                Key::from_parts("holdline_errors_total", labels)
            }),
            timeouts: Key::from_parts("holdline_timeouts_total", vec![store()]),
        }
    }

    /// Counts a failed call to the store.
    pub(crate) fn failed(&self, error: &Error) {
        let at = ERRORS.iter().position(|(kind, _)| *kind == error.kind());
        count(&self.errors[at.unwrap_or_default()]);
    }

    /// Counts a call to the store that timed out.
    pub(crate) fn timed_out(&self) {
        count(&self.timeouts);
    }
}

impl fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreMetrics").finish_non_exhaustive()
    }
}

/// The metrics of one lock.
#[derive(Clone, Debug)]
pub(crate) struct LockMetrics {
    store: Arc<StoreMetrics>,
    recipe: Recipe,
    /// The lock's name, if it is a label.
    name: Option<Name>,
}

impl LockMetrics {
    pub(crate) fn new(store: &Arc<StoreMetrics>, recipe: Recipe, name: Option<Name>) -> Self {
        LockMetrics { store: Arc::clone(store), recipe, name }
    }

    fn key(&self, choose: impl Fn(&RecipeKeys) -> &Key) -> Cow<'_, Key> {
        let key = choose(&self.store.recipes[self.recipe as usize]);
        match &self.name {
            None => Cow::Borrowed(key),
            Some(name) => {
                let label = Label::new("name", name.to_string());
                Cow::Owned(key.with_extra_labels(vec![label]))
            }
        }
    }

    pub(crate) fn held(&self, by: f64) {
        change(&self.key(|keys| &keys.held), by);
    }

    pub(crate) fn released(&self, now: Time, since: Time) {
        record(&self.key(|keys| &keys.hold), since.until(now).as_secs_f64());
    }

    pub(crate) fn lost(&self) {
        count(&self.key(|keys| &keys.losses));
    }

    pub(crate) fn renewed(&self, ok: bool) {
        count(&self.key(|keys| if ok { &keys.renewed } else { &keys.not_renewed }));
    }

    pub(crate) fn handed_over(&self) {
        count(&self.key(|keys| &keys.handoffs));
    }
}

/// An acquisition in progress, counted from creation to drop, and then by its outcome.
pub(crate) struct Waiting {
    metrics: LockMetrics,
    since: Time,
    outcome: Outcome,
}

impl Waiting {
    pub(crate) fn new(metrics: &LockMetrics, since: Time) -> Self {
        change(&metrics.key(|keys| &keys.waiting), 1.0);
        Waiting { metrics: metrics.clone(), since, outcome: Outcome::Cancelled }
    }

    /// Notes how the acquisition ends. Without that it was cancelled.
    pub(crate) fn ends(&mut self, outcome: Outcome, now: Time) {
        self.outcome = outcome;
        if outcome == Outcome::Acquired {
            record(&self.metrics.key(|keys| &keys.acquire), self.since.until(now).as_secs_f64());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        change(&self.metrics.key(|keys| &keys.waiting), -1.0);
        count(&self.metrics.key(|keys| &keys.acquisitions[self.outcome as usize]));
    }
}

/// Counts a new connection to a server.
#[allow(dead_code, reason = "unused where no store has connections")]
pub(crate) fn connected(store: &'static str) {
    contained(|| metrics::counter!("holdline_connections_total", "store" => store).increment(1));
}

fn count(key: &Key) {
    contained(|| {
        with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
    });
}

fn change(key: &Key, by: f64) {
    contained(|| with_recorder(|recorder| recorder.register_gauge(key, &METADATA)).increment(by));
}

fn record(key: &Key, seconds: f64) {
    contained(|| {
        with_recorder(|recorder| recorder.register_histogram(key, &METADATA)).record(seconds);
    });
}

/// Describes every metric to the installed recorder: its unit, and the help text that exporters
/// show. Call it once, after installing the recorder.
pub fn describe_metrics() {
    describe_gauge!("holdline_waiting", Unit::Count, "Acquisitions under way");
    describe_gauge!("holdline_held", Unit::Count, "Locks held");
    describe_histogram!(
        "holdline_acquire_seconds",
        Unit::Seconds,
        "From asking to holding, of acquisitions that succeeded"
    );
    describe_counter!(
        "holdline_acquisitions_total",
        Unit::Count,
        "Acquisitions that have ended, by outcome"
    );
    describe_histogram!("holdline_hold_seconds", Unit::Seconds, "From holding to release or loss");
    describe_counter!("holdline_renewals_total", Unit::Count, "Renewals, by outcome");
    describe_counter!("holdline_losses_total", Unit::Count, "Locks lost while held");
    describe_counter!(
        "holdline_handoffs_total",
        Unit::Count,
        "Local handoffs, which the store never saw"
    );
    describe_counter!(
        "holdline_errors_total",
        Unit::Count,
        "Calls to the store that failed, by kind"
    );
    describe_counter!(
        "holdline_timeouts_total",
        Unit::Count,
        "Calls to the store that were not answered in time"
    );
    describe_counter!(
        "holdline_connections_total",
        Unit::Count,
        "Connections opened to servers, including reconnections"
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_address_tells_its_kind_of_store() {
        for (address, kind) in [
            ("memory", "memory"),
            ("sqlite:/a", "sqlite"),
            ("rediss://h", "redis"),
            ("redis+sentinel://h", "redis"),
            ("etcds://h", "etcd"),
            ("zookeeper://h", "zookeeper"),
            ("zks://h", "zookeeper"),
            ("postgres://h", "postgres"),
            ("mysql://h", "mysql"),
            ("quorum:redis://a,zks://b", "quorum"),
            ("mine", "other"),
        ] {
            assert_eq!(super::kind_of(address), kind);
        }
    }
}
