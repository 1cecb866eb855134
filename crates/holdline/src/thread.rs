//! A background thread with its own runtime, for work that must not wait for a busy executor.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

thread_local! {
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of this name that drives `work` on a runtime of its own. Every resource that can
/// run short is acquired here, on the caller's thread, so that a failure is the caller's error.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if file descriptors, memory or threads are short; a later call may
/// succeed.
pub(crate) fn start<F: Future<Output = ()>>(
    name: &str,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<Handle> {
    let runtime = Owned(Some(build(Builder::new_current_thread().enable_all(), name)?));
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            IN_BACKGROUND.set(true);
            runtime.get().block_on(work());
        })
        .map_err(|error| short(name, error))?;
    Ok(handle)
}

/// Whether this is a thread that [`start`] has started, where nothing may wait for a disk.
#[cfg(feature = "sqlite")]
pub(crate) fn in_background() -> bool {
    IN_BACKGROUND.get()
}

/// The value of `cell`, made by `make` on first use. Only a success is remembered.
pub(crate) fn made_once<T>(
    cell: &'static OnceLock<T>,
    make: impl FnOnce() -> Result<T>,
) -> Result<&'static T> {
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let _one_at_a_time = MAKING.lock();
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// Builds a runtime for the threads of this name.
pub(crate) fn build(builder: &mut Builder, name: &str) -> Result<Runtime> {
    // Some shortages make it panic.
    let built = catch_unwind(AssertUnwindSafe(|| builder.build()))
        .unwrap_or_else(|_| Err(io::Error::other("the runtime panicked while it was made")));
    built.map_err(|error| short(name, error))
}

fn short(name: &str, error: io::Error) -> Error {
    let mut message =
        format!("the thread {name}, without which no lock can be kept, could not be started");
    if error.kind() == io::ErrorKind::WouldBlock {
        message.push_str(": this user may have no more threads (ulimit -u)");
    }
    Error::because(ErrorKind::Unavailable, message, error)
}

/// A runtime that may be dropped anywhere, even on an executor's thread.
struct Owned(Option<Runtime>);

impl Owned {
    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken out only when dropped")
    }

    fn handle(&self) -> &Handle {
        self.get().handle()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
