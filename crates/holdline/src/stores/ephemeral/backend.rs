//! The backend: what a store of ephemeral entries provides to the engine.

use super::table::Table;
use super::ticket::{Entry, TicketRecord};
use crate::error::{Error, Result};
use crate::names::Name;
use crate::store::{Enter, Refusal, Seq, Standing, Ticket, TicketId, refuse};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

/// The longest time before a waiter asks again without a notice.
const AGAIN: Duration = Duration::from_secs(2);

/// One request to acquire or keep a place.
pub(super) struct Request<'a> {
    pub(super) line: &'a Name,
    pub(super) ticket: &'a Ticket,
    pub(super) note: &'a Arc<str>,
    pub(super) how: Enter,
    /// When the request was made.
    pub(super) began: Time,
    /// The time limit of each step, as [`Backend::limit`] sets it.
    pub(super) limit: Duration,
}

impl Request<'_> {
    pub(super) fn refuse(&self, refusal: Refusal) -> Error {
        refuse(self.line, self.ticket, refusal)
    }

    /// Refuses the ticket if any capacity known in its line differs from its own.
    pub(super) fn check_capacity(&self, told: impl IntoIterator<Item = u32>) -> Result<()> {
        match told.into_iter().find(|capacity| *capacity != self.ticket.capacity) {
            Some(line) => Err(self.refuse(Refusal::Capacity { line })),
            None => Ok(()),
        }
    }

    pub(super) fn waiting(&self, seq: Option<Seq>) -> Standing {
        let again = (self.ticket.wait_lease / 3).clamp(Duration::from_millis(2), AGAIN);
        Standing::Waiting { seq, again }
    }
}

/// The outcome of an attempt to write an entry.
pub(super) enum Joined<E: Entry> {
    /// The entry exists, and the record has what is ahead of it.
    There(Arc<TicketRecord<E>>),
    /// There is no entry.
    Not(Standing),
}

/// A request whose ticket has a record.
pub(super) struct Attempt<'a, B: Backend> {
    pub(super) store: &'a Arc<B>,
    pub(super) request: &'a Request<'a>,
    pub(super) record: &'a Record<B>,
    /// The number of missed changes before the request was sent.
    pub(super) missed: u64,
}

impl<'a, B: Backend> Attempt<'a, B> {
    pub(super) fn new(store: &'a Arc<B>, request: &'a Request<'a>, record: &'a Record<B>) -> Self {
        Attempt { store, request, record, missed: record.place().missed() }
    }

    /// Removes an entry that should not have been written.
    pub(super) async fn take_back(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = self;
        record.leave();
        store.remove(record, request.limit).await?;
        store.table().forget(record);
        Ok(())
    }
}

pub(super) type Record<B> = Arc<TicketRecord<<B as Backend>::Entry>>;

/// A store of ephemeral entries.
pub(super) trait Backend:
    Acquire<Self::Entry> + Renew<Self::Entry> + Release<Self::Entry>
{
    type Entry: Entry;

    fn table(&self) -> &Table<Self::Entry>;

    /// Runs a task in the background.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// The time limit of one step of a request for a lock with this lease.
    fn limit(lease: Duration) -> Duration;

    /// Maintains a ticket whose entry exists. Returns when to do so again, at the latest.
    fn look_after(self: &Arc<Self>, record: &Record<Self>, now: Time) -> Time;

    /// Maintains the store's other state. Returns whether there is none.
    fn look_around(self: &Arc<Self>, now: Time) -> bool;

    /// Arranges for the ticket's `news` to be notified when the entries ahead of it change.
    fn watch_ahead(self: &Arc<Self>, record: &Record<Self>);
}

/// The requests that acquire a place.
pub(super) trait Acquire<E: Entry>: Send + Sync + Sized + 'static {
    /// Tries to write an entry, as far as the request allows.
    fn join(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Joined<E>>> + Send;
}

/// The requests about an existing entry.
pub(super) trait Renew<E: Entry>: Send + Sync + Sized + 'static {
    /// Writes what the request changes. `false` if the entry no longer exists.
    fn update(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Whether a loss of the entry would be noticed without asking.
    fn is_watched(record: &Arc<TicketRecord<E>>) -> bool;

    /// Asks whether the entry exists.
    fn is_there(
        &self,
        record: &Arc<TicketRecord<E>>,
        limit: Duration,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Asks for the standing of a waiting ticket, unless it is known.
    fn ask_again(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the session is certain to keep the entry until `until`. `false` if the entry is
    /// lost.
    fn confirm(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
        until: Time,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Records that the servers have left a request unanswered, and sends a heartbeat.
    fn doubt(&self, record: &Arc<TicketRecord<E>>);

    /// Waits while the servers leave requests or heartbeats of the session unanswered.
    fn answers(&self, record: &Arc<TicketRecord<E>>) -> impl Future<Output = ()> + Send;
}

/// The requests that remove an entry. Each returns whether the entry existed; after either answer
/// the entry does not exist, and will not be created late.
pub(super) trait Release<E: Entry>: Send + Sync + Sized + 'static {
    /// Removes the entry of a ticket that its owner gives up.
    fn give_up(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        limit: Duration,
    ) -> impl Future<Output = Result<bool>> + Send {
        self.remove(record, limit)
    }

    /// Removes the entry of a ticket.
    fn remove(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        limit: Duration,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Leaves an entry to the end of its session, because the servers refuse to remove it. `false`
    /// if the session does not end before the store is dropped.
    fn leave_to_session(&self, _record: &Arc<TicketRecord<E>>) -> bool {
        false
    }

    /// Removes the entry of a ticket that this process does not know, or no longer knows.
    fn remove_unknown(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
    ) -> impl Future<Output = Result<bool>> + Send;
}
