//! The background runtime of a kind of store that has sessions, whose heartbeats must go on while
//! the program is busy; and the callback for losses.

use crate::error::Result;
use crate::store::LossHint;
use crate::thread;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

/// The runtime of all stores of one kind in this process, on a thread of its own; started by the
/// first call, and kept in `slot`. A store calls it when it is opened, so that opening reports the
/// error.
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) if the thread cannot be started; the next
/// call tries again.
pub(crate) fn runtime(
    slot: &'static OnceLock<Handle>,
    kind: &'static str,
) -> Result<&'static Handle> {
    thread::made_once(slot, || thread::start(&format!("holdline-{kind}"), pending::<()>))
}

/// The callback for losses, once it is set.
#[derive(Clone, Default)]
pub(crate) struct LossHandler(pub(crate) Arc<OnceLock<LossHint>>);

impl fmt::Debug for LossHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}
