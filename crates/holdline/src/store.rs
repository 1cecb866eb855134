//! The store contract: what a coordination service must provide to everything above it.
//!
//! A store keeps lines of tickets (see [`holdline_kernel`]). Entering, polling and renewing are one
//! operation, [`Store::enter`], and take one round trip; so does [`Store::leave`]. The trait is the
//! minimum that a store must implement: it has no convenience methods, and only
//! [`Store::subscribe`] is optional.
//!
//! # Promises of every store
//!
//! - **Idempotence.** Every operation may be retried blindly after a timeout, with the same ticket:
//!   the answer to the retry is the answer to "did I get it?".
//! - **Admission rule.** A ticket is admitted when the weight ahead of it, plus its own, fits the
//!   capacity. Its place number is its fencing token, and rises strictly from holder to holder of a
//!   line, even if the line was empty in between.
//! - **Time.** Leases expire inside the store, by the store's clock. A renewal never shortens a
//!   lease. An expired ticket is gone: [`Enter::Keep`] answers [`Standing::Lost`], and never takes
//!   a new place.
//! - **Notices.** [`Store::watch`] may return early, and must return soon after any notice sent
//!   since the reply that gave the place. The caller polls after a bounded time anyway, so a lost
//!   notice causes a short delay, never a hang. A departure wakes the waiters that it admits, and
//!   no others; in a store without places, all waiters; from a semaphore in ZooKeeper, those that
//!   watch the place that has left.
//! - **Observers.** [`Store::subscribe`] notifies clients that watch a line without a place in it.
//!   It costs the clients in the line nothing: no message, no round trip. A store that cannot do so
//!   omits it, and observers poll.
//! - **Cost.** No operation's cost grows with the number of waiters or holders of its line; except
//!   in ZooKeeper, whose clients read the list of nodes.
//! - **Cancellation.** Dropping the future of any operation leaves it done or not done, never half
//!   done. The caller follows up with `leave`, through this store or its background handle. After
//!   the reply to that, a dropped `enter` of the same ticket that is still in transit takes no
//!   place (unless the network delays it for longer than the store can remember).
//!
//! Stores differ in their [`Capabilities`], which are data. Recipes refuse what a store cannot do,
//! and the conformance suite selects its cases by them.
//!
//! # Duties of each kind of store
//!
//! - **A queue in the server** applies the rule in a script, a function or a transaction. It must
//!   agree with the kernel's `Line`, step by step on random operations: standings, wake-ups, and
//!   when to ask again. Leases are judged by the server's clock; a token is the last one plus 1, or
//!   that clock in microseconds, whichever is higher. The store keeps the contents of `Head`, so
//!   that no operation walks the line.
//! - **Ephemeral entries, ordered by the server**, end with a session. The client looks at the
//!   entries ahead of its own and applies the kernel's `rule`. The store must prove that the
//!   session was alive when the reply was sent, and until when it will be; it watches the entries
//!   that block, and no others, unless they are many; and after an unknown outcome it finds its
//!   entry by the ticket's id, or removes it.
//! - **A single key** has one holder or none. The store answers `Waiting { seq: None, .. }` to all
//!   others, promises neither a fair queue nor weights, and promises tokens only if a counter
//!   outlives the key. A departure compares the owner, so that it never removes another client's
//!   key.
//!
//! # Custom stores
//!
//! A type that implements [`AsyncStore`] is a [`Store`]: pass it to [`Client::new`]. The modules
//! `stores::queue`, `stores::ephemeral` and `stores::single_key` explain how to start a store of
//! their kind. `examples/src/bin/own_store.rs` is a store of some sixty lines that passes the
//! suite.
//!
//! [`Client::new`]: crate::Client::new

