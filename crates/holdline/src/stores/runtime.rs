//! The background runtime of a kind of store whose sessions or connections must go on while the
//! program is busy.

use crate::error::Result;
use crate::thread;
use std::future::pending;
use std::sync::OnceLock;
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
