//! The listener of a process: a connection by which other processes tell it that one of its tickets
//! was admitted.
//!
//! The server has no notices, but it can end a statement. The listener sleeps in the server, and
//! holds a named lock that has the process's number; places have this number, too. The procedure
//! that admits a place asks which connection holds the lock, and ends its statement, which needs no
//! privilege between connections of one user (`holdline_1_notify`). The listener runs no other
//! statements, so nothing else can be hit, and it keeps its lock. A notice that comes while it does
//! not sleep is lost.
//!
//! There is one while the process waits, and for one sleep more.

use super::config::Config;
use super::connection::{Owned, bare};
use super::watches::Watches;
use super::{opts, text};
use crate::clock;
use crate::stores::queue::sql::Fault;
use crate::sync::Mutex;
use holdline_kernel::{Backoff, Time};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// The length of a sleep.
const SLEEP: Duration = Duration::from_secs(5);
/// The server's error for a statement that was ended. MySQL answers a sleep that was ended as one
/// that was not.
const ENDED: &str = "1317";
/// The pauses after failures, for instance because the server has no connection left.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10)).jitter(50);

pub(super) struct Listener {
    config: Arc<Config>,
    number: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    task: Option<AbortHandle>,
    starts: Arc<Mutex<Starts>>,
}

/// How often it failed in a row, and when it may try again.
#[derive(Default)]
struct Starts {
    failures: u32,
    next: Time,
}

impl Listener {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        let number = fastrand::u64(1..1 << 63);
        Listener { config: Arc::clone(config), number, state: Mutex::default() }
    }

    /// The number of this process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Starts it, on the caller's runtime, unless it runs or has just failed. Nobody waits for it.
    pub(super) fn start(&self, watches: &Arc<Watches>) {
        let mut state = self.state.lock();
        if state.task.as_ref().is_some_and(|task| !task.is_finished())
            || clock::now() < state.starts.lock().next
        {
            return;
        }
        let (config, number) = (Arc::clone(&self.config), self.number);
        let (watches, starts) = (Arc::clone(watches), Arc::clone(&state.starts));
        let work = async move {
            let ended = listen(&config, number, &watches, &starts).await;
            if let Err(fault) = ended {
                let mut starts = starts.lock();
                starts.next = clock::now().after(PAUSES.pause(starts.failures, fastrand::u64(..)));
                starts.failures = starts.failures.saturating_add(1);
                tracing::debug!(error = %fault.explain(&config.address(), ""), "no notices");
            }
        };
        state.task = Some(tokio::spawn(work).abort_handle());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.state.lock().task.take() {
            task.abort();
        }
    }
}

/// Listens until nobody has waited for the time of a sleep.
async fn listen(
    config: &Config,
    number: u64,
    watches: &Watches,
    starts: &Mutex<Starts>,
) -> Result<(), Fault> {
    let limit = || clock::now().after(config.timeout);
    let options = opts::of(config)?;
    let conn = clock::within(limit(), bare(&options)).await.unwrap_or(Err(Fault::Silence))?;
    let mut conn = Owned(Some(conn));
    let named = clock::within(limit(), conn.ask(&text::listen(number))).await;
    named.unwrap_or(Err(Fault::Silence))?;
    *starts.lock() = Starts::default();
    // Others may have been admitted meanwhile.
    watches.notice();
    let sleep = format!("SELECT SLEEP({})", SLEEP.as_secs());
    loop {
        let begun = clock::now();
        let slept = clock::within(limit().after(SLEEP), conn.ask(&sleep)).await;
        match slept.unwrap_or(Err(Fault::Silence)) {
            Ok(_) if clock::now() < begun.after(SLEEP) => watches.notice(),
            Ok(_) if watches.are_watched() => {}
            Ok(_) => return Ok(()),
            Err(fault) if fault.is(&[ENDED]) => watches.notice(),
            Err(fault) => return Err(fault),
        }
    }
}
