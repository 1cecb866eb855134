//! What goes on in the background of a kind of store: tasks on its runtime, and the callback for
//! losses.

use crate::error::Result;
use crate::store::{LossHint, TicketId};
use crate::stores::runtime::runtime;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The runtime of a kind of store, and tasks on it.
#[derive(Debug)]
pub(super) struct Background {
    kind: &'static str,
    handle: OnceLock<Handle>,
}

impl Background {
    pub(super) const fn new(kind: &'static str) -> Self {
        Background { kind, handle: OnceLock::new() }
    }

    /// Starts the runtime, unless it runs. See [`runtime`].
    pub(super) fn start(&'static self) -> Result<()> {
        runtime(&self.handle, self.kind).map(drop)
    }

    /// Runs a task on the runtime, which must have been started.
    pub(super) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.get().expect("it was started when the store was opened").spawn(task)
    }
}

/// The callback for losses, once it is set.
#[derive(Clone, Default)]
pub(super) struct LossHandler(pub(super) Arc<OnceLock<LossHint>>);

impl LossHandler {
    /// Hints that a held ticket is gone.
    pub(super) fn hint(&self, id: TicketId) {
        if let Some(loss_hint) = self.0.get() {
            loss_hint(id);
        }
    }
}

impl fmt::Debug for LossHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}