use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
pub use crate::subscription::{Lines, Notifier, Subscription};
use holdline_base::url::show_duration;
pub use holdline_kernel::{BadTicketId, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The boxed future that every store operation returns. The box is cheap compared with a network
/// round trip, and keeps stores usable as `dyn Store`.
pub type Async<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A callback for hints that a ticket is gone. Stores call it from any thread; the ticket is then
/// renewed at once to find out.
pub type LossHint = Arc<dyn Fn(TicketId) + Send + Sync>;

/// A store of lines of tickets. See the [module](self) for the contract.
pub trait Store: Debug + Send + Sync + 'static {
    /// Takes, keeps or renews a place in `line`, and returns its standing. One round trip.
    ///
    /// `note` is stored with the place, for people and for followers of a leader. Each call that
    /// finds the place replaces it.
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing>;

    /// Gives a place up, and wakes the waiters that its departure admits. Returns whether there was
    /// a place; a missing place is no error. One round trip.
    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool>;

    /// Waits for a notice that the standing of a waiting ticket may have changed. The ticket must
    /// have entered by [`Enter::Queue`], even if the store keeps no places. May return early; never
    /// returns if the store has no [`notifications`](Capabilities::notifications).
    ///
    /// Returns a place if the notice proves its admission, because the line sent it on admitting
    /// that very place: the waiter need not ask. An admitted place is kept until it is renewed, for
    /// the rest of the ticket's wait lease, counted from the last reply about it.
    fn watch<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, Option<Seq>>;

    /// The whole line, front first: for people, and for following a leader.
    fn snapshot<'a>(&'a self, line: &'a Name) -> Async<'a, QueueSnapshot>;

    /// The names of all lines that are not empty and begin with `prefix`, in order.
    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>>;

    /// Removes another client's place by force. Returns a token that is higher than any token of
    /// that place, and no higher than that of any place behind it, also of one that comes later
    /// (say, the token of the next place, or a new one if it was the last); `None` if there is no
    /// such place. `note` tells the removed ticket's owner which process did it and why; it is
    /// listed in [`QueueSnapshot::evictions`] from then on.
    fn evict<'a>(&'a self, line: &'a Name, id: TicketId, note: &'a str) -> Async<'a, Option<Seq>>;

    /// Subscribes to changes of lines: places that come, go, are admitted, or change their notes.
    /// May report other changes too, and may miss expiries. Returns at once; the store begins to
    /// listen in the background, and reports when it does. Called within a Tokio runtime, after a
    /// snapshot or list that succeeded.
    ///
    /// The default is for stores that do not notify observers.
    fn subscribe(&self, _lines: &Lines) -> Subscription {
        Subscription::none()
    }

    /// The capabilities of this store.
    fn capabilities(&self) -> Capabilities;

    /// A second handle of the same store for the renewer's thread, with its own connections if the
    /// store has any.
    fn background_handle(&self) -> Arc<dyn Store>;

    /// Sets the callback for hints that a held ticket is gone. Every client of this store calls it
    /// when it is created, always with the same callback.
    fn on_loss_hint(&self, loss_hint: LossHint);

    /// The store's address for messages, as a URL without its password.
    fn address(&self) -> String;
}

/// A store as its author writes it: the operations of [`Store`] as `async fn`s. Every type that
/// implements it is a [`Store`]; the futures are boxed in one place, here.
///
/// The two traits share method names, so do not import both: import this trait where a store is
/// implemented, and [`Store`] where it is used.
pub trait AsyncStore: Debug + Send + Sync + Sized + 'static {
    /// See [`Store::enter`]. The ticket's weight is between 1 and its capacity: other tickets have
    /// already been refused.
    fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> impl Future<Output = Result<Standing>> + Send;

    /// See [`Store::leave`].
    fn leave(&self, line: &Name, id: TicketId) -> impl Future<Output = Result<bool>> + Send;

    /// See [`Store::watch`]. A store without notifications returns [`std::future::pending`].
    fn watch(&self, line: &Name, id: TicketId) -> impl Future<Output = Result<Option<Seq>>> + Send;

    /// See [`Store::snapshot`].
    fn snapshot(&self, line: &Name) -> impl Future<Output = Result<QueueSnapshot>> + Send;

    /// See [`Store::list`].
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Name>>> + Send;

    /// See [`Store::evict`].
    fn evict(
        &self,
        line: &Name,
        id: TicketId,
        note: &str,
    ) -> impl Future<Output = Result<Option<Seq>>> + Send;

    /// See [`Store::subscribe`].
    fn subscribe(&self, _lines: &Lines) -> Subscription {
        Subscription::none()
    }

    /// See [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities;

    /// See [`Store::background_handle`].
    fn background_handle(&self) -> Self;

    /// See [`Store::on_loss_hint`].
    fn on_loss_hint(&self, loss_hint: LossHint);

    /// See [`Store::address`].
    fn address(&self) -> String;
}

