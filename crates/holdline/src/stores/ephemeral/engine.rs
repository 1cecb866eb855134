//! The engine of ephemeral stores: acquires, renews and releases places, and maintains existing
//! ones.
//!
//! Most renewals are answered without asking the servers. That a lock is still held follows from
//! two facts that are known here anyway: the session is alive (its heartbeats), and the entry has
//! not been removed (its watch).

use super::backend::{Backend, Joined, Record, Request};
use super::table::Table;
use super::ticket::{Entry, State, token};
use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Enter, QueueEntry, Standing, Ticket, TicketId};
use crate::sync::contained;
use holdline_kernel::{Time, rule};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two ticks of the janitor.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// The shortest and longest pause between attempts to remove a lapsed entry.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// The time limit of one such attempt.
const SWEEP: Duration = Duration::from_secs(1);
/// The refusals after which the entry is left to the end of its session, if that can end.
const REFUSALS: u32 = 5;

/// Serves [`Store::enter`](crate::store::Store::enter).
pub(super) async fn enter<B: Backend>(
    store: &Arc<B>,
    (line, ticket): (&Name, &Ticket),
    note: &Arc<str>,
    how: Enter,
) -> Result<Standing> {
    let began = clock::now();
    let request = Request { line, ticket, note, how, began, limit: B::limit(ticket.lease) };
    match (store.table().find(ticket.id), how) {
        (Some(record), _) if record.place().create != 0 => {
            keep(store, &record, &request, began).await
        }
        (_, Enter::Keep(_)) => Ok(Standing::Lost),
        (_, Enter::Try | Enter::Queue) => {
            store.table().entered.insert(ticket.id);
            match store.join(&request).await? {
                Joined::There(record) => standing(store, &record, &request, began, true).await,
                Joined::Not(standing) => Ok(standing),
            }
        }
    }
}

/// Keeps an existing place: polls or renews it.
async fn keep<B: Backend>(
    store: &Arc<B>,
    record: &Record<B>,
    request: &Request<'_>,
    began: Time,
) -> Result<Standing> {
    let ticket = request.ticket;
    if !record.is_kept(ticket, request.how, began)? {
        if !record.place().was_held() {
            store.answers(record).await; // as below
        }
        return Ok(Standing::Lost);
    }
    if !store.update(record, request).await? {
        record.lose(&store.table().loss);
        return Ok(Standing::Lost);
    }
    let watched = B::is_watched(record);
    let (held, unsure, missed) = {
        let place = record.place();
        // The store must answer a request that changes the lease.
        let asks = place.lease != ticket.lease;
        (place.was_held(), place.is_unsure() || asks || !watched, place.missed())
    };
    if !held {
        let mut asking = Asking { store, record, answered: false };
        store.ask_again(record, request).await?;
        asking.answered = true;
    } else if unsure {
        if store.is_there(record, request.limit).await? {
            record.place().answered(missed);
        } else {
            record.lose(&store.table().loss);
        }
    }
    record.place().lease = ticket.lease;
    standing(store, record, request, began, false).await
}

/// A waiter's request to the servers. Without an answer, only that of a heartbeat will show that
/// they are not away.
struct Asking<'a, B: Backend> {
    store: &'a Arc<B>,
    record: &'a Record<B>,
    answered: bool,
}

impl<B: Backend> Drop for Asking<'_, B> {
    fn drop(&mut self) {
        if !self.answered {
            self.store.doubt(self.record);
        }
    }
}

/// The standing according to the record, once the session is certain to last.
async fn standing<B: Backend>(
    store: &Arc<B>,
    record: &Record<B>,
    request: &Request<'_>,
    began: Time,
    new: bool,
) -> Result<Standing> {
    let ticket = request.ticket;
    let Some(stands) = record.stand(ticket, began, new) else {
        if new {
            // The ticket lapsed while its entry was being written, possibly after the sweep; or its
            // session ended, but not the one that the entry is on.
            store.spawn(sweep(Arc::downgrade(store), Arc::clone(record)));
        }
        return Ok(Standing::Lost);
    };
    if new || stands.fresh {
        store.table().look_soon(ticket.id);
    }
    if !new {
        record.check_weight(ticket)?;
    }
    if !store.update(record, request).await? {
        record.lose(&store.table().loss);
        return Ok(Standing::Lost);
    }
    // A waiter keeps its place for the wait lease after this reply, so the session must last.
    let kept = if stands.held { ticket.lease } else { ticket.wait_lease.min(ticket.lease) };
    let good = store.confirm(record, request, began.after(kept)).await?;
    if !good || record.place().is_gone() {
        return Ok(Standing::Lost);
    }
    if !stands.held {
        // What is known here is no answer of a store that is away: a waiter is to notice that.
        store.answers(record).await;
        return Ok(request.waiting(Some(stands.seq)));
    }
    Ok(Standing::Admitted(stands.seq))
}

