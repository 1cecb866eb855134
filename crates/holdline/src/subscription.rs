//! Subscriptions to changes of lines, for observers.

use crate::names::Name;
use crate::sync::contained;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The lines that a subscription covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lines {
    /// The line of this name.
    Named(Name),
    /// All lines whose names begin with this prefix.
    Prefix(String),
}

impl Lines {
    /// Whether the subscription covers the line of this name.
    pub fn contain(&self, name: &Name) -> bool {
        match self {
            Lines::Named(line) => line == name,
            Lines::Prefix(prefix) => name.as_str().starts_with(prefix.as_str()),
        }
    }
}

/// A subscription to changes of lines, which ends when it is dropped. Created by
/// [`Store::subscribe`](crate::store::Store::subscribe).
pub struct Subscription {
    shared: Arc<Shared>,
    /// Whether expiries are notified, too.
    complete: bool,
    /// A value that keeps the store listening.
    source: Option<Box<dyn Any + Send + Sync>>,
}

/// The store's end of a subscription.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// One permit stands for any number of changes.
    changed: Notify,
    listens: AtomicBool,
}

impl Subscription {
    /// The subscription of a store that never notifies observers.
    pub fn none() -> Self {
        Subscription { shared: Arc::default(), complete: false, source: None }
    }

    /// Creates a subscription, and the notifier by which the store reports changes.
    pub fn new() -> (Notifier, Self) {
        let subscription = Subscription::none();
        (Notifier(Arc::clone(&subscription.shared)), subscription)
    }

    /// Marks the subscription as complete: the store also notifies about expiries of leases and
    /// sessions, and about crashed processes. Observers need not poll while such a store listens.
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }

    /// Keeps a value until the subscription is dropped; dropping it stops the store's listening.
    pub fn keep(mut self, source: impl Any + Send + Sync) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Whether every change will be notified, as things stand now.
    pub fn tells_all(&self) -> bool {
        self.complete && self.shared.listens.load(Ordering::Acquire)
    }

    /// Waits for a change; returns at once if there was one since the last call.
    ///
    /// # Cancel safety
    ///
    /// A change that comes while no task waits is kept for the next call.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

impl Notifier {
    /// Reports that the store listens from now on. Earlier changes may have been missed, so this
    /// counts as a change.
    pub fn begin(&self) {
        self.0.listens.store(true, Ordering::Release);
        self.changed();
    }

    /// Reports a change. Several that come at once count as one.
    pub fn changed(&self) {
        contained(|| self.0.changed.notify_one());
    }

    /// Reports that the store no longer listens, or cannot for now.
    pub fn end(&self) {
        self.0.listens.store(false, Ordering::Release);
        self.changed();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("tells_all", &self.tells_all()).finish_non_exhaustive()
    }
}
