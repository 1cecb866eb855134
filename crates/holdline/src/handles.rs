//! A store as one client has it: for the callers, for the renewer, and what is known of both.

use crate::availability::Availability;
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
}