/// Serves [`Store::leave`](crate::store::Store::leave).
pub(super) async fn leave<B: Backend>(store: &Arc<B>, line: &Name, id: TicketId) -> Result<bool> {
    let Some(record) = store.table().find(id) else {
        if store.table().entered.remove(id) {
            return Ok(false);
        }
        return store.remove_unknown(line, id).await;
    };
    record.leave();
    let limit = B::limit(record.place().lease);
    let removed = store.give_up(&record, limit).await?;
    let was_there = removed && !record.place().is_gone();
    store.table().forget(&record);
    store.table().entered.remove(id);
    Ok(was_there)
}

/// Serves [`Store::watch`](crate::store::Store::watch).
pub(super) async fn watch<B: Backend>(store: &Arc<B>, id: TicketId) {
    // An unknown ticket must be asked about, not waited for.
    let Some(record) = store.table().find(id) else { return };
    store.watch_ahead(&record);
    record.news.notified().await;
}

/// One entry of a line, as read from the store.
pub(super) struct Seen {
    pub(super) id: TicketId,
    pub(super) create: i64,
    pub(super) weight: u32,
    /// The time that its owner has left, according to the store.
    pub(super) expires_in: Duration,
    pub(super) note: Arc<str>,
}

/// The entries of a line, front first, each marked as admitted or not.
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
    store.spawn(async move {
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

/// Maintains what is due now. Returns whether nothing is left to maintain.
fn tick<B: Backend>(store: &Arc<B>) -> bool {
    let (now, table) = (clock::now(), store.table());
    for record in table.due(now) {
        let mut next = Some(now); // at the next tick, if this panics
        contained(|| next = maintain(store, &record, now));
        if let Some(next) = next {
            table.look_at(record.id, next);
        }
    }
    let mut nothing_else = false;
    contained(|| nothing_else = store.look_around(now));
    table.is_empty() && nothing_else
}

/// Maintains one ticket. Returns when to do so again, unless it has lapsed.
fn maintain<B: Backend>(store: &Arc<B>, record: &Record<B>, now: Time) -> Option<Time> {
    let table = store.table();
    if record.lapse(now, &table.loss) {
        table.lapsed.insert(record.id);
        store.spawn(sweep(Arc::downgrade(store), Arc::clone(record)));
        return None;
    }
    let (state, due) = record.with(|place| (place.state, place.due));
    Some(match state {
        State::Waiting | State::Held => store.look_after(record, now).min(due),
        State::New | State::Leaving { .. } => now, // it may change at any moment
        State::Gone { .. } | State::Lapsed => due,
    })
}

/// Removes the entry of a lapsed ticket, however long that takes.
pub(super) async fn sweep<B: Backend>(store: Weak<B>, record: Record<B>) {
    let (mut pause, mut refusals) = (PAUSES.0, 0);
    while let Some(store) = store.upgrade() {
        let Ok(turn) = store.table().sweeps.acquire().await else { return };
        match store.remove(&record, SWEEP).await {
            Ok(_) => {
                store.table().forget(&record);
                // The request to enter may continue, and write the entry after this.
                store.table().entered.remove(record.id);
                return;
            }
            Err(error) => {
                contained(|| {
                    tracing::debug!(%error, name = %record.line, "a lapsed entry is still there");
                });
                refusals += u32::from(!error.retryable());
                if refusals >= REFUSALS && store.leave_to_session(&record) {
                    store.table().forget(&record);
                    store.table().entered.remove(record.id);
                    return;
                }
            }
        }
        drop(turn);
        drop(store);
        clock::pause(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests;
