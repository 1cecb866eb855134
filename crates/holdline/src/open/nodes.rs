//! Opening the nodes of a quorum, all at once.

use super::{single, site};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Capabilities, Store};
use crate::stores::quorum::lazy::{Lazy, Opener};
use crate::stores::quorum::{self, Quorum};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;

/// The time limit for a majority to be open.
const MAJORITY_LIMIT: Duration = Duration::from_millis(1500);
/// The time that the other nodes have after that to report errors in their URLs.
const GRACE: Duration = Duration::from_millis(250);

/// The outcome of opening one node.
enum Outcome {
    Opened(Arc<dyn Store>),
    /// The node is unreachable, with this error.
    Failed(Error),
    /// The node has not answered yet.
    Silent,
}

/// Opens a quorum of the nodes at these URLs.
pub(super) async fn open(urls: Vec<String>) -> Result<Arc<dyn Store>> {
    quorum::enough(urls.len())?;
    site::distinct(&urls)?;
    let openers: Vec<Opener> = urls.iter().map(|url| opener(url)).collect();
    let outcomes = open_all(&openers).await?;
    let opened = |outcome: &Outcome| match outcome {
        Outcome::Opened(store) => Some(store.capabilities()),
        Outcome::Failed(_) | Outcome::Silent => None,
    };
    let capabilities: Vec<Capabilities> = outcomes.iter().filter_map(opened).collect();
    if capabilities.len() <= urls.len() / 2 {
        return Err(unreachable(&urls, &outcomes));
    }
    // A node that is not open yet is assumed to have the others' capabilities.
    let capabilities = capabilities[0];
    let nodes = urls.iter().zip(openers).zip(outcomes);
    let nodes = nodes.map(|((url, opener), outcome)| {
        let store = match outcome {
            Outcome::Opened(store) => return (store, false),
            Outcome::Failed(_) | Outcome::Silent => {
                Lazy::new(site::address(url), capabilities, opener)
            }
        };
        tracing::warn!(node = store.address(), "a node of the quorum cannot be reached");
        (Arc::new(store) as Arc<dyn Store>, true)
    });
    Ok(Arc::new(Quorum::of(nodes.collect())?))
}

fn opener(url: &str) -> Opener {
    let url = url.to_owned();
    Arc::new(move || {
        let url = url.clone();
        Box::pin(async move { single(&url).await })
    })
}

/// Opens all nodes concurrently. Returns when all have answered, soon after a majority is open, or
/// at the time limit. A permanent error is returned at once.
async fn open_all(openers: &[Opener]) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = openers.iter().map(|_| Outcome::Silent).collect();
    let mut opening = FuturesUnordered::new();
    let mut open = 0;
    for (at, opener) in openers.iter().enumerate() {
        let mut store = opener();
        match store.as_mut().now_or_never() {
            // An error before any I/O is about the URL.
            Some(Err(error)) if !error.retryable() => return Err(error),
            Some(Err(error)) => outcomes[at] = Outcome::Failed(error),
            Some(Ok(store)) => {
                outcomes[at] = Outcome::Opened(store);
                open += 1;
            }
            None => opening.push(async move { (at, store.await) }),
        }
    }
    let mut limit = clock::now().after(MAJORITY_LIMIT);
    loop {
        if open > openers.len() / 2 {
            limit = limit.min(clock::now().after(GRACE));
        }
        match clock::within(limit, opening.next()).await {
            None | Some(None) => return Ok(outcomes),
            Some(Some((_, Err(error)))) if is_permanent(&error) => return Err(error),
            Some(Some((at, Err(error)))) => outcomes[at] = Outcome::Failed(error),
            Some(Some((at, Ok(store)))) => {
                outcomes[at] = Outcome::Opened(store);
                open += 1;
            }
        }
    }
}

/// Whether a node's error is permanent. An invalid answer is not: it may come from a proxy whose
/// server is down.
fn is_permanent(error: &Error) -> bool {
    !error.retryable() && error.kind() != ErrorKind::Invalid
}

/// The error of a quorum without a majority, which names each unreachable node.
fn unreachable(urls: &[String], outcomes: &[Outcome]) -> Error {
    let away = urls.iter().zip(outcomes).filter_map(|(url, outcome)| {
        let address = site::address(url);
        match outcome {
            Outcome::Opened(_) => None,
            Outcome::Failed(error) => Some(format!("{error:#}"))
                .map(|why| if why.contains(&address) { why } else { format!("{address}: {why}") }),
            Outcome::Silent => Some(format!("{address}: it did not answer in time")),
        }
    });
    let away: Vec<String> = away.collect();
    let message = format!(
        "{} of the {} nodes of the quorum cannot be reached, and {} are needed; check that they \
         run and can be reached: {}",
        away.len(),
        urls.len(),
        urls.len() / 2 + 1,
        away.join("; ")
    );
    Error::new(ErrorKind::Unavailable, message)
}
