//! The engine over a store in memory that fails on demand.

use super::super::backend::{Acquire, Release, Renew};
use super::super::ticket::{TicketRecord, tests::First, tests::ticket};
use super::*;
use crate::error::{Error, ErrorKind};
use crate::store::Seq;
use crate::stores::runtime::Background;
use crate::sync::Mutex;
use futures_util::FutureExt;
use std::future::pending;
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
    /// The next write of an entry is not answered, and not carried out.
    write_fails: AtomicBool,
    /// The next question whether an entry exists is not answered.
    look_fails: AtomicBool,
    /// The next ticket lapses while its entry is written, and is swept before it is.
    lapses: AtomicBool,
    /// The next ticket's session ends while its entry is written on another one.
    loses: AtomicBool,
    /// Which update from now on finds the entry gone.
    gone_at: AtomicU32,
    /// The entry goes while the session is confirmed.
    goes_late: AtomicBool,
    /// Whether heartbeats stay unanswered.
    silent: AtomicBool,
    /// Whether the store has other state to maintain.
    has_more: AtomicBool,
    /// Whether the maintenance of a ticket, or of other state, panics.
    panics: AtomicBool,
    /// How many waits have begun, and what the janitor looked after.
    watches: AtomicU32,
    looks: Mutex<Vec<(TicketId, State)>>,
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
            write_fails: AtomicBool::new(false),
            look_fails: AtomicBool::new(false),
            lapses: AtomicBool::new(false),
            loses: AtomicBool::new(false),
            gone_at: AtomicU32::new(0),
            goes_late: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            watches: AtomicU32::new(0),
            looks: Mutex::default(),
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

    fn look_after(self: &Arc<Self>, record: &Own, _now: Time) -> Time {
        self.looks.lock().push((record.id, record.place().state));
        assert!(!self.panics.load(Ordering::Relaxed), "as it should");
        Time::NEVER
    }

    fn look_around(self: &Arc<Self>, _now: Time) -> bool {
        assert!(!self.panics.load(Ordering::Relaxed), "as it should");
        !self.has_more.load(Ordering::Relaxed)
    }

    fn watch_ahead(self: &Arc<Self>, _record: &Own) {
        self.watches.fetch_add(1, Ordering::Relaxed);
    }
}

impl Acquire<First> for Fake {
    async fn join(self: &Arc<Self>, request: &Request<'_>) -> Result<Joined<First>> {
        let Request { line, ticket, note, how, began, .. } = *request;
        if how == Enter::Try && !self.entries.lock().is_empty() {
            return Ok(Joined::Not(request.waiting(None)));
        }
        let record = self.table.find(ticket.id).unwrap_or_else(|| {
            let due = began.after(ticket.lease);
            let entry = First(false);
            Arc::new(TicketRecord::new(line, ticket, note, due, ((), entry)))
        });
        self.table.insert(&record);
        if self.write_fails.swap(false, Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        if self.lapses.load(Ordering::Relaxed) {
            record.place().state = State::Lapsed;
            self.table.forget(&record);
        }
        if self.loses.load(Ordering::Relaxed) {
            record.lose(&self.table.loss);
        }
        let create = {
            let mut entries = self.entries.lock();
            let create = entries.last().map_or(1, |(_, last)| last + 1);
            entries.push((ticket.id, create));
            create
        };
        record.place().entry.0 = self.is_first(ticket.id);
        record.place().born(create);
        record.watch_by(vec![()]);
        Ok(Joined::There(record))
    }
}

impl Renew<First> for Fake {
    async fn update(self: &Arc<Self>, record: &Own, request: &Request<'_>) -> Result<bool> {
        let next = |updates: u32| updates.checked_sub(1);
        let is_gone =
            self.gone_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) == Ok(1);
        record.place().weight = request.ticket.weight;
        Ok(!is_gone)
    }

    fn is_watched(record: &Own) -> bool {
        !record.place().watches.is_empty()
    }

