//! One connection to the server, and the task that drives it.
//!
//! The task runs on the store's own thread, so that a connection outlives the runtime of the call
//! that opened it, and goes on while that runtime is busy. Dropping the session closes the
//! connection, which frees its locks.

use super::address::Address;
use super::batch::Batcher;
use super::encode;
use super::tls::{self, Messages};
use crate::clock;
use crate::error::Result as Opened;
use crate::stores::queue::calls::Answer;
use crate::stores::queue::sql::{Fault, answered, clean};
use crate::stores::runtime::{AbortOnDrop, Background};
use crate::sync::Mutex;
use futures_util::StreamExt;
use holdline_kernel::Time;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client};

/// The runtime of the connections of all PostgreSQL stores in this process.
pub(super) fn runtime() -> Opened<&'static Background> {
    static BACKGROUND: Background = Background::new("postgres");
    BACKGROUND.start().map(|()| &BACKGROUND)
}

/// Called with the payload of every notice.
pub(super) type OnNotice = Box<dyn Fn(&str) + Send>;

/// A lane of a connection, with a batcher of its own: renewals are not queued behind other calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// For a store's callers.
    Foreground,
    /// For renewals.
    Background,
}

/// An open connection.
pub(super) struct Session {
    client: Client,
    /// For each [`Lane`].
    pub(super) batchers: [Batcher; 2],
    /// The time limit of each message.
    pub(super) timeout: Duration,
    /// When the connection was made.
    pub(super) since: Time,
    silence: Mutex<Silence>,
    /// The fault that ended the connection.
    ended: watch::Receiver<Option<Fault>>,
    task: AbortOnDrop,
}

impl Session {
    /// Connects within the time limit of the address. `on_notice` is called with every notice, on
    /// the store's thread.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub(super) async fn open(
        address: &Address,
        on_notice: Option<OnNotice>,
    ) -> Result<Session, Fault> {
        let runtime = runtime().map_err(Fault::from)?;
        let (timeout, address) = (address.timeout, address.clone());
        let connecting = runtime.spawn(async move { tls::connect(&address).await });
        let _end = AbortOnDrop(connecting.abort_handle());
        let gone = |_| Err(Fault::Broken("its thread has ended".to_owned()));
        let (client, messages) = connecting.await.unwrap_or_else(gone)?;
        let (end, ended) = watch::channel(None);
        let driving = runtime.spawn(async move {
            end.send_replace(Some(drive(messages, on_notice).await));
        });
        let task = AbortOnDrop(driving.abort_handle());
        Ok(Session {
            client,
            batchers: Default::default(),
            timeout,
            since: clock::now(),
            silence: Mutex::default(),
            ended,
            task,
        })
    }

    /// Sends statements as one message, and returns the answers to them.
    pub(super) async fn answers(&self, sql: &str) -> Result<Vec<Answer>, Fault> {
        let limit = clock::now().after(self.timeout);
        Ok(encode::answers(answered(limit, self.client.simple_query(sql)).await?))
    }

    /// The same for a message of a [`Batcher`], whose silence is noted.
    pub(super) async fn send(&self, sql: &str) -> Result<Vec<Answer>, Fault> {
        self.silence.lock().begin(clock::now());
        let reply = self.answers(sql).await;
        self.silence.lock().end(clock::now(), !reply.as_ref().is_err_and(Fault::silent));
        reply
    }

    /// Sends one or several statements as one message, and returns the answer to the first.
    pub(super) async fn ask(&self, sql: &str) -> Result<Answer, Fault> {
        Ok(self.answers(sql).await?.into_iter().next().unwrap_or_default())
    }

    /// Whether the server takes long to reply, or did lately: calls wait for locked rows, most
    /// likely, and others behind them.
    pub(super) fn stalls(&self) -> bool {
        self.silence.lock().stalls(clock::now())
    }

    /// How long the server has been silent although a message awaits a reply.
    pub(super) fn silence(&self) -> Duration {
        self.silence.lock().since.map_or(Duration::ZERO, |since| since.until(clock::now()))
    }

    /// Waits until the connection has ended, and returns the fault. A close by the server is
    /// noticed at once.
    pub(super) fn ended(&self) -> impl Future<Output = Fault> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let fault = ended.wait_for(Option::is_some).await.ok().and_then(|fault| fault.clone());
            fault.unwrap_or_else(|| Fault::Broken("it was closed".to_owned()))
        }
    }

    /// Closes the connection and frees its locks.
    pub(super) fn close(&self) {
        self.task.0.abort();
    }

    /// Whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.client.is_closed()
    }
}

