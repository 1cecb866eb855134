//! What stores with sessions have in common: a thread of their own for what must go on while the
//! program is busy, and whom to tell of losses.

use crate::error::Result;
use crate::store::LossHint;
use crate::thread;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

/// The runtime of all stores of one kind in this process, on a thread of its own; started by the
/// first call, and kept in `slot` for all. A store calls it when it is opened, so that the error is
/// that of the opening.
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) if the system is short of what it takes; the next
/// call tries again.
pub(crate) fn runtime(
    slot: &'static OnceLock<Handle>,
    kind: &'static str,
) -> Result<&'static Handle> {
    thread::made_once(slot, || thread::start(&format!("holdline-{kind}"), pending::<()>))
}

/// Whom to tell of losses.
#[derive(Clone, Default)]
pub(crate) struct LossHandler(pub(crate) Arc<OnceLock<LossHint>>);

impl fmt::Debug for LossHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}
