//! The connection that notices come over: one for all of a store's connections and twins.
//!
//! The process listens to one channel of its own, which is written beside each of its places; so a
//! release tells only the processes whose tickets it admits, and which. It listens from before the
//! first ticket that may wait. Notices are lost while the connection is down, so once it is back
//! every waiter of this process is woken to look for itself; and a waiter looks by itself anyway,
//! after a bounded time.

use super::config::Config;
use super::dial;
use super::fault::{Fault, says};
use crate::clock;
use crate::store::{Alarm, TicketId};
use crate::stores::wakes::Wakes;
use futures_util::StreamExt;
use holdline_kernel::Schedule;
use redis::aio::PubSub;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What a store and its twins share of hearing.
pub(super) struct Ears {
    hearing: Arc<Hearing>,
    task: Mutex<Option<AbortHandle>>,
}

struct Hearing {
    config: Arc<Config>,
    /// The channel of this process, or of this store if the process has several.
    channel: String,
    wakes: Wakes,
    alarm: OnceLock<Alarm>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody listens.
    Off,
    /// Connecting for the first time.
    Starting,
    /// Subscribed.
    On,
    /// Not subscribed now, but trying.
    Down,
}

/// The connection is asked for a sign of life after so long without a notice.
const PING: Duration = Duration::from_secs(5);

impl Ears {
    pub(super) fn new(config: Arc<Config>, channel: String) -> Self {
        let hearing = Hearing {
            config,
            channel,
            wakes: Wakes::default(),
            alarm: OnceLock::new(),
            state: watch::Sender::new(State::Off),
        };
        Ears { hearing: Arc::new(hearing), task: Mutex::default() }
    }

    fn task(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn channel(&self) -> &str {
        &self.hearing.channel
    }

    pub(super) fn wakes(&self) -> &Wakes {
        &self.hearing.wakes
    }

    pub(super) fn alarm(&self, alarm: Alarm) {
        let _ = self.hearing.alarm.set(alarm);
    }

    /// Sees to it that somebody listens: a task on the runtime of whoever notices first that nobody
    /// does. If that runtime ends, the next one to need it begins anew.
    pub(super) fn open(&self) {
        if *self.hearing.state.borrow() != State::Off {
            return;
        }
        let mut task = self.task();
        if *self.hearing.state.borrow() != State::Off {
            return;
        }
        let hearing = Arc::clone(&self.hearing);
        hearing.state.send_replace(State::Starting);
        let over = Over(Arc::clone(&hearing));
        let listening = async move {
            let _over = over;
            hearing.listen().await;
        };
        *task = Some(tokio::spawn(listening).abort_handle());
    }

    /// Waits until somebody listens; or until that has failed once, since waiters look by
    /// themselves too.
    pub(super) async fn ready(&self) {
        if *self.hearing.state.borrow() == State::On {
            return;
        }
        self.open();
        let mut state = self.hearing.state.subscribe();
        let done = state.wait_for(|state| *state != State::Starting);
        // The sender lives as long as this; and the task limits its own time.
        let _ = tokio::time::timeout(self.hearing.config.timeout / 2, done).await;
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        if let Some(task) = self.task().take() {
            task.abort();
        }
    }
}

/// Says that nobody listens any more, however the task came to its end.
struct Over(Arc<Hearing>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Off);
        self.0.wakes.wake_all();
    }
}

impl Hearing {
    async fn listen(&self) {
        let mut failures = 0;
        loop {
            let heard = match self.subscribe().await {
                Ok(pubsub) => {
                    failures = 0;
                    self.state.send_replace(State::On);
                    self.wakes.wake_all();
                    self.hear(pubsub).await
                }
                Err(fault) => fault,
            };
            self.state.send_replace(State::Down);
            let refused = matches!(&heard, Fault::Refused(error) if says(error, "NOPERM")
                || says(error, "permission"));
            let slowest = Duration::from_secs(if refused { 30 } else { 1 });
            let error = heard.explain(&self.config.address(), "the channel of notices");
            if refused {
                tracing::warn!(%error, "no notices: waiters will look by themselves");
            } else {
                tracing::debug!(%error, "notices are interrupted");
            }
            let first = if refused { slowest } else { Duration::from_millis(20) };
            let backoff = Schedule::exponential(first, slowest).jitter(50);
            clock::pause(backoff.pause(failures, fastrand::u64(..))).await;
            failures += 1;
        }
    }

    async fn subscribe(&self) -> Result<PubSub, Fault> {
        let subscribed = async {
            let mut pubsub = dial::notices(&self.config).await?;
            pubsub.subscribe(&self.channel).await?;
            Ok(pubsub)
        };
        let limit = clock::now().after(self.config.timeout);
        clock::within(limit, subscribed).await.unwrap_or(Err(Fault::Silence))
    }

    /// Passes notices on until the connection breaks, and says how it broke.
    async fn hear(&self, pubsub: PubSub) -> Fault {
        let (mut sink, mut stream) = pubsub.split();
        loop {
            match tokio::time::timeout(PING, stream.next()).await {
                Ok(Some(message)) => self.notice(message.get_payload_bytes()),
                Ok(None) => {
                    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    return Fault::Broken(error.into(), true);
                }
                Err(_) => {
                    let limit = clock::now().after(self.config.timeout);
                    match clock::within(limit, sink.ping::<redis::Value>()).await {
                        None => return Fault::Silence,
                        Some(Err(error)) if error.is_io_error() => return error.into(),
                        // An answer is a sign of life, even a refusal.
                        Some(_) => {}
                    }
                }
            }
        }
    }

    /// `w` and the tickets that were admitted, or `a` and the ticket that was removed by force.
    fn notice(&self, message: &[u8]) {
        let Some((kind, ids)) = message.split_first() else { return };
        for id in ids.chunks(32).filter_map(id_of) {
            self.wakes.wake(id);
            if *kind == b'a'
                && let Some(alarm) = self.alarm.get()
            {
                alarm(id);
            }
        }
    }
}

/// A ticket's id as its 32 digits say it.
pub(super) fn id_of(digits: &[u8]) -> Option<TicketId> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 32)?;
    u128::from_str_radix(digits, 16).ok().map(TicketId)
}
