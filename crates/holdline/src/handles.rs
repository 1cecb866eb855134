//! A client's handles of its store: one for callers, one for the renewer, and their shared state.

use crate::availability::{Availability, Call};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::StoreMetrics;
use crate::names::Name;
use crate::store::Store;
use crate::undone::Undone;
use std::sync::Arc;

/// The handles of one store, and their shared state.
#[derive(Debug)]
pub(crate) struct StoreHandles {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) background: Arc<dyn Store>,
    /// The places that are being released in the background.
    pub(crate) undone: Undone,
    /// Whether the store answers.
    pub(crate) availability: Availability,
    /// The metrics of the calls.
    pub(crate) metrics: Arc<StoreMetrics>,
}

impl StoreHandles {
    /// Creates the handles of this store.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        StoreHandles {
            background: store.background_handle(),
            metrics: Arc::new(StoreMetrics::new(&store.address())),
            store,
            undone: Undone::default(),
            availability: Availability::default(),
        }
    }

    /// The error for a store that did not answer in time about a lock.
    pub(crate) fn silence(&self, line: &Name) -> Error {
        let message = format!(
            "{} did not answer in time about lock \"{line}\"; check that it runs and can be \
             reached",
            self.store.address()
        );
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Records the outcome of a call to the store; `None` if it timed out.
    pub(crate) fn note<T>(&self, call: Call, outcome: Option<&Result<T>>) {
        match outcome {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.metrics.failed(error),
            None => self.metrics.timed_out(),
        }
        self.availability.note(|| self.store.address(), call, outcome);
    }
}
