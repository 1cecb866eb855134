//! The background runtime of a kind of store that has sessions, whose heartbeats must go on while
//! the program is busy; and the callback for losses.

use crate::error::Result;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use crate::store::LossHint;
use crate::thread;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use std::fmt;
use std::future::pending;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use std::sync::Arc;
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

/// The callback for losses, once it is set.
#[derive(Clone, Default)]
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) struct LossHandler(pub(crate) Arc<OnceLock<LossHint>>);

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
impl fmt::Debug for LossHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}
