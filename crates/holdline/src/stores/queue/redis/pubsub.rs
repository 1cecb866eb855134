//! The subscriber for notices: one connection for a store and its background handles.
//!
//! The process subscribes to one channel of its own, which is stored with each of its places; so a
//! release notifies only the processes whose tickets it admits, and names the tickets. The process
//! connects after its first request is answered, and nothing waits for that. Notices are lost
//! before the process has subscribed and while the connection is down, so all tickets that wait at
//! that time are then woken to ask again; besides, waiters ask again after a bounded time.
//!
//! In other libraries' layouts each lock has a channel, to which all its waiters subscribe: see
//! [`channels`](super::channels).

use super::channels::Channels;
use super::errors::explain;
use crate::clock;
use crate::store::{LossHint, Seq, TicketId};
use crate::stores::waiters::Waiters;
use crate::sync::Mutex;
use holdline_kernel::Backoff;
use holdline_redis_client::{Config, Event, Fault, Notices, says};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The subscriber shared by a store and its background handles.
pub(in crate::stores) struct PubSub {
    listener: Arc<Listener>,
    task: Mutex<Option<AbortHandle>>,
}

struct Listener {
    config: Arc<Config>,
    /// The channel of this store in this process, if its layout has one.
    channel: Option<String>,
    /// The channels of locks.
    channels: Channels,
    /// Whether a message on a lock's channel is a reason to try again.
    is_notification: fn(&[u8]) -> bool,
    waiters: Waiters,
    /// Tickets that began to wait before it was subscribed, to be woken when it is.
    unheard: Mutex<Vec<TicketId>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No task runs.
    Off,
    /// Connecting for the first time.
    Starting,
    /// Subscribed.
    On,
    /// Not subscribed, and reconnecting.
    Down,
}

/// The most tickets to be woken; others ask again after a bounded time.
const UNHEARD: usize = 4096;
/// How long a connection lasts that does not count as a failed attempt. Each wakes all waiters.
const LASTING: Duration = Duration::from_secs(1);
/// The interval of heartbeats while there are no notices.
const PING: Duration = Duration::from_secs(5);

impl PubSub {
    pub(in crate::stores) fn new(
        config: Arc<Config>,
        channel: Option<String>,
        is_notification: fn(&[u8]) -> bool,
    ) -> Self {
        let listener = Listener {
            config,
            channel,
            channels: Channels::default(),
            is_notification,
            waiters: Waiters::default(),
            unheard: Mutex::default(),
            state: watch::Sender::new(State::Off),
        };
        PubSub { listener: Arc::new(listener), task: Mutex::default() }
    }

    pub(in crate::stores) fn channel(&self) -> &str {
        self.listener.channel.as_deref().unwrap_or_default()
    }

    pub(in crate::stores) fn channels(&self) -> &Channels {
        &self.listener.channels
    }

    pub(in crate::stores) fn waiters(&self) -> &Waiters {
        &self.listener.waiters
    }

    pub(in crate::stores) fn on_loss_hint(&self, loss_hint: LossHint) {
        self.listener.waiters.loss.set(loss_hint);
    }

    /// Starts the task if it does not run, on the caller's runtime. If that runtime ends, the next
    /// call starts it again.
    pub(in crate::stores) fn open(&self) {
        if *self.listener.state.borrow() != State::Off {
            return;
        }
        let mut task = self.task.lock();
        if *self.listener.state.borrow() != State::Off {
            return;
        }
        let listener = Arc::clone(&self.listener);
        listener.state.send_replace(State::Starting);
        let guard = ListenerGuard(Arc::clone(&listener));
        let listening = async move {
            let _guard = guard;
            listener.listen().await;
        };
        *task = Some(tokio::spawn(listening).abort_handle());
    }

    /// Whether the task has subscribed.
    pub(in crate::stores) fn is_on(&self) -> bool {
        *self.listener.state.borrow() == State::On
    }

    /// Wakes a ticket that began to wait before the task subscribed, as soon as it has.
    pub(in crate::stores) fn catch_up(&self, id: TicketId) {
        let mut unheard = self.listener.unheard.lock();
        if self.is_on() {
            self.listener.waiters.wake(id);
        } else if unheard.len() < UNHEARD {
            unheard.push(id);
        }
    }

    /// Adds a ticket to a lock's channel. It is woken once the channel is subscribed to: messages
    /// may have been sent before.
    pub(in crate::stores) fn follow(&self, channel: &str, id: TicketId) {
        if self.listener.channels.add_ticket(channel, id) {
            self.listener.waiters.wake(id);
        }
        self.open();
    }
}

impl Drop for PubSub {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// A guard of the task, which resets the state when the task ends for any reason.
struct ListenerGuard(Arc<Listener>);

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Off);
        self.0.channels.disconnected();
        self.0.waiters.wake_all();
    }
}

impl Listener {
    async fn listen(&self) {
        let mut failures = 0;
        loop {
            let fault = match self.subscribe().await {
                Ok(notices) => {
                    self.begin();
                    let since = clock::now();
                    let fault = self.receive(notices).await;
                    if since.until(clock::now()) >= LASTING {
                        failures = 0;
                    }
                    fault
                }
                Err(fault) => fault,
            };
            self.state.send_replace(State::Down);
            self.channels.disconnected();
            self.channels.sweep(); // it may never come to be subscribed, and there may be many
            let refused = matches!(&fault, Fault::Refused(error) if says(error, "NOPERM")
                || says(error, "permission"));
            let error = explain(fault, &self.config.address(), "the channel of notices");
            if refused {
                tracing::warn!(%error, "no notices: waiters will look by themselves");
            } else {
                tracing::debug!(%error, "notices are interrupted");
            }
            clock::pause(pause(refused, failures)).await;
            failures += 1;
        }
    }

