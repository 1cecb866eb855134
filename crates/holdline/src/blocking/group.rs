//! Groups, for threads.

use super::{Client, wait};
use crate::error::{Error, Result};
use crate::recipes::{self, Members, Ownership, Route};
use crate::{Loss, MembersObserver};
use std::ops::Deref;
use std::time::Duration;

/// One process for each key. See [`holdline::Group`](crate::Group).
#[derive(Clone, Debug)]
pub struct Group(recipes::Group);

/// Being a member. See [`Member`](crate::Member).
#[derive(Debug)]
#[must_use = "dropping the member at once leaves the group at once"]
pub struct BlockingMember(recipes::Member);

/// Where a key belongs. See [`Route`].
#[derive(Debug)]
pub enum BlockingRoute<'a> {
    /// To this member, and no other thread of this process has it.
    Mine(BlockingOwnership<'a>),
    /// To the member at this address.
    Other(String),
}

/// Being responsible for a key. See [`Ownership`].
#[derive(Debug)]
pub struct BlockingOwnership<'a>(Ownership<'a>);

/// A follower of a group's changes. See [`MembersObserver`].
#[derive(Debug)]
pub struct BlockingMembersObserver(MembersObserver);

impl Client {
    /// The group of this name.
    pub fn group(&self, name: impl AsRef<str>) -> Group {
        Group(recipes::Group::new(&self.0, name))
    }
}

impl Group {
    /// The blocking side of an async group, with the options that it was given.
    pub fn new(group: recipes::Group) -> Self {
        Group(group)
    }

    /// Joins, and waits until the member may own keys.
    pub fn join(&self, address: impl Into<String>) -> Result<BlockingMember> {
        wait(self.0.join(address)).map(BlockingMember)
    }

    /// The members.
    pub fn members(&self) -> Result<Members> {
        wait(self.0.members())
    }

    /// A follower of the group's changes.
    pub fn observe(&self) -> BlockingMembersObserver {
        BlockingMembersObserver(self.0.observe())
    }
}

impl BlockingMember {
    /// Where a key belongs. Waits while another thread of this process has it.
    pub fn route(&self, key: impl AsRef<[u8]>) -> Result<BlockingRoute<'_>> {
        Ok(match wait(self.0.route(key))? {
            Route::Mine(ownership) => BlockingRoute::Mine(BlockingOwnership(ownership)),
            Route::Other(address) => BlockingRoute::Other(address),
        })
    }

    /// The members, this one among them.
    pub fn members(&self) -> Result<Members> {
        wait(self.0.members())
    }

    /// Leaves, and says how that went.
    pub fn leave(self) -> Result<()> {
        wait(self.0.leave())
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
