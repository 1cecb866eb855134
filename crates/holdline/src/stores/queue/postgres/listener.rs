//! The listener for notices: one connection for a store and its background handle.
//!
//! The process listens on one channel of its own, whose name is stored with each of its places; so
//! a release notifies only the processes whose tickets it admits, and names the tickets. The
//! process listens before its first ticket that may wait. Notices are lost while the connection is
//! down, so after a reconnect every waiter of this process is woken to ask again; and waiters ask
//! again anyway, after a bounded time.

use super::address::Address;
use super::errors::Fault;
use super::session::{self, Session};
use crate::clock::{self, within};
use crate::store::{LossHint, Seq, TicketId};
use crate::stores::waiters::Waiters;
use crate::sync::Mutex;
use holdline_kernel::Backoff;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub(super) struct Listener {
    shared: Arc<Shared>,
    task: Mutex<Option<AbortHandle>>,
}

struct Shared {
    address: Arc<Address>,
    channel: String,
    waiters: Waiters,
    loss_hint: OnceLock<LossHint>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No task runs.
    Off,
    /// Connecting for the first time.
    Starting,
    /// Listening.
    On,
    /// Reconnecting.
    Down,
}

/// The interval of heartbeats.
const PING: Duration = Duration::from_secs(5);

impl Listener {
    /// A listener on a channel of this name, at this address of the database.
    pub(super) fn new(address: Arc<Address>, channel: String) -> Self {
        let shared = Shared {
            address,
            channel,
            waiters: Waiters::default(),
            loss_hint: OnceLock::new(),
            state: watch::Sender::new(State::Off),
        };
        Listener { shared: Arc::new(shared), task: Mutex::default() }
    }

    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    pub(super) fn on_loss_hint(&self, loss_hint: LossHint) {
        let _ = self.shared.loss_hint.set(loss_hint);
    }

    /// Waits for a notice to this ticket. Returns the place at which it was admitted, if the notice
    /// says so.
    pub(super) async fn wait(&self, id: TicketId) -> Option<Seq> {
        self.shared.waiters.wait(id).await
    }

    /// Waits until it listens, or has failed once, since waiters ask again anyway. The first call
    /// starts it.
    pub(super) async fn ready(&self) {
        let state = *self.shared.state.borrow();
        if state == State::On || state == State::Down {
            return;
        }
        if self.start().is_err() {
            return; // no thread now: the next call tries again
        }
        let mut state = self.shared.state.subscribe();
        let done = state.wait_for(|state| matches!(state, State::On | State::Down));
        let limit = clock::now().after(self.shared.address.timeout / 2);
        // An error is a timeout: the sender lives as long as this.
        let _ = within(limit, done).await;
    }

    fn start(&self) -> crate::error::Result<()> {
        let mut task = self.task.lock();
        if *self.shared.state.borrow() == State::Off {
            let runtime = session::runtime()?;
            self.shared.state.send_replace(State::Starting);
            *task = Some(runtime.spawn(listen(Arc::clone(&self.shared))).abort_handle());
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

async fn listen(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        let fault = match subscribe(&shared).await {
            Ok(session) => {
                failures = 0;
                shared.state.send_replace(State::On);
                shared.waiters.wake_all();
                stay(&shared, &session).await
            }
            Err(fault) => fault,
        };
        shared.state.send_replace(State::Down);
        let error = fault.explain(&shared.address, "notices");
        tracing::debug!(%error, "notices are interrupted");
        let backoff =
            Backoff::exponential(Duration::from_millis(20), Duration::from_secs(1)).jitter(50);
        clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
        failures += 1;
    }
}

async fn subscribe(shared: &Arc<Shared>) -> Result<Session, Fault> {
    let on_notice = {
        let shared = Arc::clone(shared);
        Box::new(move |payload: &str| shared.notice(payload))
    };
    let session = Session::open(&shared.address, on_notice).await?;
    shared.run(&session, &format!("LISTEN \"{}\"", shared.channel)).await?;
    Ok(session)
}

/// Waits until the connection breaks, or does not answer a heartbeat. Returns the fault.
async fn stay(shared: &Arc<Shared>, session: &Session) -> Fault {
    loop {
        if let Some(fault) = within(clock::now().after(PING), session.ended()).await {
            return fault;
        }
        if let Err(fault) = shared.run(session, "").await {
            return fault;
        }
    }
}

impl Shared {
    async fn run(&self, session: &Session, sql: &str) -> Result<(), Fault> {
        let limit = clock::now().after(self.address.timeout);
        let done = within(limit, session.client.batch_execute(sql)).await;
        Ok(done.ok_or(Fault::Silence)??)
    }

    /// Handles a notice: `w`, a ticket and its place that was admitted; or `a` and a ticket that was
    /// evicted.
    fn notice(&self, payload: &str) {
        let Some((kind, rest)) = payload.split_at_checked(1) else { return };
        let Some((id, seq)) = rest.split_at_checked(UUID) else { return };
        let Some(id) = id_of(id) else { return };
        match (kind, seq.parse()) {
            ("w", Ok(seq)) => self.waiters.admit(id, Seq(seq)),
            ("a", _) => {
                self.waiters.wake(id);
                if let Some(loss_hint) = self.loss_hint.get() {
                    loss_hint(id);
                }
            }
            _ => {}
        }
    }
}

/// The length of a uuid as text.
const UUID: usize = 36;

pub(super) fn id_of(uuid: &str) -> Option<TicketId> {
    let digits: String = uuid.chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok().map(TicketId))?
}