    /// Wakes all waiters, whose notices may have been lost until now.
    fn begin(&self) {
        let mut unheard = self.unheard.lock();
        self.state.send_replace(State::On);
        for id in std::mem::take(&mut *unheard) {
            self.waiters.wake(id);
        }
        drop(unheard);
        self.waiters.wake_all();
    }

    async fn subscribe(&self) -> Result<Notices, Fault> {
        let subscribed = async {
            let mut notices = Notices::open(&self.config).await?;
            notices.subscribe(self.channel.as_slice()).await?;
            self.follow(&mut notices).await?;
            Ok(notices)
        };
        self.in_time(pin!(subscribed)).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let limit = clock::now().after(self.config.timeout);
        clock::within(limit, work).await.unwrap_or(Err(Fault::Silence))
    }

    /// Subscribes to the requested channels of locks.
    async fn follow(&self, notices: &mut Notices) -> Result<(), Fault> {
        let channels = self.channels.take_wanted();
        notices.subscribe(&channels).await?;
        self.channels.subscribed(&channels);
        for channel in &channels {
            self.wake_channel(channel.as_bytes());
        }
        Ok(())
    }

    /// Handles notices until the connection breaks. Returns the fault.
    async fn receive(&self, mut notices: Notices) -> Fault {
        let mut tick = tokio::time::interval(PING);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut silent = false;
        loop {
            let done = tokio::select! {
                notice = notices.next() => {
                    silent = false;
                    self.handle(notice)
                }
                () = self.channels.wanted() => self.in_time(self.follow(&mut notices)).await,
                _ = tick.tick() => {
                    let given_up = self.channels.sweep();
                    let seen = async {
                        notices.unsubscribe(&given_up).await?;
                        if silent {
                            notices.ping().await?;
                        }
                        Ok(())
                    };
                    let seen = self.in_time(seen).await;
                    silent = true;
                    seen
                }
            };
            if let Err(fault) = done {
                return fault;
            }
        }
    }

    fn handle(&self, notice: Event) -> Result<(), Fault> {
        match notice {
            Event::Message(channel, message)
                if self.channel.as_ref().is_some_and(|own| own.as_bytes() == channel) =>
            {
                self.notice(&message);
            }
            Event::Message(channel, message) if (self.is_notification)(&message) => {
                self.wake_channel(&channel);
            }
            Event::Message(..) => {}
            Event::Moved(channel) => {
                self.channels.lost(&String::from_utf8_lossy(&channel));
                self.wake_channel(&channel);
            }
            Event::Broken => {
                let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                return Err(Fault::Broken(error.into(), true));
            }
        }
        Ok(())
    }

    /// Wakes the tickets of a lock's channel: the lock may be free.
    fn wake_channel(&self, channel: &[u8]) {
        for id in self.channels.tickets(&String::from_utf8_lossy(channel)) {
            self.waiters.wake(id);
        }
    }

    /// Handles a notice: `w` and the places that were admitted, or `a` and the ticket that was
    /// evicted.
    fn notice(&self, message: &[u8]) {
        match message.split_first() {
            Some((b'w', places)) => {
                for (id, seq) in places.chunks(PLACE).filter_map(place_of) {
                    self.waiters.admit(id, seq);
                }
            }
            Some((b'a', id)) => {
                if let Some(id) = id_of(id) {
                    self.waiters.evicted(id);
                }
            }
            _ => {}
        }
    }
}

/// The pause after this many failures in a row. A subscription that is refused is requested less
/// and less often: the right may be missing only while users are being changed.
fn pause(refused: bool, failures: u32) -> Duration {
    let (first, longest) = if refused { (1000, 30_000) } else { (20, 1000) };
    let [first, longest] = [first, longest].map(Duration::from_millis);
    Backoff::exponential(first, longest).jitter(50).pause(failures, fastrand::u64(..))
}

/// The length of a place in a notice.
pub(in crate::stores) const PLACE: usize = 40;

/// Decodes a place in a notice: the ticket's id, and the number of its place.
pub(in crate::stores) fn place_of(text: &[u8]) -> Option<(TicketId, Seq)> {
    let (id, seq) = text.split_at_checked(32)?;
    let seq = f64::from_le_bytes(seq.try_into().ok()?);
    Some((id_of(id)?, Seq(seq as u64)))
}

/// A ticket's id from its 32 digits.
pub(in crate::stores) fn id_of(digits: &[u8]) -> Option<TicketId> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdline_testkit::{free_port, until};

    #[test]
    fn a_right_that_is_missing_for_a_moment_is_not_missed_for_long() {
        assert!(pause(true, 0) < Duration::from_secs(2));
        assert!(pause(true, 99) >= Duration::from_secs(15), "one that stays missing");
        assert!(pause(false, 99) < Duration::from_secs(2), "a server that is away");
    }

    /// What is waited for is forgotten in time also if there is never a connection.
    #[tokio::test]
    async fn channels_that_cannot_be_subscribed_to_are_bounded() {
        let (config, _) = Config::read("redis", &format!("//127.0.0.1:{}", free_port()))
            .expect("it is a URL of Redis");
        let pubsub = PubSub::new(Arc::new(config), None, |_| true);
        pubsub.follow("a", TicketId(7));
        assert_eq!(pubsub.channels().tickets("a"), [TicketId(7)]);
        until("it is forgotten", async || pubsub.channels().are_none()).await;
    }
}
