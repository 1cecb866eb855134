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
use holdline_kernel::{Time, rule};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two ticks of the janitor.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// The shortest and longest pause between attempts to remove a lapsed entry.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// The time limit of one such attempt.
const SWEEP: Duration = Duration::from_secs(1);

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
        return Ok(Standing::Lost);
    }
    if !store.update(record, request).await? {
        record.lose(&store.table().loss);
        return Ok(Standing::Lost);
    }
    let watched = B::is_watched(record);
    let (held, unsure, missed) = {
        let mut place = record.place();
        // The store must answer a request that changes the lease.
        let asks = std::mem::replace(&mut place.lease, ticket.lease) != ticket.lease;
        (place.was_held(), place.is_unsure() || asks || !watched, place.missed())
    };
    if !held {
        store.ask_again(record, request).await?;
    } else if unsure {
        if store.is_there(record, request.limit).await? {
            record.place().answered(missed);
        } else {
            record.lose(&store.table().loss);
        }
    }
    standing(store, record, request, began, false).await
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
        if new && record.place().state == State::Lapsed {
            // The ticket lapsed while its entry was being written, possibly after the sweep.
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
        if record.lapse(now, &table.loss) {
            table.lapsed.insert(record.id);
            store.spawn(sweep(Arc::downgrade(store), record));
            continue;
        }
        let (state, due) = record.with(|place| (place.state, place.due));
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

/// Removes the entry of a lapsed ticket, however long that takes.
pub(super) async fn sweep<B: Backend>(store: Weak<B>, record: Record<B>) {
    let mut pause = PAUSES.0;
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
                tracing::debug!(%error, name = %record.line, "a lapsed entry is still there");
            }
        }
        drop(turn);
        drop(store);
        clock::pause(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::{Acquire, Release, Renew};
    use super::super::ticket::{TicketRecord, tests::First, tests::ticket};
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::store::Seq;
    use crate::stores::runtime::Background;
    use crate::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    static BACKGROUND: Background = Background::new("engine-test");

    /// A store in memory that fails on demand.
    struct Fake {
        table: Table<First>,
        /// The entries of its only line, in order.
        entries: Mutex<Vec<(TicketId, i64)>>,
        /// How many removals will fail.
        failing: AtomicU32,
        session_is_lost: AtomicBool,
        /// Whether the next reply about an entry comes after the entry is gone, and after the news
        /// that a change was missed.
        answers_late: AtomicBool,
        /// A later request lowers the weight while this one looks for its entry.
        is_overtaken: AtomicBool,
    }

    type Own = Arc<TicketRecord<First>>;

    impl Fake {
        fn new() -> Arc<Self> {
            BACKGROUND.start().expect("there are threads");
            let fake = Arc::new(Fake {
                table: Table::new(8),
                entries: Mutex::default(),
                failing: AtomicU32::new(0),
                session_is_lost: AtomicBool::new(false),
                answers_late: AtomicBool::new(false),
                is_overtaken: AtomicBool::new(false),
            });
            start_janitor(&fake);
            fake
        }

        fn delete(&self, id: TicketId) -> Result<bool> {
            let fails = |failing: u32| failing.checked_sub(1);
            if self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok() {
                return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
            }
            let mut entries = self.entries.lock();
            let before = entries.len();
            entries.retain(|(other, _)| *other != id);
            Ok(entries.len() < before)
        }

        /// Changes may have been missed.
        fn miss(&self, id: u128) {
            self.table.find(TicketId(id)).expect("it is known").place().miss();
        }

        fn is_first(&self, id: TicketId) -> bool {
            self.entries.lock().first().is_some_and(|(first, _)| *first == id)
        }
    }

    impl Backend for Fake {
        type Entry = First;

        fn table(&self) -> &Table<First> {
            &self.table
        }

        fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            BACKGROUND.spawn(task);
        }

        fn limit(_lease: Duration) -> Duration {
            Duration::from_secs(1)
        }

        fn look_after(self: &Arc<Self>, _record: &Own, _now: Time) -> Time {
            Time::NEVER
        }

        fn look_around(self: &Arc<Self>, _now: Time) -> bool {
            true
        }

        fn watch_ahead(self: &Arc<Self>, _record: &Own) {}
    }

    impl Acquire<First> for Fake {
        async fn join(self: &Arc<Self>, request: &Request<'_>) -> Result<Joined<First>> {
            let Request { line, ticket, note, began, .. } = *request;
            let create = {
                let mut entries = self.entries.lock();
                let create = entries.last().map_or(1, |(_, last)| last + 1);
                entries.push((ticket.id, create));
                create
            };
            let entry = First(self.is_first(ticket.id));
            let due = began.after(ticket.lease);
            let record = Arc::new(TicketRecord::new(line, ticket, note, due, ((), entry)));
            record.place().born(create);
            self.table.insert(&record);
            Ok(Joined::There(record))
        }
    }

    impl Renew<First> for Fake {
        async fn update(self: &Arc<Self>, record: &Own, request: &Request<'_>) -> Result<bool> {
            record.place().weight = request.ticket.weight;
            Ok(true)
        }

        fn is_watched(_record: &Own) -> bool {
            true
        }

        async fn is_there(&self, record: &Own, _limit: Duration) -> Result<bool> {
            let there = self.entries.lock().iter().any(|(id, _)| *id == record.id);
            if self.answers_late.swap(false, Ordering::Relaxed) {
                self.entries.lock().retain(|(id, _)| *id != record.id);
                record.place().miss();
            }
            if self.is_overtaken.load(Ordering::Relaxed) {
                record.place().weight = 1;
            }
            Ok(there)
        }

        async fn ask_again(self: &Arc<Self>, record: &Own, _request: &Request<'_>) -> Result<()> {
            record.place().entry.0 = self.is_first(record.id);
            Ok(())
        }

        async fn confirm(
            self: &Arc<Self>,
            _record: &Own,
            _request: &Request<'_>,
            _until: Time,
        ) -> Result<bool> {
            Ok(!self.session_is_lost.load(Ordering::Relaxed))
        }
    }

    impl Release<First> for Fake {
        async fn remove(self: &Arc<Self>, record: &Own, _limit: Duration) -> Result<bool> {
            self.delete(record.id)
        }

        async fn remove_unknown(self: &Arc<Self>, _line: &Name, id: TicketId) -> Result<bool> {
            self.delete(id)
        }
    }

    /// Enters with the ticket of this number.
    async fn ask(store: &Arc<Fake>, id: u128, how: Enter) -> Standing {
        let ticket = Ticket { id: TicketId(id), ..ticket(1, 1) };
        let line = Name::new("x").expect("good");
        enter(store, (&line, &ticket), &Arc::from(""), how).await.expect("it answers")
    }

    async fn release(store: &Arc<Fake>, id: u128) -> Result<bool> {
        leave(store, &Name::new("x").expect("good"), TicketId(id)).await
    }

    fn waits(standing: Standing, place: u64) -> bool {
        matches!(standing, Standing::Waiting { seq: Some(Seq(seq)), .. } if seq == place)
    }

    #[tokio::test]
    async fn a_lock_goes_from_one_ticket_to_the_next() {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        assert!(waits(ask(&store, 2, Enter::Queue).await, 2));
        assert!(waits(ask(&store, 2, Enter::Keep(Seq(2))).await, 2));
        assert!(release(&store, 1).await.expect("it answers"));
        assert_eq!(ask(&store, 2, Enter::Queue).await, Standing::Admitted(Seq(2)));
        assert_eq!(ask(&store, 2, Enter::Keep(Seq(1))).await, Standing::Lost, "of another place");
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost, "it has left");
        assert!(release(&store, 2).await.expect("it answers"));
        assert!(!release(&store, 2).await.expect("it answers"));
        assert!(store.table.is_empty());
    }

    /// It may be carried out late, when its holder would not expect it.
    #[tokio::test]
    async fn a_release_that_fails_is_not_taken_back() {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        store.failing.store(1, Ordering::Relaxed);
        assert!(release(&store, 1).await.expect_err("the store is away").retryable());
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost);
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Lost);
        assert!(release(&store, 1).await.expect("it answers"), "it is still there");
        assert!(store.entries.lock().is_empty());
    }

    #[tokio::test]
    async fn a_place_that_is_gone_is_lost_for_good() {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        store.miss(1);
        let entries = std::mem::take(&mut *store.entries.lock());
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost);
        *store.entries.lock() = entries;
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost, "it never returns");
        assert!(!release(&store, 1).await.expect("it answers"), "it was not held any more");
        assert!(store.entries.lock().is_empty(), "but what is left is removed");
        store.session_is_lost.store(true, Ordering::Relaxed);
        assert_eq!(ask(&store, 2, Enter::Queue).await, Standing::Lost);
    }

    /// A change missed during a request is not in its reply.
    #[tokio::test]
    async fn an_answer_of_before_the_news_proves_nothing() {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        store.miss(1);
        store.answers_late.store(true, Ordering::Relaxed);
        let late = ask(&store, 1, Enter::Keep(Seq(1))).await;
        assert_eq!(late, Standing::Admitted(Seq(1)), "it was there when the store looked");
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost);
    }

    #[tokio::test]
    async fn a_renewal_that_a_downgrade_overtakes_raises_no_weight() {
        let store = Fake::new();
        let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
        let ticket = Ticket { id: TicketId(1), ..ticket(2, 2) };
        let held = enter(&store, (&line, &ticket), &note, Enter::Queue).await.expect("it answers");
        assert_eq!(held, Standing::Admitted(Seq(1)));
        store.miss(1);
        store.is_overtaken.store(true, Ordering::Relaxed);
        let late = enter(&store, (&line, &ticket), &note, Enter::Keep(Seq(1))).await;
        late.expect_err("the weight is lower by now");
        let record = store.table.find(TicketId(1)).expect("it is known");
        assert_eq!(record.place().weight, 1);
        let reader = Ticket { weight: 1, ..ticket };
        let kept = enter(&store, (&line, &reader), &note, Enter::Keep(Seq(1))).await;
        assert_eq!(kept.expect("it answers"), Standing::Admitted(Seq(1)));
    }

    /// Even if the store is unavailable at the first attempt to remove the entry.
    #[tokio::test]
    async fn a_place_that_is_not_renewed_is_removed() {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        assert!(waits(ask(&store, 2, Enter::Queue).await, 2));
        store.failing.store(2, Ordering::Relaxed);
        for id in [1, 2] {
            let record = store.table.find(TicketId(id)).expect("it is known");
            record.place().due = clock::now();
            store.table.look_soon(record.id);
        }
        let limit = clock::now().after(Duration::from_secs(30));
        while !store.table.is_empty() {
            assert!(clock::now() < limit, "they are still there");
            clock::pause(Duration::from_millis(5)).await;
        }
        assert!(store.entries.lock().is_empty());
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost);
    }
}
