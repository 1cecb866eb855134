//! The flows that stores of ephemeral entries have in common: to acquire, renew and release a
//! place, and to look after the places that there are.
//!
//! Most renewals are answered without asking the servers. That a lock is still held follows from
//! two facts that are known here anyway: the session lasts (its heartbeats), and the entry was not
//! removed (the watch over it).

use super::table::Table;
use super::ticket::{Entry, Leaving, State, TicketRecord, token};
use crate::clock;
use crate::error::{Error, Result};
use crate::names::Name;
use crate::store::{Enter, QueueEntry, Refusal, Seq, Standing, Ticket, TicketId, refuse};
use crate::stores::runtime::Background;
use holdline_kernel::{Time, rule};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two ticks of the janitor.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// The pauses between tries to remove a lapsed entry.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// The time limit of such a try.
const SWEEP: Duration = Duration::from_secs(1);
/// The longest time after which a waiter asks again, even if nothing wakes it.
const AGAIN: Duration = Duration::from_secs(2);

/// One request to acquire or to keep a place.
pub(super) struct Request<'a> {
    pub(super) line: &'a Name,
    pub(super) ticket: &'a Ticket,
    pub(super) note: &'a Arc<str>,
    pub(super) how: Enter,
    /// The time limit of each step, as [`Backend::limit`] sets it.
    pub(super) limit: Duration,
}