impl<S: AsyncStore> Store for S {
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing> {
        if ticket.weight == 0 || ticket.weight > ticket.capacity {
            let error = refuse(line, ticket, Refusal::Weight);
            return Box::pin(std::future::ready(Err(error)));
        }
        Box::pin(AsyncStore::enter(self, line, ticket, note, how))
    }

    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool> {
        Box::pin(AsyncStore::leave(self, line, id))
    }

    fn watch<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, Option<Seq>> {
        Box::pin(AsyncStore::watch(self, line, id))
    }

    fn snapshot<'a>(&'a self, line: &'a Name) -> Async<'a, QueueSnapshot> {
        Box::pin(AsyncStore::snapshot(self, line))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>> {
        Box::pin(AsyncStore::list(self, prefix))
    }

    fn evict<'a>(&'a self, line: &'a Name, id: TicketId, note: &'a str) -> Async<'a, Option<Seq>> {
        Box::pin(AsyncStore::evict(self, line, id, note))
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        AsyncStore::subscribe(self, lines)
    }

    fn capabilities(&self) -> Capabilities {
        AsyncStore::capabilities(self)
    }

    fn background_handle(&self) -> Arc<dyn Store> {
        Arc::new(AsyncStore::background_handle(self))
    }

    fn on_loss_hint(&self, loss_hint: LossHint) {
        AsyncStore::on_loss_hint(self, loss_hint);
    }

    fn address(&self) -> String {
        AsyncStore::address(self)
    }
}

/// The capabilities of a store: what it promises beyond the contract, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "a table of yes and no, read as a table")]
pub struct Capabilities {
    /// Waiters keep their places, first come, first served.
    pub fair_queue: bool,
    /// Tokens rise strictly from holder to holder.
    pub fencing_tokens: bool,
    /// Waiters are notified of their admission, and need not poll; in a store without places, they
    /// are notified when a retry may succeed.
    pub notifications: bool,
    /// Weights and capacities above 1 are supported: semaphores, read-write locks and groups.
    pub weighted: bool,
    /// Read-write locks are supported, though without `weighted` they cannot be downgraded.
    pub read_write: bool,
    /// A ticket may reserve several tokens, for local handoff, and set their lower bound, for a
    /// quorum.
    pub token_ranges: bool,
    /// A holder's crash releases the lock at once, not only when its lease ends.
    pub crash_release: bool,
    /// Locks survive a failover of the store to another node.
    pub survives_failover: bool,
    /// Locks survive a restart of the store.
    pub survives_restart: bool,
    /// The shortest lease.
    pub lease_min: Duration,
    /// The longest lease.
    pub lease_max: Duration,
}

/// A snapshot of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// The line's capacity; 0 if the line is empty.
    pub capacity: u32,
    /// The tickets in the line, front first.
    pub places: Vec<QueueEntry>,
    /// The most recent places removed by force, oldest first. A store keeps the last
    /// [`EVICTIONS_KEPT`] of a line for [`EVICTION_TIME`], even if the line is empty. A store made
    /// of several stores lists them in the order of most of those that answer.
    pub evictions: Vec<Eviction>,
}

/// One place that was removed by force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The ticket that had the place.
    pub id: TicketId,
    /// The note given to [`Store::evict`]: which process removed the place, and why.
    pub note: Arc<str>,
}

