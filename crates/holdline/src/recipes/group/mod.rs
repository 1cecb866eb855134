//! The group: one process responsible for each key.
//!
//! `rendezvous.rs` is the hash; `members.rs` a snapshot of the members; `claims.rs` decides what a
//! member may claim; `member.rs` queries the store; `local_locks.rs` admits one task at a time to
//! each key.

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
use crate::metrics::Recipe;
use crate::options::{Options, holding_methods};
use std::time::Duration;

/// A group of processes that divide keys among themselves. Each key belongs to one member at a
/// time, and each member knows which keys are its own, without a request to the store per key. So
/// one process serves all requests about a key, and needs no more than a local lock.
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
/// # Guarantees
///
/// A key never has two owners at a time: no two [`Ownership`]s of one key are
/// [valid](Ownership::is_valid) at once, under the assumptions of a mutex. An ownership is lost
/// when its member loses its place, when the key moves to a member that has joined, or when the
/// store has not been seen for [`stale_after`](Group::stale_after); work in
/// [`protect`](Ownership::protect) is then stopped. As with any lease, a process can be paused
/// between its last look at the clock and its next write. The [token](Ownership::token), the
/// member's *epoch*, protects against that: it is higher than that of every earlier owner of the
/// key, so have the target of writes check it, as with a mutex (see [`Fence`](crate::Fence)).
///
/// # Costs
///
/// No request per key: a member queries the store only when it is asked about a key and its last
/// snapshot of the members is older than a quarter of [`stale_after`](Group::stale_after). In
/// return, some keys briefly have no owner: those of a crashed member for the rest of its
/// [`lease`](Group::lease), those of a joining member for `stale_after`, and all while the store is
/// unavailable. A mutex in the same store could not be acquired either while the store is
/// unavailable or its holder has crashed.
#[derive(Clone, Debug)]
pub struct Group {
    client: Client,
    name: String,
    options: Options,
    stale_after: Duration,
}

/// An observer of a group's changes. Created by [`Group::observe`].
#[derive(Debug)]
pub struct MembersObserver {
    group: Group,
    every: Duration,
    changes: Option<Changes>,
    last: Option<Members>,
}

/// The default time for which a snapshot of the members is valid.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// The shortest and the longest such time.
const STALE_AFTER_RANGE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(24 * 60 * 60));
/// The base capacity of a group's line. The milliseconds of `stale_after` are added to it: all
/// users of a line must agree on its capacity, so members that disagree about `stale_after` are
/// refused. It exceeds any number of members.
const CAPACITY: u32 = crate::store::GROUP;
/// The default poll interval of an observer.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Group {
    /// Creates a handle of the group of this name.
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().to_owned();
        let options = Options::new(Recipe::Group);
        Group { client: client.clone(), name, options, stale_after: STALE_AFTER }
    }

    holding_methods!();

    /// Sets how long a snapshot of the members is valid: 100 ms to 24 h. Default: 3 s. All members
    /// must agree on it.
    ///
    /// Members that are asked about keys query the store four times as often. An outage of the
    /// store longer than this leaves all keys without owners; and the keys of a joining member have
    /// no owner for this long, as other members may not have seen it yet.
    pub fn stale_after(mut self, time: Duration) -> Self {
        self.stale_after = time;
        self
    }

    /// Joins the group. `address` is where others reach this process. Returns when this member may
    /// own keys: at once if it is alone, otherwise after [`stale_after`](Group::stale_after).
    /// Others see it, and send it requests, from the beginning.
    ///
    /// Of two members with the same address, the later one owns the keys: it is taken for a restart
    /// of the earlier one.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) if the store has no semaphores or no fencing tokens;
    /// [`Mismatch`](ErrorKind::Mismatch) if others use another `stale_after`, or use the name for
    /// another kind of lock; [`Invalid`](ErrorKind::Invalid) for an invalid name, address or
    /// option; [`Lost`](ErrorKind::Lost) if the place was lost while joining; otherwise as
    /// [`Mutex::lock`](crate::Mutex::lock), but an outage of the store is waited out only while the
    /// place is asked for, not while the members are looked at, before and after that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the group in the background.
    pub async fn join(&self, address: impl Into<String>) -> Result<Member> {
        Box::pin(Member::join(self, address.into())).await
    }

    /// Queries the store for the members, for a process that is not one itself, such as a load
    /// balancer or a client.
    ///
    /// # Errors
    ///
    /// As [`Client::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn members(&self) -> Result<Members> {
        Ok(Members::seen(&self.client.inspect(&self.name).await?))
    }

    /// Creates an observer of the members. It listens if the store reports changes, and polls every
    /// half second otherwise: see [`Changes::next`].
    pub fn observe(&self) -> MembersObserver {
        MembersObserver { group: self.clone(), every: POLL_INTERVAL, changes: None, last: None }
    }

    /// The capacity of the group's line.
    fn capacity(&self) -> Result<u32> {
        let (shortest, longest) = STALE_AFTER_RANGE;
        if !(shortest..=longest).contains(&self.stale_after) {
            let message = format!(
                "the `stale_after` of group \"{}\" cannot be {:?}; use {shortest:?} to \
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
    /// Sets the poll interval, used if the store does not report changes. Default: 500 ms.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(Duration::from_millis(10));
        self
    }

    /// Waits for the next change of the members. The first call returns them at once; later calls
    /// return when a member has joined, left or restarted. A change that is undone between two
    /// polls is not seen. Waits out an outage of the store, up to the client's
    /// [`outage`](Client::outage) limit.
    ///
    /// # Errors
    ///
    /// An error means that the store could not be asked; the next call asks again.
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
