//! The pump: one direction of one connection, which forwards bytes when they are due.

use crate::link::{Counts, Rule};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The rules of one direction, and its lost replies.
pub(crate) struct Direction {
    rules: watch::Receiver<Rule>,
    stalled: fn(&Rule) -> bool,
    /// For replies: the state that says whether the next one is to be lost.
    losing: Option<Arc<Counts>>,
}

impl Direction {
    pub(crate) fn requests(rules: &watch::Receiver<Rule>) -> Self {
        Self { rules: rules.clone(), stalled: |rule| rule.stall_requests, losing: None }
    }

    pub(crate) fn replies(rules: &watch::Receiver<Rule>, counts: Arc<Counts>) -> Self {
        Self { rules: rules.clone(), stalled: |rule| rule.stall_replies, losing: Some(counts) }
    }

    fn loses_this(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.losing.as_ref().is_some_and(|counts| {
            counts.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        })
    }
}

pub(crate) struct Pipe {
    pub(crate) from: OwnedReadHalf,
    pub(crate) to: OwnedWriteHalf,
    pub(crate) direction: Direction,
}

impl Pipe {
    /// Forwards until either end closes, or a reply is lost. Bytes read before that are still
    /// delivered.
    pub(crate) async fn run(self) {
        let Self { from, to, direction } = self;
        let rules = direction.rules.clone();
        let stalled = direction.stalled;
        // Reading and writing are separate tasks, so that delays of bytes do not add up.
        let (queue, queued) = mpsc::unbounded_channel();
        tokio::join!(collect(from, direction, queue), deliver(to, queued, rules, stalled));
    }
}

async fn collect(
    mut from: OwnedReadHalf,
    direction: Direction,
    queue: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let due = Instant::now() + direction.rules.borrow().delay;
        if direction.loses_this() || queue.send((due, bytes[..count].to_vec())).is_err() {
            return;
        }
    }
}

async fn deliver(
    mut to: OwnedWriteHalf,
    mut queued: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    mut rules: watch::Receiver<Rule>,
    stalled: fn(&Rule) -> bool,
) {
    while let Some((due, bytes)) = queued.recv().await {
        sleep_until(due).await;
        // The link was dropped, with its connections.
        if rules.wait_for(|rule| !stalled(rule)).await.is_err() {
            return;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