impl Request<'_> {
    pub(super) fn refuse(&self, refusal: Refusal) -> Error {
        refuse(self.line, self.ticket, refusal)
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

type Record<B> = Arc<TicketRecord<<B as Backend>::Entry>>;

/// A store of ephemeral entries.
pub(super) trait Backend:
    Acquire<Self::Entry> + Renew<Self::Entry> + Release<Self::Entry>
{
    type Entry: Entry;

    fn table(&self) -> &Table<Self::Entry>;

    /// The runtime of all stores of this kind.
    fn background() -> &'static Background;

    /// The time limit of one step of a request for a lock of this lease.
    fn limit(lease: Duration) -> Duration;

    /// Looks after a ticket whose entry is there. Returns when to do so again, at the latest.
    fn look_after(self: &Arc<Self>, record: &Record<Self>, now: Time) -> Time;

    /// Looks after what else the store has. Returns whether there is nothing.
    fn look_around(self: &Arc<Self>, now: Time) -> bool;

    /// Has the ticket's `news` notified when those ahead of it change.
    fn watch_ahead(&self, record: &Record<Self>);
}

/// The requests that acquire a place.
pub(super) trait Acquire<E: Entry>: Send + Sync + Sized + 'static {
    /// Gets an entry written, as far as the request allows.
    fn join(
        self: &Arc<Self>,
        request: &Request<'_>,
        began: Time,
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

/// Serves [`Store::enter`](crate::store::Store::enter).
pub(super) async fn enter<B: Backend>(
    store: &Arc<B>,
    (line, ticket): (&Name, &Ticket),
    note: &Arc<str>,
    how: Enter,
) -> Result<Standing> {
    let began = clock::now();
    let request = Request { line, ticket, note, how, limit: B::limit(ticket.lease) };
    if ticket.weight == 0 || ticket.weight > ticket.capacity {
        return Err(request.refuse(Refusal::Weight));
    }
    match (store.table().find(ticket.id), how) {
        (Some(record), _) if record.place().create != 0 => {
            keep(store, &record, &request, began).await
        }
        (_, Enter::Keep(_)) => Ok(Standing::Lost),
        (_, Enter::Try | Enter::Queue) => {
            store.table().entered.insert(ticket.id);
            match store.join(&request, began).await? {
                Joined::There(record) => standing(store, &record, &request, began, true).await,
                Joined::Not(standing) => Ok(standing),
            }
        }
    }
}

/// Keeps a place that is there: polls or renews it.
async fn keep<B: Backend>(
    store: &Arc<B>,
    record: &Record<B>,
    request: &Request<'_>,
    began: Time,
) -> Result<Standing> {
    let ticket = request.ticket;
    if !record.is_kept(ticket, request.how, began)? {
        return Ok(Standing::Lost);
    }
    if !store.update(record, request).await? {
        record.lose(&store.table().loss);
        return Ok(Standing::Lost);
    }
    let watched = B::is_watched(record);
    let (held, unsure) = {
        let mut place = record.place();
        // A request with a new length of lease is to be answered by the store.
        let asks = std::mem::replace(&mut place.lease, ticket.lease) != ticket.lease;
        (place.was_held(), place.unsure || asks || !watched)
    };
    if !held {
        store.ask_again(record, request).await?;
    } else if unsure {
        if store.is_there(record, request.limit).await? {
            record.place().unsure = false;
        } else {
            record.lose(&store.table().loss);
        }
    }
    standing(store, record, request, began, false).await
}

/// The standing by what the record says, once the session is sure to last.
async fn standing<B: Backend>(
    store: &Arc<B>,
    record: &Record<B>,
    request: &Request<'_>,
    began: Time,
    new: bool,
) -> Result<Standing> {
    let ticket = request.ticket;
    let Some(stands) = record.stand(ticket, began, new) else { return Ok(Standing::Lost) };
    if new || stands.fresh {
        store.table().look_soon(ticket.id);
    }
    if !store.update(record, request).await? {
        record.lose(&store.table().loss);
        return Ok(Standing::Lost);
    }
    if !stands.held {
        return Ok(request.waiting(Some(stands.seq)));
    }
    let good = store.confirm(record, request, began.after(ticket.lease)).await?;
    if !good || record.place().is_gone() {
        return Ok(Standing::Lost);
    }
    Ok(Standing::Admitted(stands.seq))
}

/// Serves [`Store::leave`](crate::store::Store::leave).
pub(super) async fn leave<B: Backend>(store: &Arc<B>, line: &Name, id: TicketId) -> Result<bool> {
    let Some(record) = store.table().find(id) else {
        // A ticket that asked for a place here, and has no record, has no entry.
        if store.table().entered.remove(id) {
            return Ok(false);
        }
        return store.remove_unknown(line, id).await;
    };
    let leaving = Leaving::new(&record);
    let limit = B::limit(record.place().lease);
    let removed = store.give_up(&record, limit).await?;
    let was_there = removed && !record.place().is_gone();
    store.table().forget(&record);
    store.table().entered.remove(id);
    leaving.done();
    Ok(was_there)
}

/// Removes an entry that should not have been written.
pub(super) async fn take_back<B: Backend>(
    store: &Arc<B>,
    record: &Record<B>,
    limit: Duration,
) -> Result<()> {
    let leaving = Leaving::new(record);
    store.remove(record, limit).await?;
    store.table().forget(record);
    leaving.done();
    Ok(())
}

/// Serves [`Store::watch`](crate::store::Store::watch).
pub(super) async fn watch<B: Backend>(store: &Arc<B>, id: TicketId) {
    // A ticket that is not known is to be asked about, not waited for.
    let Some(record) = store.table().find(id) else { return };
    store.watch_ahead(&record);
    record.news.notified().await;
}

/// What a look at a line shows of one entry.
pub(super) struct Seen {
    pub(super) id: TicketId,
    pub(super) create: i64,
    pub(super) weight: u32,
    /// The time that its owner has left, by what the store says.
    pub(super) expires_in: Duration,
    pub(super) note: Arc<str>,
}

/// The entries of a line, front first, with those marked that are admitted.
pub(super) fn places<E: Entry>(
    table: &Table<E>,
    capacity: u32,
    seen: impl IntoIterator<Item = Seen>,
) -> Vec<QueueEntry> {
    let (now, mut ahead) = (clock::now(), 0);
    let entries = seen.into_iter().map(|seen| {
        let Seen { id, create, weight, expires_in, note } = seen;
        let admitted = weight > 0 && rule::fits(ahead, weight, capacity);
        ahead += u64::from(weight);
        let expires_in = table.find(id).map_or(expires_in, |own| now.until(own.place().due));
        QueueEntry { id, seq: token(create), weight, admitted, expires_in, note }
    });
    entries.collect()
}

/// Starts the janitor, which works until the store is dropped.
pub(super) fn start_janitor<B: Backend>(store: &Arc<B>) {
    let (weak, nudge) = (Arc::downgrade(store), Arc::clone(&store.table().nudge));
    B::background().spawn(async move {
        loop {
            {
                let Some(store) = weak.upgrade() else { return };
                if tick(&store) {
                    drop(store);
                    nudge.notified().await;
                    continue;
                }
            }
            clock::pause(TICK).await;
        }
    });
}

/// Looks after what is to be looked after now. Returns whether there is nothing at all.
fn tick<B: Backend>(store: &Arc<B>) -> bool {
    let (now, table) = (clock::now(), store.table());
    for record in table.due(now) {
        if record.lapse(now, &table.loss) {
            table.lapsed.insert(record.id);
            B::background().spawn(sweep(Arc::downgrade(store), record));
            continue;
        }
        let (state, due) = {
            let place = record.place();
            (place.state, place.due)
        };
        let next = match state {
            State::Waiting | State::Held => store.look_after(&record, now).min(due),
            State::New | State::Leaving { .. } => now, // it may change at any moment
            State::Gone { .. } | State::Lapsed => due,
        };
        table.look_at(record.id, next);
    }
    let nothing_else = store.look_around(now);
    table.is_empty() && nothing_else
}

/// Removes the entry of a ticket that has lapsed, however long that takes.
pub(super) async fn sweep<B: Backend>(store: Weak<B>, record: Record<B>) {
    let mut pause = PAUSES.0;
    while let Some(store) = store.upgrade() {
        let Ok(turn) = store.table().sweeps.acquire().await else { return };
        match store.remove(&record, SWEEP).await {
            Ok(_) => return store.table().forget(&record),
            Err(error) => {
                tracing::debug!(%error, name = %record.line, "a lapsed entry is still there");
            }
        }
        drop(turn);
        drop(store);
        clock::pause(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}