    async fn is_there(&self, record: &Own, _limit: Duration) -> Result<bool> {
        if self.look_fails.swap(false, Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
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
        record: &Own,
        request: &Request<'_>,
        until: Time,
    ) -> Result<bool> {
        let Ticket { lease, wait_lease, .. } = *request.ticket;
        let kept = if record.place().state == State::Held { lease } else { wait_lease.min(lease) };
        assert_eq!(until, request.began.after(kept), "from before the request");
        if self.goes_late.load(Ordering::Relaxed) {
            record.lose(&self.table.loss);
        }
        Ok(!self.session_is_lost.load(Ordering::Relaxed))
    }

    fn doubt(&self, _record: &Own) {
        self.silent.store(true, Ordering::Relaxed);
    }

    async fn answers(&self, _record: &Own) {
        if self.silent.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
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
    let wait_lease = Duration::from_secs(30);
    let ticket = Ticket { id: TicketId(id), wait_lease, ..ticket(1, 1) };
    let line = Name::new("x").expect("good");
    enter(store, (&line, &ticket), &Arc::from(""), how).await.expect("it answers")
}

/// What a holder is told needs no servers; a waiter rides out their outages, and must notice them.
#[tokio::test]
async fn a_waiter_is_told_nothing_while_the_servers_are_silent() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert!(waits(ask(&store, 2, Enter::Queue).await, 2));
    store.silent.store(true, Ordering::Relaxed);
    assert_eq!(ask(&store, 2, Enter::Keep(Seq(2))).now_or_never(), None);
    assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Admitted(Seq(1)));
    store.silent.store(false, Ordering::Relaxed);
    assert!(waits(ask(&store, 2, Enter::Keep(Seq(2))).await, 2));
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

/// There was no news of it, and the holder is told of its loss by the reply to its release.
#[tokio::test]
async fn a_release_finds_out_that_the_entry_was_gone() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    store.entries.lock().clear();
    assert!(!release(&store, 1).await.expect("it answers"));
    assert!(store.table.is_empty());
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

/// Even if the store is unavailable at the first attempt to remove each entry, and there are more
/// of them than are removed at once.
#[tokio::test]
async fn a_place_that_is_not_renewed_is_removed() {
    let store = Fake::new();
    let many = u32::try_from(store.table.sweeps.available_permits()).expect("a few") + 1;
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    for id in 2..=many {
        assert!(waits(ask(&store, id.into(), Enter::Queue).await, id.into()));
    }
    store.failing.store(many, Ordering::Relaxed);
    for id in (1..=many).map(u128::from) {
        let record = store.table.find(TicketId(id)).expect("it is known");
        record.place().due = clock::now();
        store.table.look_soon(record.id);
    }
    soon("they are still there", || store.table.is_empty()).await;
    assert!(store.entries.lock().is_empty());
    assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost);
    assert!((1..=many).all(|id| store.table.lapsed.contains(TicketId(id.into()))));
    store.failing.store(1, Ordering::Relaxed);
    release(&store, 1).await.expect_err("its entry may be written late: the store is asked");
}

/// Waits until this is so.
async fn soon(what: &str, is_so: impl Fn() -> bool) {
    let limit = clock::now().after(Duration::from_secs(30));
    while !is_so() {
        assert!(clock::now() < limit, "{what}");
        clock::pause(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_ticket_without_an_entry_asks_for_one_again() {
    let store = Fake::new();
    store.write_fails.store(true, Ordering::Relaxed);
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let ticket = Ticket { id: TicketId(1), ..ticket(1, 1) };
    let failed = enter(&store, (&line, &ticket), &note, Enter::Queue).await;
    failed.expect_err("the store is away");
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert_eq!(store.entries.lock().len(), 1);
}

/// The store need not be asked about one that never had an entry; about any other it must.
#[tokio::test]
async fn a_ticket_that_got_no_entry_is_released_without_a_request() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert!(matches!(ask(&store, 2, Enter::Try).await, Standing::Waiting { seq: None, .. }));
    store.failing.store(1, Ordering::Relaxed);
    assert!(!release(&store, 2).await.expect("it is known without the store"));
    release(&store, 2).await.expect_err("it is not known any more");
    assert!(release(&store, 1).await.expect("it answers"));
    store.failing.store(1, Ordering::Relaxed);
    release(&store, 1).await.expect_err("it has left, and may have come again elsewhere");
    store.entries.lock().push((TicketId(9), 9));
    assert!(release(&store, 9).await.expect("it answers"), "another process left it");
}

#[tokio::test]
async fn the_store_is_asked_about_what_no_watch_and_no_earlier_answer_covers() {
    for is_watched in [true, false] {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        store.miss(1);
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)), "it is there");
        store.entries.lock().clear();
        let record = store.table.find(TicketId(1)).expect("it is known");
        let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
        let mut ticket = Ticket { id: TicketId(1), ..ticket(1, 1) };
        if is_watched {
            assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)), "no news");
            ticket.lease *= 2; // nothing says that the store knows of that
        } else {
            record.watch_by(Vec::new());
        }
        let kept = enter(&store, (&line, &ticket), &note, Enter::Keep(Seq(1))).await;
        assert_eq!(kept.expect("it answers"), Standing::Lost);
        assert!(record.place().is_gone(), "and that is final");
    }
}