/// Drives a connection until it ends. Returns the fault.
async fn drive(mut messages: Messages, on_notice: Option<OnNotice>) -> Fault {
    loop {
        match (messages.next().await, &on_notice) {
            (Some(Ok(AsyncMessage::Notification(notice))), Some(tell)) => tell(notice.payload()),
            (Some(Ok(AsyncMessage::Notice(warning))), _) if is_unconfirmed(&warning) => {
                return Fault::Broken(clean(warning.message()));
            }
            (Some(Ok(_)), _) => {}
            (Some(Err(error)), _) => return Fault::from(error),
            (None, _) => return Fault::Broken("it was closed".to_owned()),
        }
    }
}

/// Whether the server warns that a commit is not on its synchronous standby, because an
/// administrator has ended the wait for that. The reply that follows would say that all is well.
fn is_unconfirmed(warning: &DbError) -> bool {
    warning.routine() == Some("SyncRepWaitForLSN")
}

/// The silence of a server: since when a message has been without a reply, counted from the last
/// reply to another one.
#[derive(Debug, Default)]
struct Silence {
    /// The number of messages that wait for a reply.
    waiting: usize,
    since: Option<Time>,
    /// When a long silence last ended.
    stalled: Option<Time>,
}

/// How long a silence is a stall: half as long as a call waits for a locked row, which is longer
/// than a batch does, a packet around the earth and nearly every commit.
const STALL: Duration = Duration::from_millis(400);
/// How long a stall is remembered: the next one is likely to come before a renewal is answered.
const REMEMBERED: Duration = Duration::from_secs(10);

impl Silence {
    fn begin(&mut self, now: Time) {
        self.waiting += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Time, answered: bool) {
        self.waiting -= 1;
        if answered {
            let stalled = self.since.is_some_and(|since| since.until(now) > STALL);
            self.stalled = if stalled { Some(now) } else { self.stalled };
            self.since = (self.waiting > 0).then_some(now);
        }
    }

    fn stalls(&self, now: Time) -> bool {
        self.since.is_some_and(|since| since.until(now) > STALL)
            || self.stalled.is_some_and(|at| at.until(now) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_the_silence_about_its_own_message_only() {
        let mut silence = Silence::default();
        silence.begin(Time(1));
        silence.begin(Time(2));
        silence.end(Time(3), true);
        assert_eq!(silence.since, Some(Time(3)));
        silence.end(Time(4), false);
        silence.begin(Time(5));
        assert_eq!(silence.since, Some(Time(3)), "a message that is given up was not answered");
        silence.end(Time(6), true);
        assert_eq!(silence.since, None);
    }

    #[test]
    fn a_stall_is_seen_while_it_lasts_and_remembered_for_a_while() {
        let (mut silence, mut now) = (Silence::default(), Time(1));
        silence.begin(now);
        now = now.after(STALL);
        assert!(!silence.stalls(now));
        now = now.after(STALL);
        assert!(silence.stalls(now));
        silence.end(now, true);
        silence.begin(now);
        silence.end(now, true);
        assert!(silence.stalls(now), "the next one may begin before a call is answered");
        assert!(!silence.stalls(now.after(REMEMBERED)));
    }
}