/// The capacity of a read-write lock, and the weight of a writer.
pub const READ_WRITE: u32 = 1 << 30;
/// The base capacity of a group's line, to which a group adds its own terms.
pub(crate) const GROUP: u32 = 1 << 28;
/// The highest number of evictions of one line that a store keeps.
pub const EVICTIONS_KEPT: usize = 8;
/// How long a store keeps an eviction, unless later ones replace it.
pub const EVICTION_TIME: Duration = Duration::from_secs(60);

impl QueueSnapshot {
    /// The holders.
    pub fn holders(&self) -> impl Iterator<Item = &QueueEntry> {
        self.places.iter().filter(|place| place.admitted)
    }

    /// The waiters, next first.
    pub fn waiters(&self) -> impl Iterator<Item = &QueueEntry> {
        self.places.iter().filter(|place| !place.admitted)
    }
}

/// A ticket in a line: a holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// The ticket's id.
    pub id: TicketId,
    /// The place number: for a holder, the fencing token.
    pub seq: Seq,
    /// The ticket's weight.
    pub weight: u32,
    /// Whether the ticket is a holder.
    pub admitted: bool,
    /// The time until the place expires, unless it is renewed.
    pub expires_in: Duration,
    /// The owner's note about itself.
    pub note: Arc<str>,
}

/// The kind of a lock with this capacity, in words.
pub fn kind_of(capacity: u32) -> String {
    match capacity {
        1 => "a mutex".to_owned(),
        READ_WRITE => "a read-write lock".to_owned(),
        n if n > GROUP => format!("a group, or a semaphore of {n} permits"),
        n => format!("a semaphore of {n} permits"),
    }
}

/// The error for a lock of this name that others use with another capacity.
pub fn mismatch(line: &Name, used: u32, wanted: u32) -> Error {
    let message = format!(
        "lock \"{line}\" is in use as {}, but was asked for as {}; all users of a name must agree: \
         use another name, or try again when those users have left",
        kind_of(used),
        kind_of(wanted)
    );
    Error::new(ErrorKind::Mismatch, message)
}

/// Converts a refusal of the kernel's into an error.
pub fn refuse(line: &Name, ticket: &Ticket, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Capacity { line: used } => mismatch(line, used, ticket.capacity),
        Refusal::Weight => {
            let message = format!(
                "lock \"{line}\" was asked for with weight {} of {}; it must be at least 1, at \
                 most the capacity, and cannot be raised while waiting or holding",
                ticket.weight, ticket.capacity
            );
            Error::new(ErrorKind::Invalid, message)
        }
        Refusal::Exhausted => {
            let message = format!(
                "lock \"{line}\" has no fencing tokens left; the store's clock is far in the \
                 future, or its counter was tampered with"
            );
            Error::new(ErrorKind::Corrupt, message)
        }
    }
}

/// Refuses locks of a capacity that the store does not promise.
pub(crate) fn check_capacity(store: &dyn Store, capacity: u32) -> Result<()> {
    let Capabilities { weighted, read_write, .. } = store.capabilities();
    let (is_promised, kind) = match capacity {
        1 => (true, "mutexes"),
        READ_WRITE => (read_write, "read-write locks"),
        _ => (weighted, "semaphores and groups"),
    };
    if is_promised { Ok(()) } else { Err(unsupported(store, kind)) }
}

/// The error for what a store does not promise.
pub(crate) fn unsupported(store: &dyn Store, what: &str) -> Error {
    let message = format!(
        "{} does not promise {what}; choose another store, or, if its URL has a scheme= option, \
         leave that out",
        store.address()
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Refuses a lease outside the store's limits.
pub(crate) fn check_lease(store: &dyn Store, lease: Duration) -> Result<()> {
    let Capabilities { lease_min, lease_max, .. } = store.capabilities();
    if (lease_min..=lease_max).contains(&lease) {
        return Ok(());
    }
    let message = format!(
        "a lease of {} is refused: {} takes leases from {} to {}",
        show_duration(lease),
        store.address(),
        show_duration(lease_min),
        show_duration(lease_max)
    );
    Err(Error::new(ErrorKind::Invalid, message))
}
