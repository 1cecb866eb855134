//! Leader election: a mutex whose holder publishes a value.

use super::{acquire, expect_acquired};
use crate::changes::Changes;
use crate::client::{Client, LockInfo, Participant};
use crate::error::Result;
use crate::guard::Guard;
use crate::metrics::Recipe;
use crate::names::Name;
use crate::options::{Options, Wait, kept, option_methods};
use crate::owner_info::OwnerInfo;
use std::mem;
use std::ops::Deref;
use std::time::Duration;

/// An election: one candidate leads at a time, and every client can see the leader and its value.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// let client = holdline::open("memory:").await?;
/// let election = holdline::Election::new(&client, "scheduler");
/// let leader = election.campaign("10.0.0.1:80").await?;
/// assert_eq!(election.leader().await?.unwrap().value, "10.0.0.1:80");
/// leader.proclaim("10.0.0.1:81").await?;
/// leader.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: String,
    options: Options,
}

/// The leadership, while held: a [`Guard`] with a published value. It ends by
/// [`resign`](Leader::resign), or in the background when it is dropped.
#[derive(Debug)]
#[must_use = "dropping the leadership at once resigns at once"]
pub struct Leader {
    guard: Guard,
}

/// The current leader, as other clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leadership {
    /// The value that the leader published.
    pub value: String,
    /// The leader's fencing token: a higher one is a later leader.
    pub token: u64,
    /// The leader itself.
    pub participant: Participant,
}

/// An observer of an election's changes. Created by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    election: Election,
    every: Duration,
    changes: Option<Changes>,
    polled: bool,
    last: Option<(u64, String)>,
}

/// The default poll interval of an observer.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Election {
    /// Creates a handle of the election of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        Election { client: client.clone(), name, options: Options::new(Recipe::Election) }
    }

    option_methods!();

    /// Campaigns, and waits until elected.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if the value is too long; otherwise as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidacy in the background.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leader> {
        self.campaign_as(value.into(), Wait::Forever).await.map(expect_acquired)
    }

    /// Campaigns without waiting or taking a place in the line. `None` if another candidate leads
    /// or waits.
    ///
    /// # Errors
    ///
    /// As [`campaign`](Election::campaign).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidacy in the background.
    pub async fn try_campaign(&self, value: impl Into<String>) -> Result<Option<Leader>> {
        self.campaign_as(value.into(), Wait::Not).await
    }

    /// Campaigns for up to `time`. `None` if not elected by then.
    ///
    /// # Errors
    ///
    /// As [`campaign`](Election::campaign).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidacy in the background.
    pub async fn campaign_within(
        &self,
        value: impl Into<String>,
        time: Duration,
    ) -> Result<Option<Leader>> {
        self.campaign_as(value.into(), Wait::Within(time)).await
    }

    /// Returns the current leader, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Client::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn leader(&self) -> Result<Option<Leadership>> {
        Ok(Leadership::of(self.client.inspect(&self.name).await?))
    }

    /// Creates an observer of the election. It listens if the store reports changes, and polls
    /// every half second otherwise: see [`Changes::next`].
    pub fn observe(&self) -> Observer {
        let election = self.clone();
        Observer { election, every: POLL_INTERVAL, changes: None, polled: false, last: None }
    }

    async fn campaign_as(&self, value: String, wait: Wait) -> Result<Option<Leader>> {
        let options = Options { value: Some(value), ..self.options.clone() };
        let name = Name::new(&self.name)?;
        let guard = acquire(&self.client, &options, name, (1, 1), wait).await?;
        Ok(guard.map(|guard| Leader { guard }))
    }
}

impl Leadership {
    fn of(info: LockInfo) -> Option<Self> {
        info.holders.into_iter().next().map(|participant| Leadership {
            value: participant.note.value.clone().unwrap_or_default(),
            token: participant.token,
            participant,
        })
    }
}

impl Leader {
    /// Changes the published value.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if another candidate may lead by now;
    /// [`Invalid`](crate::ErrorKind::Invalid) if the value is too long; other kinds if the store
    /// could not be asked within 5 s. Then the next renewal publishes the value; a fixed lease is
    /// renewed for this, without being extended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future keeps the leadership; the value is published in the background.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        let note = OwnerInfo { value: Some(value.into()), ..self.guard.note() };
        self.guard.annotate(kept(&note, self.guard.name())?).await
    }

    /// Resigns: releases the leadership, as [`Guard::unlock`] does a lock.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resigns in the background.
    #[doc(alias = "unlock")]
    pub async fn resign(self) -> Result<()> {
        self.guard.unlock().await
    }
}

impl Deref for Leader {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Observer {
    /// Sets the poll interval, used if the store does not report changes. Default: 500 ms.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(Duration::from_millis(10));
        self
    }

    /// Waits for the next change. The first call returns the current leader at once; later calls
    /// return when the leader or its value has changed. `None` means that there is no leader. A
    /// change that is undone between two polls is not seen. Waits out an outage of the store, up to
    /// the client's [`outage`](Client::outage) limit.
    ///
    /// # Errors
    ///
    /// An error means that the store could not be asked; the next call asks again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Option<Leadership>> {
        let Election { client, name, .. } = &self.election;
        let changed = |info| {
            let leader = Leadership::of(info);
            let seen = leader.as_ref().map(|leader| (leader.token, leader.value.clone()));
            let is_new = !mem::replace(&mut self.polled, true) || self.last != seen;
            self.last = seen;
            is_new.then_some(leader)
        };
        client.inspect_until(name, (self.every, &mut self.changes), changed).await
    }
}
