//! What stores with sessions have in common: a thread of their own for what must go on while the
//! program is busy, and whom to tell of losses.

use crate::store::Alarm;
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::runtime::{Builder, Handle};

/// The runtime of all stores of one kind in this process, on a thread of its own; started by
/// whoever asks first, and kept in `slot` for all.
pub(crate) fn runtime(slot: &'static OnceLock<Handle>, kind: &'static str) -> &'static Handle {
    slot.get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name(format!("holdline-{kind}"))
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the system gives the store a runtime");
                let _ = tell.send(runtime.handle().clone());
                runtime.block_on(std::future::pending::<()>());
            })
            .expect("the system gives the store a thread");
        told.recv().expect("the thread says how to reach it")
    })
}

/// Whom to tell of losses.
#[derive(Clone, Default)]
pub(crate) struct Bell(pub(crate) Arc<OnceLock<Alarm>>);

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "set" } else { "not set" })
    }
}
