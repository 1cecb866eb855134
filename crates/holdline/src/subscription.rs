//! Subscriptions to changes of lines, for observers.

use crate::names::Name;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The lines that a subscription is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lines {
    /// The line of this name.
    Named(Name),
    /// All lines whose names begin so.
    Prefix(String),
}

impl Lines {
    /// Whether the line of this name is one of them.
    pub fn contain(&self, name: &Name) -> bool {
        match self {
            Lines::Named(line) => line == name,
            Lines::Prefix(prefix) => name.as_str().starts_with(prefix.as_str()),
        }
    }
}

/// A subscription to changes of lines, which ends when it is dropped. Made by
/// [`Store::subscribe`](crate::store::Store::subscribe).
pub struct Subscription {
    shared: Arc<Shared>,
    /// Whether what ends by time alone is told, too.
    complete: bool,
    /// What keeps the store listening.
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
    /// The subscription of a store that has no notices for observers: nothing is ever told.
    pub fn none() -> Self {
        Subscription { shared: Arc::default(), complete: false, source: None }
    }

    /// A subscription, and what the store tells it by.
    pub fn new() -> (Notifier, Self) {
        let subscription = Subscription::none();
        (Notifier(Arc::clone(&subscription.shared)), subscription)
    }

    /// The same, of a store that also tells of what ends by time alone: a lease, a session, a
    /// process that crashed. Its observers need not poll while it listens.
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }

    /// Keeps this until the subscription is dropped: whatever ends the store's listening with it.
    pub fn keep(mut self, source: impl Any + Send + Sync) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Whether every change will be told, as things are now.
    pub fn tells_all(&self) -> bool {
        self.complete && self.shared.listens.load(Ordering::Acquire)
    }

    /// Waits until something has been told since the last call.
    ///
    /// # Cancel safety
    ///
    /// What is told while nobody waits is kept for the next call.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

impl Notifier {
    /// Tells that the store listens from now on. What came before may have been missed, so this
    /// counts as a change.
    pub fn begin(&self) {
        self.0.listens.store(true, Ordering::Release);
        self.changed();
    }

    /// Tells of a change. Many that come at once are one.
    pub fn changed(&self) {
        self.0.changed.notify_one();
    }

    /// Tells that the store does not listen any more, or cannot for now.
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
