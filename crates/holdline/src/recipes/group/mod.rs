//! The group: one process responsible for each key.
//!
//! `rendezvous.rs` is the hash; `members.rs` one look at the members; `claims.rs` decides what a
//! member may claim; `member.rs` asks the store; `local_locks.rs` lets one task at a time have a
//! key.

mod claims;
mod local_locks;
mod member;
mod members;
mod rendezvous;
#[cfg(test)]
mod simulation;

pub use member::{Member, Ownership, Route};
pub use members::Members;

use crate::changes::Changes;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Options, holding_methods};
use std::time::Duration;

/// A group of processes that share out keys: each key belongs to one member at a time, and each
/// member knows which keys are its own, without a request to the store for each. So requests about
/// one key are served by one process, which needs no more than a lock of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdline::Result<()> {
/// use holdline::{Group, Route};
/// let client = holdline::open("memory:").await?;
/// let member = Group::new(&client, "orders").join("10.0.0.1:8080").await?;
///
/// match member.route("order-17").await? {
///     // Ours, and no other task of this process has it: the lock is local.
///     Route::Mine(order) => {
///         let paid = order.protect(async { "paid" }).await?;
/// #       assert_eq!(paid, "paid");
///     }
///     // Another's: send the request there, or tell the caller to.
///     Route::Other(address) => println!("ask {address}"),
/// }
/// member.leave().await?;
/// # Ok(()) }
/// ```
///
/// # What it promises
///
/// A key never has two owners at a time: two [`Ownership`]s of one key whose
/// [`is_valid`](Ownership::is_valid) is true do not exist at once, under the assumptions of a
/// mutex. An ownership is lost when its member loses its place, when the key moves to a member that
/// has joined, and when the store has not been seen for [`stale_after`](Group::stale_after); work
/// in [`protect`](Ownership::protect) is stopped then. As with any lease, a process can be stopped
/// between its last look at the clock and its next write. Against that helps the
/// [token](Ownership::token), the member's *epoch*: it is higher than that of every earlier owner
/// of the key, so what is written checks it, as with a mutex (see [`Fence`](crate::Fence)).
///
/// # What it costs
///
/// Nothing for each key or request: a member looks at the store when it is asked about a key and
/// its last look is older than a quarter of [`stale_after`](Group::stale_after). In return, some
/// keys have no owner for a moment: those of a member that crashed for the rest of its
/// [`lease`](Group::lease), those of one that joins for `stale_after`, and all while the store is
/// away. A mutex in the same store cannot be had either while the store is away, or its holder
/// crashed.
#[derive(Clone, Debug)]
pub struct Group {
    client: Client,
    name: String,
    options: Options,
    stale_after: Duration,
}

/// A follower of a group's changes. Made by [`Group::observe`].
#[derive(Debug)]
pub struct MembersObserver {
    group: Group,
    every: Duration,
    changes: Option<Changes>,
    last: Option<Members>,
}

/// How long a look at the members is relied on, unless told otherwise.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// What it can be.
const STALE_AFTER_RANGE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(24 * 60 * 60));
/// The capacity of a group's line, to which the milliseconds of `stale_after` are added. So all
/// members fit, and those that disagree about `stale_after` are refused: all users of a line must
/// agree on its capacity.
const CAPACITY: u32 = 1 << 28;
/// The default poll interval of an observer.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Group {
    /// The group of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        let options = Options::default();
        Group { client: client.clone(), name, options, stale_after: STALE_AFTER }
    }

    holding_methods!();

    /// How long a member relies on one look at the others. Default: 3 s. All members must agree
    /// on it.
    ///
    /// A member looks four times as often, if it is asked about keys. For so long a store may be
    /// away before members own nothing; and for so long the keys of a member that joins have no
    /// owner, as the others may not have seen it yet.
    pub fn stale_after(mut self, time: Duration) -> Self {
        self.stale_after = time;
        self
    }

    /// Joins, with the address by which others reach this process. Returns when this member may own
    /// keys: at once if it is alone, else after [`stale_after`](Group::stale_after). Others see it,
    /// and send it requests, from the beginning.
    ///
    /// Two members that give the same address are taken for one that was started again: the later
    /// one has the keys.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) if the store has no semaphores or no fencing tokens;
    /// [`Mismatch`](ErrorKind::Mismatch) if others use another `stale_after`, or use the name for
    /// another kind of lock; [`Invalid`](ErrorKind::Invalid) if the name, the address or an option
    /// is; [`Lost`](ErrorKind::Lost) if the place was lost again in between; otherwise as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the group, in the background.
    pub async fn join(&self, address: impl Into<String>) -> Result<Member> {
        Box::pin(Member::join(self, address.into())).await
    }

    /// The members, for a process that is none: a balancer, a client. It asks the store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn members(&self) -> Result<Members> {
        Ok(Members::seen(&self.client.inspect(&self.name).await?))
    }

    /// An observer of the members. It listens where the store tells of changes, and polls every
    /// half second otherwise: see [`Changes::next`].
    pub fn observe(&self) -> MembersObserver {
        MembersObserver { group: self.clone(), every: POLL_INTERVAL, changes: None, last: None }
    }

    /// The capacity of the line.
    fn capacity(&self) -> Result<u32> {
        let (shortest, longest) = STALE_AFTER_RANGE;
        if !(shortest..=longest).contains(&self.stale_after) {
            let message = format!(
                "a look at group \"{}\" cannot be relied on for {:?}; give {shortest:?} to \
                 {longest:?}",
                self.name, self.stale_after
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !self.client.capabilities().fencing_tokens {
            let message = format!("{} has no tokens; choose another store", self.client.address());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(CAPACITY + u32::try_from(self.stale_after.as_millis()).unwrap_or(u32::MAX / 4))
    }
}

impl MembersObserver {
    /// Sets the poll interval, for stores that do not tell of changes.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(Duration::from_millis(10));
        self
    }

    /// The members after the next change: the first call returns them at once, later ones when
    /// somebody has joined, left, or been started again. Changes that are undone between two looks
    /// are not seen. An outage of the store is ridden out for as long as the client's
    /// [`outage`](Client::outage) allows.
    ///
    /// # Errors
    ///
    /// The store could not be asked; the next call asks again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Members> {
        let Group { client, name, .. } = &self.group;
        let changed = |info| {
            let members = Members::seen(&info);
            let before = self.last.replace(members.clone());
            (before.as_ref() != Some(&members)).then_some(members)
        };
        client.inspect_until(name, (self.every, &mut self.changes), changed).await
    }
}
