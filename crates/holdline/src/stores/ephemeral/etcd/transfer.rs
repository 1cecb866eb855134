//! Transfer: leaving and entering in one transaction. One task of this process releases the lock,
//! the next one enters the line, and etcd writes once for both.
//!
//! A release of a lock of capacity 1 is registered here before the server is asked. The local queue
//! then lets the next task through, which finds the release, adds its own request to it, and shares
//! its answer. A task that comes while the release is in progress waits until it is over, because a
//! request in between would mostly find the lock still held. A release does not wait for another
//! task: it yields once, so that a ready task can run, and is then sent.
//!
//! The line looks as it would otherwise: one key goes, and the other is added at the end of the
//! line at the same revision, behind all waiters.
//!
//! The transaction applies only while the key that it deletes is the one that was held. So once
//! that is gone, a request that is still in transit does nothing any more, for either. If the
//! transaction does not apply, both go on alone; if its outcome is unknown, both do the same, each
//! as after a lost answer of its own.

use super::acquire::Attempt;
use super::answer::{self, Found};
use super::beside;
use super::layout;
use super::shared::Shared;
use super::writes::Flight;
use crate::clock;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use holdline_etcd_client::proto::Txn;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Departures in progress, by the prefix of their line's keys.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<HashMap<Vec<u8>, Entry>>);

#[derive(Debug)]
struct Entry {
    joined: Joined,
    /// Closed when the departure is over.
    over: watch::Receiver<()>,
}

/// The entry that joins a departure.
#[derive(Debug)]
enum Joined {
    Nobody,
    One(JoiningRequest),
    /// The departure has been sent.
    TooLate,
}

/// The request of an entering ticket, handed to the leaving one.
#[derive(Debug)]
pub(super) struct JoiningRequest {
    /// Its own transaction for entering alone.
    entry: Txn,
    flight: Arc<Flight>,
    /// `None` if it must enter alone, and nothing was written. Dropped if the outcome is unknown.
    reply: oneshot::Sender<Option<Found>>,
}

/// A departure in progress. It is over when this is dropped.
pub(super) struct Departure<'a> {
    departures: &'a Departures,
    prefix: Vec<u8>,
    over: watch::Sender<()>,
}

impl Departures {
    /// Begins a departure from the line with this prefix.
    pub(super) fn open(&self, prefix: &[u8]) -> Departure<'_> {
        let (over, told) = watch::channel(());
        let entry = Entry { joined: Joined::Nobody, over: told };
        let before = self.0.lock().insert(prefix.to_vec(), entry);
        drop(before); // an entry that was to go along with that one goes alone
        Departure { departures: self, prefix: prefix.to_vec(), over }
    }

    /// Ends the departure from the line with this prefix: its ticket has lapsed meanwhile. An entry
    /// that was to go along goes alone.
    pub(super) fn close(&self, prefix: &[u8]) {
        let ended = self.0.lock().remove(prefix);
        drop(ended); // without the mutex
    }

    /// Joins a departure, if there is one with room. Also returns a receiver that tells when it is
    /// over.
    fn join(
        &self,
        prefix: &[u8],
        joining: impl FnOnce() -> Option<JoiningRequest>,
    ) -> Option<(bool, watch::Receiver<()>)> {
        let mut map = self.0.lock();
        let entry = map.get_mut(prefix)?;
        let joining = if matches!(entry.joined, Joined::Nobody) { joining() } else { None };
        let joined = joining.is_some();
        if let Some(joining) = joining {
            entry.joined = Joined::One(joining);
        }
        Some((joined, entry.over.clone()))
    }
}

impl Departure<'_> {
    /// Lets other tasks run once, then closes the departure. Returns the entry that joined it, if
    /// any.
    pub(super) async fn joining(&self) -> Option<JoiningRequest> {
        tokio::task::yield_now().await;
        let mut map = self.departures.0.lock();
        let entry = map.get_mut(&self.prefix).filter(|entry| self.is_mine(entry))?;
        match std::mem::replace(&mut entry.joined, Joined::TooLate) {
            Joined::One(joining) if !joining.reply.is_closed() => Some(joining),
            _ => None,
        }
    }

    fn is_mine(&self, entry: &Entry) -> bool {
        self.over.subscribe().same_channel(&entry.over)
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let mut map = self.departures.0.lock();
        let mine = map.get(&self.prefix).is_some_and(|entry| self.is_mine(entry));
        let ended = if mine { map.remove(&self.prefix) } else { None };
        drop(map);
        drop(ended);
    }
}

impl Attempt<'_> {
    /// Enters along with a departure of this process from the same line, or waits until that is
    /// over. `None` if the ticket must enter alone.
    pub(super) async fn along(&self, offer: Option<&Txn>, beside: bool) -> Option<Found> {
        let Attempt { store, request, record, .. } = *self;
        let prefix = &record.base.prefix;
        if record.capacity != 1 {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let joining = || {
            let mut entry = offer?.clone();
            if beside {
                entry.compare.push(beside::no_other(prefix));
            }
            Some(JoiningRequest { entry, flight: Flight::new(record, None)?, reply })
        };
        let (joined, mut over) = store.departures.join(prefix, joining)?;
        if joined {
            let answer = clock::timeout(request.limit, answer).await?.ok()?;
            if answer.is_some() {
                return answer;
            }
        }
        let _ = clock::timeout(request.limit, over.changed()).await;
        None
    }
}

impl Shared {
    /// Deletes the key created at this revision, and writes the joining ticket's key in the
    /// same request.
    pub(super) async fn leave_with(
        &self,
        joining: JoiningRequest,
        key: &[u8],
        create: i64,
        limit: Duration,
    ) -> Result<Found> {
        let JoiningRequest { entry, flight, reply } = joining;
        let alone = layout::delete(key, create);
        let mut both = alone.clone();
        both.compare.extend(entry.compare);
        // In this order, so that the keys in front of the new one are read.
        both.success.extend(entry.success);
        let answer = self.cluster.write(&both, limit, flight.clone()).await.map_err(Error::from);
        let found = answer.and_then(|answer| answer::read(&self.address, &both, answer));
        let repeated = match found {
            Ok(found) if found.succeeded => {
                let _ = reply.send(Some(found.clone()));
                return Ok(found);
            }
            Ok(found) => found.repeated,
            Err(error) if error.retryable() => return Err(error),
            // Refused, perhaps because of the newcomer.
            Err(_) => false,
        };
        drop(flight);
        let found = self.txn(&alone, limit).await?;
        if !repeated {
            let _ = reply.send(None);
        }
        Ok(Found { repeated: found.repeated || repeated, ..found })
    }
}
