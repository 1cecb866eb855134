//! The connection for notices: with plain channels, which any node of a cluster forwards, or with
//! sharded ones, which belong to a slot as keys do.

use futures_util::{StreamExt, TryStreamExt};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::cluster_async::ClusterConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use std::future::Future;
use tokio::sync::mpsc::UnboundedReceiver;

pub(super) enum PubSubConn {
    Plain(PubSubSink, PubSubStream),
    Sharded(ClusterConnection, UnboundedReceiver<PushInfo>),
}

/// An event on the connection.
pub(super) enum Event {
    /// A message on a channel.
    Message(Vec<u8>, Vec<u8>),
    /// A channel has moved to another node.
    Moved(Vec<u8>),
    /// The connection broke, or one of several.
    Broken,
}

impl From<PubSub> for PubSubConn {
    fn from(pubsub: PubSub) -> Self {
        let (sink, stream) = pubsub.split();
        PubSubConn::Plain(sink, stream)
    }
}

impl PubSubConn {
    pub(super) async fn subscribe(&mut self, channels: &[String]) -> Result<(), RedisError> {
        match self {
            _ if channels.is_empty() => Ok(()),
            PubSubConn::Plain(sink, _) => sink.subscribe(channels).await,
            PubSubConn::Sharded(conn, _) => {
                each(channels, |channel| {
                    let mut conn = conn.clone();
                    async move { conn.ssubscribe(channel).await }
                })
                .await
            }
        }
    }

    pub(super) async fn unsubscribe(&mut self, channels: &[String]) -> Result<(), RedisError> {
        match self {
            _ if channels.is_empty() => Ok(()),
            PubSubConn::Plain(sink, _) => sink.unsubscribe(channels).await,
            PubSubConn::Sharded(conn, _) => {
                each(channels, |channel| {
                    let mut conn = conn.clone();
                    async move { conn.sunsubscribe(channel).await }
                })
                .await
            }
        }
    }

    /// Sends a heartbeat. A cluster's connections have their own.
    pub(super) async fn ping(&mut self) -> Result<(), RedisError> {
        match self {
            // Any reply will do, even an error.
            PubSubConn::Plain(sink, _) => match sink.ping::<Value>().await {
                Err(error) if error.is_io_error() => Err(error),
                _ => Ok(()),
            },
            PubSubConn::Sharded(..) => Ok(()),
        }
    }

    /// The next event. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> Event {
        match self {
            PubSubConn::Plain(_, stream) => match stream.next().await {
                Some(message) => Event::Message(
                    message.get_channel_name().as_bytes().to_vec(),
                    message.get_payload_bytes().to_vec(),
                ),
                None => Event::Broken,
            },
            PubSubConn::Sharded(_, pushes) => loop {
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

/// Runs `work` for each channel separately, since each has a slot of its own; up to 64 at a time.
async fn each<F: Future<Output = Result<(), RedisError>>>(
    channels: &[String],
    work: impl Fn(String) -> F,
) -> Result<(), RedisError> {
    let work: Vec<F> = channels.iter().cloned().map(work).collect();
    futures_util::stream::iter(work).buffer_unordered(64).try_collect().await
}
