//! The connection for notices: with plain channels, which any node of a cluster relays, or with
//! sharded ones, which belong to a slot as keys do.

use crate::config::Primary;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{PushInfo, PushKind, RedisError, Value};
use std::future::{Future, pending};
use std::pin::pin;
use tokio::sync::mpsc::UnboundedReceiver;

/// The connection for messages on channels.
pub struct Notices {
    kind: Kind,
    /// The primary that it is connected to, if a sentinel named it.
    primary: Option<(Primary, String)>,
}

pub(crate) enum Kind {
    Plain(PubSubSink, PubSubStream),
    Sharded(ClusterConnection, UnboundedReceiver<PushInfo>),
}

/// An event on the connection.
pub enum Event {
    /// A message on a channel.
    Message(Vec<u8>, Vec<u8>),
    /// A channel has moved to another node.
    Moved(Vec<u8>),
    /// The connection, or one of several, broke, or leads to another primary than the last that a
    /// sentinel has named.
    Broken,
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

impl From<PubSub> for Kind {
    fn from(pubsub: PubSub) -> Self {
        let (sink, stream) = pubsub.split();
        Kind::Plain(sink, stream)
    }
}

impl Notices {
    pub(crate) fn new(kind: Kind, primary: Option<(Primary, String)>) -> Self {
        Notices { kind, primary }
    }

    /// Subscribes to channels, and waits for the confirmations.
    ///
    /// # Errors
    ///
    /// The first refusal, or the break of the connection.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the channels may be subscribed to.
    pub async fn subscribe(&mut self, channels: &[String]) -> Result<(), RedisError> {
        match &mut self.kind {
            _ if channels.is_empty() => Ok(()),
            Kind::Plain(sink, _) => sink.subscribe(channels).await,
            Kind::Sharded(conn, _) => {
                each(channels, |channel| {
                    let mut conn = conn.clone();
                    async move { conn.ssubscribe(channel).await }
                })
                .await
            }
        }
    }

    /// Ends subscriptions.
    ///
    /// # Errors
    ///
    /// As [`subscribe`](Self::subscribe).
    ///
    /// # Cancel safety
    ///
    /// As [`subscribe`](Self::subscribe).
    pub async fn unsubscribe(&mut self, channels: &[String]) -> Result<(), RedisError> {
        match &mut self.kind {
            _ if channels.is_empty() => Ok(()),
            Kind::Plain(sink, _) => sink.unsubscribe(channels).await,
            Kind::Sharded(conn, _) => {
                each(channels, |channel| {
                    let mut conn = conn.clone();
                    async move { conn.sunsubscribe(channel).await }
                })
                .await
            }
        }
    }

    /// Sends a heartbeat, in a cluster to each node that it is connected to.
    ///
    /// # Errors
    ///
    /// The break of the connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is harmless; another heartbeat may be sent.
    pub async fn ping(&mut self) -> Result<(), RedisError> {
        let reply = match &mut self.kind {
            Kind::Plain(sink, _) => sink.ping::<Value>().await,
            Kind::Sharded(conn, _) => {
                let nodes = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                conn.route_command(redis::cmd("PING"), nodes).await
            }
        };
        // Any reply will do, even an error.
        match reply {
            Err(error) if error.is_io_error() => Err(error),
            _ => Ok(()),
        }
    }

    /// The next event.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Event {
        let Notices { kind, primary } = self;
        // A server that is no primary any more may go on, and hears nothing of the new one's locks.
        let left = async {
            match primary {
                Some((primary, address)) => primary.left(address).await,
                None => pending().await,
            }
        };
        match select(pin!(kind.next()), pin!(left)).await {
            Either::Left((event, _)) => event,
            Either::Right(_) => Event::Broken,
        }
    }
}

impl Kind {
    async fn next(&mut self) -> Event {
        match self {
            Kind::Plain(_, stream) => match stream.next().await {
                Some(message) => Event::Message(
                    message.get_channel_name().as_bytes().to_vec(),
                    message.get_payload_bytes().to_vec(),
                ),
                None => Event::Broken,
            },
            Kind::Sharded(_, pushes) => loop {
                let Some(PushInfo { kind, data }) = pushes.recv().await else {
                    return Event::Broken;
                };
                let mut parts = data.into_iter().map(|part| match part {
                    Value::BulkString(bytes) => bytes,
                    _ => Vec::new(),
                });
                let mut part = || parts.next().unwrap_or_default();
                match kind {
                    PushKind::SMessage => return Event::Message(part(), part()),
                    PushKind::SUnsubscribe => return Event::Moved(part()),
                    PushKind::Disconnection => return Event::Broken,
                    _ => {}
                }
            },
        }
    }
}

/// Runs `work` for each channel separately, since each has its own slot; up to 64 at a time.
async fn each<F: Future<Output = Result<(), RedisError>>>(
    channels: &[String],
    work: impl Fn(String) -> F,
) -> Result<(), RedisError> {
    let work: Vec<F> = channels.iter().cloned().map(work).collect();
    futures_util::stream::iter(work).buffer_unordered(64).try_collect().await
}
