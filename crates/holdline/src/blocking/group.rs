//! The blocking API of groups.

use super::release::{Held, Release};
use super::{Client, wait};
use crate::error::{Error, Result};
use crate::recipes::{self, Members, Ownership, Route};
use crate::{Loss, MembersObserver, OnLoss};
use std::future::{Future, ready};
use std::ops::Deref;
use std::time::Duration;

/// A group of processes that divide keys. See [`holdline::Group`](crate::Group).
#[derive(Clone, Debug)]
pub struct Group(recipes::Group);

/// A membership in a group. See [`Member`](crate::Member).
#[derive(Debug)]
#[must_use = "dropping the member at once leaves the group at once"]
pub struct BlockingMember(Held<recipes::Member>);

/// The member that a key belongs to. See [`Route`].
#[derive(Debug)]
pub enum BlockingRoute<'a> {
    /// This member; no other thread of this process owns the key.
    Mine(BlockingOwnership<'a>),
    /// The member at this address.
    Other(String),
}

/// The ownership of a key. See [`Ownership`].
#[derive(Debug)]
#[must_use = "dropping the ownership at once lets other threads have the key at once"]
pub struct BlockingOwnership<'a>(Ownership<'a>);

/// An observer of a group's changes. See [`MembersObserver`].
#[derive(Debug)]
pub struct BlockingMembersObserver(MembersObserver);

impl Client {
    /// The group of this name.
    pub fn group(&self, name: impl AsRef<str>) -> Group {
        Group(recipes::Group::new(&self.0, name))
    }
}

impl Group {
    /// Wraps an async group, with its options.
    pub fn new(group: recipes::Group) -> Self {
        Group(group)
    }

    /// Joins the group, and waits until the member may own keys.
    pub fn join(&self, address: impl Into<String>) -> Result<BlockingMember> {
        wait(self.0.join(address)).map(|member| BlockingMember(Held::new(member)))
    }

    /// Returns the members.
    pub fn members(&self) -> Result<Members> {
        wait(self.0.members())
    }

    /// Creates an observer of the members.
    pub fn observe(&self) -> BlockingMembersObserver {
        BlockingMembersObserver(self.0.observe())
    }
}

options!(Group:
    lease(lease: Duration), renew_every(interval: Duration), margin(margin: Duration),
    label(label: impl Into<String>), on_loss(on_loss: OnLoss), stale_after(time: Duration));

impl Release for recipes::Member {
    fn release(self) -> impl Future<Output = Result<()>> {
        self.leave()
    }
}

impl BlockingMember {
    /// Returns the member that a key belongs to. Waits while another thread of this process owns
    /// the key.
    pub fn route(&self, key: impl AsRef<[u8]>) -> Result<BlockingRoute<'_>> {
        Ok(match wait(self.0.route(key))? {
            Route::Mine(ownership) => BlockingRoute::Mine(BlockingOwnership(ownership)),
            Route::Other(address) => BlockingRoute::Other(address),
        })
    }

    /// Returns the members, including this one.
    pub fn members(&self) -> Result<Members> {
        wait(self.0.members())
    }

    /// Leaves the group, and reports the result.
    pub fn leave(self) -> Result<()> {
        wait(self.0.take().leave())
    }
}

may_be_lost!(BlockingMember, "place");
works!(BlockingOwnership<'_>, "the key is owned");

impl Deref for BlockingMember {
    type Target = recipes::Member;
    fn deref(&self) -> &recipes::Member {
        &self.0
    }
}

impl BlockingOwnership<'_> {
    /// Waits until the key is lost, however long that takes.
    pub fn lost(&self) {
        wait(self.0.lost());
    }
}

impl<'a> Deref for BlockingOwnership<'a> {
    type Target = Ownership<'a>;
    fn deref(&self) -> &Ownership<'a> {
        &self.0
    }
}

impl BlockingMembersObserver {
    /// Sets the poll interval, for stores that do not tell of changes.
    pub fn every(self, every: Duration) -> Self {
        BlockingMembersObserver(self.0.every(every))
    }

    /// Waits for the next change; the first call returns the members at once.
    pub fn next_change(&mut self) -> Result<Members> {
        wait(self.0.next())
    }
}
