//! What a store owes: the contract between a coordination service and everything above it.
//!
//! A store keeps lines of tickets (see [`holdline_kernel`]) and answers one question about them:
//! *let this ticket stand in that line; where does it stand?* Entering, polling and renewing are
//! that one verb, [`Store::enter`], and one round trip; so is [`Store::leave`]. The trait is the
//! minimum that a store must do itself: there are no default methods, and all convenience is
//! elsewhere.
//!
//! # The promises every store makes
//!
//! - **Idempotence.** Every operation may be retried blindly after a time-out, with the same
//!   ticket: the answer to the retry is the answer to "did I get it?".
//! - **The rule.** A ticket is admitted when the weight ahead of it, plus its own, fits the
//!   capacity. Its place number is its fencing token, and rises strictly from holder to holder of a
//!   line, also after the line has been empty.
//! - **Time.** Leases are judged inside the store, by the store's clock. A renewal never shortens a
//!   lease. A ticket that has lapsed is gone: [`Enter::Keep`] answers [`Standing::Lost`], and never
//!   takes a new place.
//! - **Notices.** [`Store::watch`] may return early, and must return soon after a notice that came
//!   at any time since the reply that gave the place; the caller looks again after a bounded time
//!   anyway, so a lost notice costs a little time and never a hang. A departure wakes those whom it
//!   admits, and nobody else; where nobody keeps a place, those who wait.
//! - **Cost.** No operation grows with the number of waiters or holders of its line.
//! - **Cancellation.** Dropping the future of any operation leaves it done or not done, never half
//!   done. The caller follows up with `leave`, through this store or its twin, and its answer is
//!   the end: an `enter` of that ticket that was dropped, and is still on its way, takes no place
//!   after it (unless the network holds it back for longer than the store can remember).
//!
//! What differs between stores is data: [`Capabilities`]. Recipes refuse what a store cannot do,
//! and the conformance suite chooses its cases by it.

use crate::availability::Availability;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::undone::Undone;
pub use holdline_kernel::{BadTicketId, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use std::fmt::{Debug, Write};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A boxed future of a result: what every store operation returns. A box costs nothing beside a
/// network, and keeps stores usable as `dyn Store`.
pub type Async<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Called by a store that has a hint that a ticket is gone, from any thread. It is only a hint: the
/// ticket is renewed at once to find out.
pub type LossHint = Arc<dyn Fn(TicketId) + Send + Sync>;

/// Somewhere that keeps lines of tickets. See the [module](self) for what is owed.
pub trait Store: Debug + Send + Sync + 'static {
    /// Takes, keeps or renews a place in `line`, and says how it stands. One round trip.
    ///
    /// `note` is kept with the place, for people and for followers of a leader; each call that
    /// finds the place replaces it.
    fn enter<'a>(
        &'a self,
        line: &'a Name,
        ticket: &'a Ticket,
        note: &'a Arc<str>,
        how: Enter,
    ) -> Async<'a, Standing>;

    /// Gives a place up, and wakes whomever that admits. Says whether there was a place; none to
    /// give up is fine. One round trip.
    fn leave<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, bool>;

    /// Returns when the standing of a waiting ticket may have changed: of one that asked by
    /// [`Enter::Queue`], also if the store keeps no places. May return early; never returns if the
    /// store promises no [`notifications`](Capabilities::notifications).
    ///
    /// Returns a place if the notice itself says that it was admitted. Only a notice that the
    /// line sent when it admitted that very place does: whoever stands there need not ask.
    /// A place that was admitted is kept for what is left of the ticket's wait lease, from the last
    /// answer about it, until it is renewed.
    fn watch<'a>(&'a self, line: &'a Name, id: TicketId) -> Async<'a, Option<Seq>>;

    /// The whole line, front first: for people, and for following a leader.
    fn snapshot<'a>(&'a self, line: &'a Name) -> Async<'a, QueueSnapshot>;

    /// The names, beginning with `prefix`, of lines that somebody stands in, in order.
    fn list<'a>(&'a self, prefix: &'a str) -> Async<'a, Vec<Name>>;

    /// Removes somebody else's place. Returns a token that is higher than any of that place's, and
    /// no higher than that of anybody behind it (the next place's; a new one if it was the last),
    /// or nothing if there is no such place. `note` says by whom and why, for the one that was
    /// removed: it stands in [`QueueSnapshot::evictions`] from then on.
    fn evict<'a>(&'a self, line: &'a Name, id: TicketId, note: &'a str) -> Async<'a, Option<Seq>>;

    /// What this store can promise.
    fn capabilities(&self) -> Capabilities;

    /// The same store for use on another thread: with connections of its own, if it has
    /// connections.
    fn background_handle(&self) -> Arc<dyn Store>;

    /// Whom to tell of hints that a held ticket is gone. Set once, before the first `enter`.
    fn on_loss_hint(&self, loss_hint: LossHint);

    /// The store's address for messages, as a URL without its password.
    fn address(&self) -> String;
}

