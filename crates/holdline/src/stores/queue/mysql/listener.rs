//! The listener of a process: a connection through which other processes notify it that one of its
//! tickets was admitted.
//!
//! The server has no notices, but it can end a statement. The listener waits in the server, and
//! holds a named lock with the process's number; places have this number too. The procedure that
//! admits a place finds the connection that holds the lock and ends its statement, which needs no
//! privilege between connections of one user (`holdline_1_notify`). The listener runs no other
//! statements, so nothing else can be hit, and it keeps its lock.
//!
//! It waits for another named lock, which a connection for calls holds and never releases. In the
//! server, each wait for a named lock has its own mutex and condition variable; all `SLEEP`s of
//! MariaDB share a mutex, on which a `KILL` can block for seconds (decision 25).
//!
//! The listener runs while the process has waiters, and for one wait more.

use super::connection::{Connections, Owned, bare};
use super::text;
use super::watches::Watches;
use crate::clock;
use crate::stores::queue::connecting::Failures;
use crate::stores::queue::sql::{Fault, answered};
use crate::stores::runtime::AbortOnDrop;
use crate::sync::Mutex;
use holdline_kernel::Backoff;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The length of a wait in the server.
const WAIT: Duration = Duration::from_secs(5);
/// MySQL's error for a statement that was ended. MariaDB answers an ended wait with NULL.
const ENDED: &str = "1317";
/// The pauses after failures, for instance because the server has no connection left.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10)).jitter(50);

pub(super) struct Listener {
    /// The number of this process.
    pub(super) number: u64,
    task: Mutex<Option<AbortOnDrop>>,
    failures: Arc<Mutex<Failures>>,
}

impl Default for Listener {
    fn default() -> Self {
        let number = fastrand::u64(1..1 << 63);
        Listener { number, task: Mutex::default(), failures: Arc::default() }
    }
}

impl Listener {
    /// Starts the listener in the background, unless it is running or has just failed.
    pub(super) fn start(&self, connections: &Arc<Connections>, watches: &Arc<Watches>) {
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.0.is_finished())
            || clock::now() < self.failures.lock().next
        {
            return;
        }
        let (number, failures) = (self.number, Arc::clone(&self.failures));
        let (connections, watches) = (Arc::clone(connections), Arc::clone(watches));
        let runtime = connections.runtime;
        let work = async move {
            let ended = listen(number, &connections, &watches, &failures).await;
            watches.listener_ended();
            if let Err(fault) = ended {
                failures.lock().add(PAUSES);
                tracing::debug!(error = %fault.explain(&connections.config, ""), "no notices");
            }
        };
        *task = Some(AbortOnDrop(runtime.spawn(work).abort_handle()));
    }
}

/// Listens until there have been no waiters for the length of a wait.
async fn listen(
    number: u64,
    connections: &Arc<Connections>,
    watches: &Watches,
    failures: &Mutex<Failures>,
) -> Result<(), Fault> {
    let limit = || clock::now().after(connections.config.timeout);
    let conn = answered(limit(), bare(&connections.opts)).await?;
    let listen = text::listen(number, conn.id());
    let mut conn = Owned(Some(conn));
    let why = match answered(limit(), conn.ask(&listen)).await?.number() {
        Some(1) => "",
        Some(_) => "an earlier listener is still there",
        None => "a proxy in between shares connections",
    };
    if !why.is_empty() {
        return Err(Fault::Broken(why.to_owned()));
    }
    connections.call(&text::be_waited_for(number)).await?;
    let wait = text::wait_to_be_told(number, WAIT);
    let mut news = News::Unknown;
    loop {
        let limit = limit().after(WAIT);
        let mut waiting = pin!(answered(limit, conn.ask(&wait)));
        let ended = tokio::select! {
            biased;
            ended = &mut waiting => ended,
            () = std::future::ready(()) => {
                // The wait was sent before the look, so that no admission is missed in between.
                match news {
                    News::Told => watches.notified(),
                    News::Unknown => watches.look_now(),
                    News::None => {}
                }
                waiting.await
            }
        };
        news = match ended {
            Err(fault) if fault.is(&[ENDED]) => News::Told,
            ended => match ended?.number() {
                None => News::Told,
                Some(0) if watches.are_waiting() => News::None,
                Some(0) => return Ok(()),
                Some(_) => return Err(Fault::Broken("a connection for calls ended".to_owned())),
            },
        };
        *failures.lock() = Failures::default();
    }
}

/// The outcome of a wait.
enum News {
    /// A ticket of this process was admitted.
    Told,
    /// A ticket may have been admitted before the wait began.
    Unknown,
    None,
}