/// The retry of an extension whose first attempt got no answer: it must not be told that the lock
/// is extended by what was known before.
#[tokio::test]
async fn a_lease_is_not_changed_until_the_store_has_answered() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let lease = Duration::from_secs(7);
    let ticket = Ticket { id: TicketId(1), lease, ..ticket(1, 1) };
    let extend = || enter(&store, (&line, &ticket), &note, Enter::Keep(Seq(1)));
    store.look_fails.store(true, Ordering::Relaxed);
    assert!(extend().await.expect_err("the store is away").retryable());
    store.entries.lock().clear();
    assert_eq!(extend().await.expect("it answers"), Standing::Lost);
}

/// Whichever of the updates of a request notices that.
#[tokio::test]
async fn an_update_that_finds_no_entry_is_a_loss() {
    for update in [1, 2] {
        let store = Fake::new();
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
        store.gone_at.store(update, Ordering::Relaxed);
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost, "update {update}");
        assert_eq!(ask(&store, 1, Enter::Keep(Seq(1))).await, Standing::Lost, "update {update}");
    }
}

#[tokio::test]
async fn an_entry_that_goes_while_the_session_is_confirmed_is_lost() {
    let store = Fake::new();
    store.goes_late.store(true, Ordering::Relaxed);
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Lost);
}

/// Its owner was told to wait, so the place must last; a session that is about to end would take it
/// along.
#[tokio::test]
async fn a_waiter_whose_session_is_not_confirmed_has_no_place() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert!(waits(ask(&store, 2, Enter::Queue).await, 2));
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let long = Ticket { id: TicketId(4), wait_lease: Duration::from_secs(90), ..ticket(1, 1) };
    let patient = enter(&store, (&line, &long), &note, Enter::Queue).await;
    assert!(waits(patient.expect("it answers"), 3), "no session lasts longer than its lease");
    store.session_is_lost.store(true, Ordering::Relaxed);
    assert_eq!(ask(&store, 2, Enter::Queue).await, Standing::Lost);
    assert_eq!(ask(&store, 3, Enter::Queue).await, Standing::Lost);
}

/// The sweep may have come before the write, or the session of the ticket may have ended, but not
/// the one that the entry is on. Nobody else would remove it before its lease is over.
#[tokio::test]
async fn an_entry_that_was_written_after_its_ticket_was_gone_is_removed() {
    for lapses in [true, false] {
        let store = Fake::new();
        let which = if lapses { &store.lapses } else { &store.loses };
        which.store(true, Ordering::Relaxed);
        assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Lost);
        let is_gone = || store.entries.lock().is_empty() && store.table.is_empty();
        soon("it is still there", is_gone).await;
    }
}

