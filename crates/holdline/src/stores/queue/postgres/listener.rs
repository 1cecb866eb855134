//! The listener for notices: one connection for a store and its background handle.
//!
//! The process listens on one channel of its own, whose name is stored with each of its places; so
//! a release notifies only the processes whose tickets it admits, and names the tickets. The
//! process starts listening with its first ticket that may wait, without delaying it: tickets that
//! already wait when the connection is made or remade are woken to ask again. Waiters ask again
//! anyway, after a bounded time.
//!
//! A pooler of transactions accepts LISTEN and passes no notice on, except during a heartbeat, to
//! which it may give the session that listens. So waiters poll as if there were no notices until
//! one has come over the connection at another time. A notice that the process sends to itself
//! would tell sooner, but wake the listeners of all processes.

use super::address::Address;
use super::session::{self, OnNotice, Session};
use crate::clock::{self, within};
use crate::store::{Seq, TicketId};
use crate::stores::queue::calls::id_of;
use crate::stores::queue::sql::Fault;
use crate::stores::runtime::AbortOnDrop;
use crate::stores::waiters::Waiters;
use crate::sync::Mutex;
use holdline_kernel::Backoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) struct Listener {
    shared: Arc<Shared>,
    task: Mutex<Option<AbortOnDrop>>,
}

struct Shared {
    address: Arc<Address>,
    channel: String,
    /// What follows the LISTEN statement, if listening is to end when nobody waits.
    more: Option<String>,
    waiters: Waiters,
    listening: AtomicBool,
    /// Whether a heartbeat waits for its answer.
    pinging: AtomicBool,
    /// Whether a notice has come over the current connection, without a heartbeat.
    heard: AtomicBool,
}

/// The interval of heartbeats.
const PING: Duration = Duration::from_secs(5);

impl Listener {
    /// A listener on a channel of this name, at this address of the database. With `more`, which is
    /// sent after LISTEN, it listens only while there are waiters.
    pub(super) fn new(address: Arc<Address>, channel: String, more: Option<String>) -> Self {
        let shared = Shared {
            address,
            channel,
            more,
            waiters: Waiters::default(),
            listening: AtomicBool::new(false),
            pinging: AtomicBool::new(false),
            heard: AtomicBool::new(false),
        };
        Listener { shared: Arc::new(shared), task: Mutex::default() }
    }

    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    /// The waiters of this process.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.shared.waiters
    }

    /// Whether the listener is connected. The first call starts it.
    pub(super) fn listens(&self) -> bool {
        let mut task = self.task.lock();
        // If there is no thread now, the next call tries again.
        if task.as_ref().is_none_or(|task| task.0.is_finished())
            && let Ok(runtime) = session::runtime()
        {
            let listening = runtime.spawn(listen(Arc::clone(&self.shared)));
            *task = Some(AbortOnDrop(listening.abort_handle()));
        }
        self.is_listening()
    }

    /// Whether the listener is connected.
    pub(super) fn is_listening(&self) -> bool {
        self.shared.listening.load(Ordering::SeqCst)
    }

    /// Whether notices are known to come over the current connection.
    pub(super) fn has_heard(&self) -> bool {
        self.shared.heard.load(Ordering::SeqCst)
    }

    /// Wakes a ticket that began to wait while no notices arrived, as soon as they do.
    pub(super) fn catch_up(&self, id: TicketId) {
        self.shared.waiters.expect(id); // before the check, so that it is woken here or there
        if self.is_listening() {
            self.shared.waiters.wake(id);
        }
    }
}

async fn listen(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        let fault = match subscribe(&shared).await {
            Ok(session) => {
                failures = 0;
                shared.heard.store(false, Ordering::SeqCst);
                // Until now notices may have been lost.
                shared.listening.store(true, Ordering::SeqCst);
                shared.waiters.wake_all();
                stay(&shared, &session).await
            }
            Err(fault) => Some(fault),
        };
        shared.listening.store(false, Ordering::SeqCst);
        let Some(fault) = fault else { return };
        let error = fault.explain(&shared.address, "notices");
        tracing::debug!(%error, "notices are interrupted");
        let backoff =
            Backoff::exponential(Duration::from_millis(20), Duration::from_secs(1)).jitter(50);
        clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
        failures += 1;
    }
}

async fn subscribe(shared: &Arc<Shared>) -> Result<Session, Fault> {
    let receiver = Arc::clone(shared);
    let on_notice: OnNotice = Box::new(move |payload: &str| receiver.notice(payload));
    let session = Session::open(&shared.address, Some(on_notice)).await?;
    let more = shared.more.as_deref().unwrap_or_default();
    session.ask(&format!("LISTEN \"{}\"{more}", shared.channel)).await?;
    Ok(session)
}

/// Waits until the connection breaks or misses a heartbeat, and returns the fault; or until the
/// connection is no longer needed.
async fn stay(shared: &Arc<Shared>, session: &Session) -> Option<Fault> {
    loop {
        let fault = within(clock::now().after(PING), session.ended()).await;
        if fault.is_some() {
            return fault;
        }
        if shared.more.is_some() && shared.waiters.are_none() {
            return None;
        }
        shared.pinging.store(true, Ordering::SeqCst);
        let answered = session.ask("").await;
        shared.pinging.store(false, Ordering::SeqCst);
        if let Err(fault) = answered {
            return Some(fault);
        }
    }
}

impl Shared {
    /// Handles a notice: `w`, a ticket and the place at which it was admitted; or `a` and an
    /// evicted ticket.
    fn notice(&self, payload: &str) {
        if !self.pinging.load(Ordering::SeqCst) {
            self.heard.store(true, Ordering::SeqCst);
        }
        let Some((kind, rest)) = payload.split_at_checked(1) else { return };
        let Some((id, seq)) = rest.split_at_checked(UUID) else { return };
        let Some(id) = id_of(id) else { return };
        match (kind, seq.parse()) {
            ("w", Ok(seq)) => self.waiters.admit(id, Seq(seq)),
            ("a", _) => self.waiters.evicted(id),
            _ => {}
        }
    }
}

/// The length of a UUID as text.
const UUID: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_during_a_heartbeat_does_not_show_that_others_come() {
        let address = Arc::new(Address::read("//a").expect("it is good"));
        let listener = Listener::new(address, "x".to_owned(), None);
        for (pinging, heard) in [(true, false), (false, true), (true, true)] {
            listener.shared.pinging.store(pinging, Ordering::SeqCst);
            listener.shared.notice("a");
            assert_eq!(listener.has_heard(), heard);
        }
    }
}
