//! A background thread with its own runtime, for work that must not wait for a busy executor.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
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

/// The process that has started background threads. A fork does not copy them.
static STARTED_IN: OnceLock<u32> = OnceLock::new();

/// Checks that the background threads, if there are any, are threads of this process. Called when a
/// store is opened, and not for each lock, because it is a system call.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] in a forked child of a process that has started them.
pub(crate) fn check_process() -> Result<()> {
    in_its_process(&STARTED_IN)
}

fn in_its_process(started_in: &OnceLock<u32>) -> Result<()> {
    if started_in.get().is_none_or(|started_in| *started_in == process::id()) {
        return Ok(());
    }
    let message = "this process was forked from one that has used locks, and lacks the threads \
                   that keep them; start it by exec, or use locks only after the fork";
    Err(Error::new(ErrorKind::Invalid, message))
}

/// The value of `cell`, made by `make` on first use; it needs a thread. Only a success is
/// remembered.
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
    STARTED_IN.get_or_init(process::id);
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
        // The system says so too if there is no memory for the stack.
        message.push_str(
            ": this user or container may have no more threads (ulimit -u, pids.max), or no memory \
             is left",
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing would renew its locks there, or release those that are dropped.
    #[test]
    fn a_forked_child_is_refused() {
        let started_in = OnceLock::new();
        in_its_process(&started_in).expect("nothing was started");
        started_in.set(process::id()).expect("it is new");
        in_its_process(&started_in).expect("it was started here");
        let started_in = OnceLock::from(process::id() + 1);
        let error = in_its_process(&started_in).expect_err("it was started in another process");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