#[tokio::test]
async fn the_janitor_looks_after_a_ticket_that_came_or_was_admitted() {
    let store = Fake::new();
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert!(waits(ask(&store, 2, Enter::Queue).await, 2));
    let looks = |id, state| store.looks.lock().contains(&(TicketId(id), state));
    soon("it waits", || looks(1, State::Held) && looks(2, State::Waiting)).await;
    assert!(release(&store, 1).await.expect("it answers"));
    assert_eq!(ask(&store, 2, Enter::Queue).await, Standing::Admitted(Seq(2)));
    soon("it holds", || looks(2, State::Held)).await;
}

#[tokio::test]
async fn the_janitor_rests_when_nothing_is_left() {
    let store = Fake::new();
    assert!(tick(&store), "there is no ticket");
    store.has_more.store(true, Ordering::Relaxed);
    assert!(!tick(&store), "there is a session, say");
    store.has_more.store(false, Ordering::Relaxed);
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    assert!(!tick(&store), "there is a ticket");
    assert!(release(&store, 1).await.expect("it answers"));
    assert!(tick(&store));
}

/// Say, of a subscriber. The places of owners that are gone would stay as long as the session.
#[tokio::test]
async fn the_janitor_goes_on_after_a_panic() {
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let lease = Duration::from_secs(1);
    let store = Fake::new();
    store.panics.store(true, Ordering::Relaxed);
    for id in 1..=2 {
        let ticket = Ticket { id: TicketId(id), lease, wait_lease: lease, ..ticket(1, 1) };
        enter(&store, (&line, &ticket), &note, Enter::Queue).await.expect("it answers");
    }
    soon("they are still there", || store.table.is_empty()).await;
    assert!(store.entries.lock().is_empty());
}

/// Whatever state it is in.
#[tokio::test]
async fn a_ticket_that_is_forgotten_by_its_owner_lapses_by_itself() {
    let (line, note) = (Name::new("x").expect("good"), Arc::from(""));
    let lease = Duration::from_millis(300); // more than a tick
    let ticket = Ticket { id: TicketId(1), lease, wait_lease: lease, ..ticket(1, 1) };
    let stores = [Fake::new(), Fake::new(), Fake::new()];
    for (at, store) in stores.iter().enumerate() {
        // On a busy machine it may lapse at once.
        enter(store, (&line, &ticket), &note, Enter::Queue).await.expect("it answers");
        if at == 1 {
            store.table.lose(TicketId(1));
        } else if at == 2 {
            store.failing.store(1, Ordering::Relaxed);
            let _ = release(store, 1).await;
        }
        store.table.look_soon(TicketId(1));
    }
    for (at, store) in stores.iter().enumerate() {
        soon(&format!("{at} is still there"), || store.table.is_empty()).await;
        assert!(store.entries.lock().is_empty());
    }
}

#[tokio::test]
async fn a_wait_ends_with_news_and_at_once_for_an_unknown_ticket() {
    let store = Fake::new();
    assert!(watch(&store, TicketId(9)).now_or_never().is_some(), "it must be asked about");
    assert_eq!(ask(&store, 1, Enter::Queue).await, Standing::Admitted(Seq(1)));
    let mut wait = Box::pin(watch(&store, TicketId(1)));
    assert!(wait.as_mut().now_or_never().is_none());
    assert_eq!(store.watches.load(Ordering::Relaxed), 1);
    store.table.lose(TicketId(1));
    assert!(wait.now_or_never().is_some());
}

#[tokio::test]
async fn the_places_of_a_line_are_admitted_by_the_rule() {
    let store = Fake::new();
    assert_eq!(ask(&store, 2, Enter::Queue).await, Standing::Admitted(Seq(1)));
    let seen = |id, weight| {
        let (id, create, expires_in) = (TicketId(id), 7, Duration::from_secs(5));
        Seen { id, create, weight, expires_in, note: Arc::from("") }
    };
    let seen = [seen(1, 3), seen(2, 1), seen(3, 0), seen(4, 1)];
    let places = places(&store.table, 4, seen);
    let admitted: Vec<bool> = places.iter().map(|place| place.admitted).collect();
    assert_eq!(admitted, [true, true, false, false]);
    assert_eq!(places[0].expires_in, Duration::from_secs(5));
    assert!(places[1].expires_in > Duration::from_secs(30), "its own ticket is known better");
}
