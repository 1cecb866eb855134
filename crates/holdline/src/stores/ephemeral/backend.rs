//! What a store of ephemeral entries supplies to the engine.

use super::table::Table;
use super::ticket::{Entry, Leaving, TicketRecord};
use crate::error::{Error, Result};
use crate::names::Name;
use crate::store::{Enter, Refusal, Seq, Standing, Ticket, TicketId, refuse};
use holdline_kernel::Time;
use std::sync::Arc;
use std::time::Duration;

/// The longest time after which a waiter asks again, even if nothing wakes it.
const AGAIN: Duration = Duration::from_secs(2);

/// One request to acquire or to keep a place.
pub(super) struct Request<'a> {
    pub(super) line: &'a Name,
    pub(super) ticket: &'a Ticket,
    pub(super) note: &'a Arc<str>,
    pub(super) how: Enter,
    /// The time at which it was made.
    pub(super) began: Time,
    /// The time limit of each step, as [`Backend::limit`] sets it.
    pub(super) limit: Duration,
}

impl Request<'_> {
    pub(super) fn refuse(&self, refusal: Refusal) -> Error {
        refuse(self.line, self.ticket, refusal)
    }

    /// Refuses the ticket unless all in its line that tell the capacity agree with it.
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

/// The outcome of an attempt to get an entry written.
pub(super) enum Joined<E: Entry> {
    /// The entry is there, and what is ahead of it is in the record.
    There(Arc<TicketRecord<E>>),
    /// There is no entry.
    Not(Standing),
}

/// A request whose ticket has a record.
pub(super) struct Attempt<'a, B: Backend> {
    pub(super) store: &'a Arc<B>,
    pub(super) request: &'a Request<'a>,
    pub(super) record: &'a Record<B>,
    /// How many times changes had been missed before the store was asked.
    pub(super) missed: u64,
}

impl<'a, B: Backend> Attempt<'a, B> {
    pub(super) fn new(store: &'a Arc<B>, request: &'a Request<'a>, record: &'a Record<B>) -> Self {
        Attempt { store, request, record, missed: record.place().missed() }
    }

    /// Removes an entry that should not have been written.
    pub(super) async fn take_back(&self) -> Result<()> {
        let Attempt { store, request, record, .. } = self;
        let leaving = Leaving::new(record);
        store.remove(record, request.limit).await?;
        store.table().forget(record);
        leaving.done();
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

    /// The time limit of one step of a request for a lock of this lease.
    fn limit(lease: Duration) -> Duration;

    /// Looks after a ticket whose entry is there. Returns when to do so again, at the latest.
    fn look_after(self: &Arc<Self>, record: &Record<Self>, now: Time) -> Time;

    /// Looks after what else the store has. Returns whether there is nothing.
    fn look_around(self: &Arc<Self>, now: Time) -> bool;

    /// Has the ticket's `news` notified when those ahead of it change.
    fn watch_ahead(self: &Arc<Self>, record: &Record<Self>);
}

/// The requests that acquire a place.
pub(super) trait Acquire<E: Entry>: Send + Sync + Sized + 'static {
    /// Gets an entry written, as far as the request allows.
    fn join(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Joined<E>>> + Send;
}

/// The requests about an entry that is there.
pub(super) trait Renew<E: Entry>: Send + Sync + Sized + 'static {
    /// Writes what the request changes. `false` if the entry is not there any more.
    fn update(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Whether the loss of the entry would be noticed without asking.
    fn is_watched(record: &Arc<TicketRecord<E>>) -> bool;

    /// Asks whether the entry is there.
    fn is_there(
        &self,
        record: &Arc<TicketRecord<E>>,
        limit: Duration,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Asks how a waiting ticket stands, as far as that is not known.
    fn ask_again(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the session is sure to keep the entry until then. `false` if the entry is lost.
    fn confirm(
        self: &Arc<Self>,
        record: &Arc<TicketRecord<E>>,
        request: &Request<'_>,
        until: Time,
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// The requests that remove an entry. Each returns whether the entry was there; once it has said
/// either, the entry is not there any more, and will not come.
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

    /// Removes the entry of a ticket that is not of this process, or not any more.
    fn remove_unknown(
        self: &Arc<Self>,
        line: &Name,
        id: TicketId,
    ) -> impl Future<Output = Result<bool>> + Send;
}