/// What a store promises beyond the contract, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "a table of yes and no, read as a table")]
pub struct Capabilities {
    /// Waiters keep their places, first come, first served.
    pub fair_queue: bool,
    /// Tokens rise strictly from holder to holder.
    pub fencing_tokens: bool,
    /// Waiters are told when they are admitted, and need not poll; if they keep no places, when it
    /// is worth trying again.
    pub notifications: bool,
    /// Weights and capacities other than 1: semaphores and read-write locks.
    pub weighted: bool,
    /// A ticket may reserve several tokens, so that a lock can be handed over inside a process.
    pub token_ranges: bool,
    /// A departure and an entry of one process, which come together, are one call: the next task
    /// may enter while the one before it leaves.
    pub swaps: bool,
    /// A holder's crash frees the lock at once, not only after its lease.
    pub crash_release: bool,
    /// Locks are kept when the store fails over to another node.
    pub survives_failover: bool,
    /// Locks are kept when the store restarts.
    pub survives_restart: bool,
    /// The shortest lease.
    pub lease_min: Duration,
    /// The longest lease.
    pub lease_max: Duration,
}

/// One line, as somebody looking at it sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// How much weight it admits; 0 if nobody stands in it.
    pub capacity: u32,
    /// Who stands in it, front first.
    pub places: Vec<QueueEntry>,
    /// Places that were removed by force lately, oldest first. A store keeps the last
    /// [`EVICTIONS_KEPT`] of a line for [`EVICTION_TIME`], also when nobody stands in it any more.
    /// A store that is made of stores has them in the order of most of those that answer.
    pub evictions: Vec<Eviction>,
}

/// One place that was removed by force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The ticket that had the place.
    pub id: TicketId,
    /// By whom and why, as [`Store::evict`] was told.
    pub note: Arc<str>,
}

/// The number of evictions of one line that a store keeps at most.
pub const EVICTIONS_KEPT: usize = 8;
/// The time for which a store keeps an eviction at least, unless it is crowded out by later ones.
pub const EVICTION_TIME: Duration = Duration::from_secs(60);

impl QueueSnapshot {
    /// Those who hold.
    pub fn holders(&self) -> impl Iterator<Item = &QueueEntry> {
        self.places.iter().filter(|place| place.admitted)
    }

    /// Those who wait, next first.
    pub fn waiters(&self) -> impl Iterator<Item = &QueueEntry> {
        self.places.iter().filter(|place| !place.admitted)
    }
}

/// Somebody who stands in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// The ticket.
    pub id: TicketId,
    /// The place in the line: for a holder, the fencing token.
    pub seq: Seq,
    /// How much of the capacity it takes.
    pub weight: u32,
    /// Whether it holds.
    pub admitted: bool,
    /// How long until it lapses, unless it is heard of.
    pub expires_in: Duration,
    /// What its owner said about itself.
    pub note: Arc<str>,
}

/// Turns the kernel's refusal into this library's error.
pub fn refuse(line: &Name, ticket: &Ticket, refusal: Refusal) -> Error {
    let mut message = String::new();
    let _ = match refusal {
        Refusal::Capacity { line: used } => write!(
            message,
            "lock \"{line}\" is in use with capacity {used}, but was asked for with {}; \
             all users of a name must agree (a mutex has 1, a semaphore its permits)",
            ticket.capacity
        ),
        Refusal::Weight => write!(
            message,
            "lock \"{line}\" was asked for with weight {} of {}; it must be at least 1, at most \
             the capacity, and cannot be raised while waiting or holding",
            ticket.weight, ticket.capacity
        ),
        Refusal::Exhausted => write!(
            message,
            "lock \"{line}\" has no fencing tokens left; the store's clock is far in the future, \
             or its counter was tampered with"
        ),
    };
    let kind = match refusal {
        Refusal::Capacity { .. } => ErrorKind::Mismatch,
        Refusal::Weight => ErrorKind::Invalid,
        Refusal::Exhausted => ErrorKind::Corrupt,
    };
    Error::new(kind, message)
}

/// Refuses a lease that the store does not take.
pub(crate) fn check_lease(store: &dyn Store, lease: Duration) -> Result<()> {
    let Capabilities { lease_min, lease_max, .. } = store.capabilities();
    if (lease_min..=lease_max).contains(&lease) {
        return Ok(());
    }
    let message = format!(
        "a lease of {lease:?} is refused: {} takes leases from {lease_min:?} to {lease_max:?}",
        store.address()
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// A store, and the same store for the renewer.
#[derive(Debug)]
pub(crate) struct StoreHandles {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) background: Arc<dyn Store>,
    /// The places that are being given up in the background.
    pub(crate) undone: Undone,
    /// Whether the store answers.
    pub(crate) availability: Availability,
}
