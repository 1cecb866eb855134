//! A store as one client has it: for the callers, for the renewer, and what is known of both.

use crate::availability::Availability;
use crate::error::Result;
use crate::metrics::StoreMetrics;
use crate::store::Store;
use crate::undone::Undone;
use std::sync::Arc;

/// A store, and the same store for the renewer.
#[derive(Debug)]
pub(crate) struct StoreHandles {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) background: Arc<dyn Store>,
    /// The places that are being given up in the background.
    pub(crate) undone: Undone,
    /// Whether the store answers.
    pub(crate) availability: Availability,
    /// Where it is counted how its calls end.
    pub(crate) metrics: Arc<StoreMetrics>,
}

impl StoreHandles {
    /// The handles of this store.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        StoreHandles {
            background: store.background_handle(),
            metrics: Arc::new(StoreMetrics::new(&store.address())),
            store,
            undone: Undone::default(),
            availability: Availability::default(),
        }
    }

    /// Takes note of how a call to the store ended; `None` if it was not answered in time.
    pub(crate) fn note<T>(&self, outcome: Option<&Result<T>>) {
        match outcome {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.metrics.failed(error),
            None => self.metrics.timed_out(),
        }
        self.availability.note(|| self.store.address(), outcome);
    }
}
