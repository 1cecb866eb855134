//! The toy store: lines behind a mutex, in this process, with at most one bug planted.

use crate::bugs::Bug;
use crate::line::Line;
use holdline::store::{
    Async, AsyncStore, Capabilities, EVICTIONS_KEPT, Enter, Eviction, Lines, LossHint, Notifier,
    QueueSnapshot, Seq, Standing, Subscription, Ticket, TicketId, refuse,
};
use holdline::{Client, Error, ErrorKind, Name, Result};
use holdline_conformance::Subject;
use std::collections::{BTreeMap, HashMap};
use std::future::{pending, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// The store, and the terms on which the suite tests it.
#[derive(Clone, Debug)]
pub(crate) struct Toy {
    bug: Option<Bug>,
    lease: Duration,
    time_limit: Duration,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    lines: BTreeMap<Name, Line>,
    /// The highest token of any line.
    last: u64,
    /// Oldest first.
    evictions: Vec<(Name, Eviction)>,
    notices: HashMap<TicketId, Notice>,
    observers: Vec<(Lines, Weak<Notifier>)>,
}

/// The notice of a waiter.
#[derive(Debug, Default)]
struct Notice {
    told: Arc<Notify>,
    admitted: Option<Seq>,
}

/// A change of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Entry(TicketId, Enter),
    Departure,
    Eviction,
}

impl Toy {
    /// A sound store.
    pub(crate) fn sound(lease: Duration, time_limit: Duration) -> Self {
        Toy { bug: None, lease, time_limit, table: Arc::default() }
    }

    /// A store with a bug.
    pub(crate) fn with(bug: Bug, lease: Duration, time_limit: Duration) -> Self {
        Toy { bug: Some(bug), ..Toy::sound(lease, time_limit) }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name by which the table knows a line.
    fn key(&self, line: &Name) -> Name {
        let name = line.as_str();
        let key = match self.bug {
            Some(Bug::CutsNames) => Name::new(&name[..name.floor_char_boundary(255)]),
            Some(Bug::FoldsNames) => Name::new(name.to_lowercase()),
            Some(Bug::TrimsNames) => Name::new(name.trim()),
            _ => return line.clone(),
        };
        key.expect("a good name")
    }

    /// Changes a line, and tells its waiters and observers.
    fn change<T>(
        &self,
        name: &Name,
        change: Change,
        work: impl FnOnce(&mut Line, &mut u64) -> T,
    ) -> T {
        let (mut table, name) = (self.table(), self.key(name));
        let Table { lines, last, .. } = &mut *table;
        let line = lines.entry(name.clone()).or_insert_with(|| Line::new(self.bug));
        let before = line.standings();
        line.expire(match change {
            Change::Entry(id, Enter::Keep(_)) => Some(id),
            _ => None,
        });
        let done = work(line, last);
        let after = line.standings();
        if line.is_empty() && !self.has(Bug::ListsEmptyLines) {
            lines.remove(&name);
        }
        self.wake(&mut table, change, &before, &after);
        self.tell(&mut table, &name, change);
        done
    }

    /// Tells the waiters that a change has admitted, but not the ticket that it answers.
    fn wake(
        &self,
        table: &mut Table,
        change: Change,
        before: &[(TicketId, Seq, bool)],
        after: &[(TicketId, Seq, bool)],
    ) {
        let silent = match self.bug {
            Some(Bug::LeaveWakesNobody) => change == Change::Departure,
            Some(Bug::EvictionsWakeNobody) => change == Change::Eviction,
            Some(Bug::LowerWeightsWakeNobody) => matches!(change, Change::Entry(..)),
            _ => false,
        };
        let everybody = change == Change::Departure
            && (self.has(Bug::WakesEverybody) || self.has(Bug::TellsEverybodyOfAnAdmission));
        for (id, seq, admitted) in after {
            let waited = before.contains(&(*id, *seq, false));
            let asks = matches!(change, Change::Entry(asker, _) if asker == *id);
            if waited && !asks && !silent && (*admitted || everybody) {
                let notice = table.notices.entry(*id).or_default();
                let proves = *admitted || self.has(Bug::TellsEverybodyOfAnAdmission);
                notice.admitted = proves.then_some(*seq);
                match self.bug {
                    Some(Bug::NoticesAreNotKept) => notice.told.notify_waiters(),
                    _ => notice.told.notify_one(),
                }
            }
        }
        let gone = before.iter().filter(|place| !after.iter().any(|now| now.0 == place.0));
        for (id, ..) in gone {
            if let Some(notice) = table.notices.remove(id) {
                notice.told.notify_one();
            }
        }
    }

    /// Tells the observers of a line.
    fn tell(&self, table: &mut Table, name: &Name, change: Change) {
        let silent = match self.bug {
            Some(Bug::TellsNothing) => true,
            Some(Bug::TellsNoEntries) => matches!(change, Change::Entry(_, Enter::Queue)),
            Some(Bug::TellsNoDepartures) => change == Change::Departure,
            Some(Bug::TellsNoEvictions) => change == Change::Eviction,
            Some(Bug::TellsNoNotes) => matches!(change, Change::Entry(_, Enter::Keep(_))),
            _ => false,
        };
        table.observers.retain(|(lines, notifier)| {
            let Some(notifier) = notifier.upgrade() else { return false };
            let covers = match lines {
                Lines::Prefix(prefix) if self.has(Bug::TellsNoPrefixes) => prefix == name.as_str(),
                _ => lines.contain(name),
            };
            if covers && !silent {
                notifier.changed();
            }
            true
        });
    }

    /// The evictions of a line that a snapshot shows, oldest first.
    fn evictions(&self, table: &Table, line: &Name) -> Vec<Eviction> {
        let all = self.has(Bug::EvictionsAreOfAllLines);
        let of_line = table.evictions.iter().filter(|(name, _)| all || name == line);
        let mut shown: Vec<_> = of_line.map(|(_, eviction)| eviction.clone()).collect();
        match self.bug {
            Some(Bug::EvictionsAreForgotten) => shown.clear(),
            Some(Bug::EvictionsAreTheOldest) => shown.truncate(EVICTIONS_KEPT),
            _ => drop(shown.drain(..shown.len().saturating_sub(EVICTIONS_KEPT))),
        }
        shown
    }

    /// Whether a name is in a list by this prefix.
    fn lists(&self, name: &Name, prefix: &str) -> bool {
        let same = |pair: (char, char)| pair.0 == '_' || pair.0 == pair.1;
        match self.bug {
            Some(Bug::ListsEverything) => true,
            Some(Bug::ListsByPatterns) => {
                let long_enough = name.as_str().chars().count() >= prefix.chars().count();
                long_enough && prefix.chars().zip(name.as_str().chars()).all(same)
            }
            _ => name.as_str().starts_with(prefix),
        }
    }
}

impl AsyncStore for Toy {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if self.has(Bug::RefusesLongLeases) && ticket.lease > Duration::from_secs(3600) {
            return Err(Error::new(ErrorKind::Invalid, "the lease is refused: it is too long"));
        }
        if self.has(Bug::HalfDoneWhenDropped) {
            let helper = Ticket { id: TicketId(fastrand::u128(..)), ..*ticket };
            let entry = Change::Entry(helper.id, how);
            let _ = self.change(line, entry, |line, last| line.enter(last, &helper, note, how));
            tokio::task::yield_now().await;
            self.change(line, Change::Departure, |line, _| line.leave(helper.id));
        }
        let entry = Change::Entry(ticket.id, how);
        let standing = self.change(line, entry, |line, last| line.enter(last, ticket, note, how));
        standing.map_err(|refusal| refuse(line, ticket, refusal))
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        Ok(self.change(line, Change::Departure, |line, _| line.leave(id)))
    }

    async fn watch(&self, _line: &Name, id: TicketId) -> Result<Option<Seq>> {
        if self.has(Bug::WatchNeverWakes) {
            return pending().await;
        }
        let told = Arc::clone(&self.table().notices.entry(id).or_default().told);
        told.notified().await;
        Ok(self.table().notices.get(&id).and_then(|notice| notice.admitted))
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let (table, line) = (self.table(), self.key(line));
        let evictions = self.evictions(&table, &line);
        let found = table.lines.get(&line);
        let places = found.map(Line::view).unwrap_or_default();
        let capacity = found.filter(|_| !places.is_empty()).map_or(0, Line::capacity);
        Ok(QueueSnapshot { capacity, places, evictions })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let table = self.table();
        let listed = table.lines.iter().filter(|(_, line)| line.is_listed());
        let names = listed.map(|(name, _)| name).filter(|name| self.lists(name, prefix));
        let mut names: Vec<_> = names.cloned().collect();
        match self.bug {
            Some(Bug::ListsInNoOrder) => names.reverse(),
            Some(Bug::ListsAreCut) => names.truncate(100),
            _ => {}
        }
        Ok(names)
    }

    async fn evict(&self, line: &Name, id: TicketId, note: &str) -> Result<Option<Seq>> {
        let token = self.change(line, Change::Eviction, |line, last| line.evict(last, id));
        if token.is_some() {
            let note = if self.has(Bug::EvictionsHaveNoNotes) { "" } else { note }.into();
            let eviction = (self.key(line), Eviction { id, note });
            self.table().evictions.push(eviction);
        }
        Ok(token)
    }

    fn subscribe(&self, lines: &Lines) -> Subscription {
        let (notifier, subscription) = Subscription::new();
        let notifier = Arc::new(notifier);
        self.table().observers.push((lines.clone(), Arc::downgrade(&notifier)));
        notifier.begin();
        subscription.keep(notifier)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair_queue: true,
            fencing_tokens: true,
            notifications: true,
            weighted: true,
            read_write: true,
            token_ranges: true,
            crash_release: false,
            survives_failover: false,
            survives_restart: false,
            lease_min: Duration::from_millis(100),
            lease_max: Duration::from_secs(24 * 3600),
        }
    }

    fn background_handle(&self) -> Self {
        match self.bug {
            Some(Bug::ForksInTheBackground) => Toy { table: Arc::default(), ..self.clone() },
            _ => self.clone(),
        }
    }

    fn on_loss_hint(&self, _loss_hint: LossHint) {} // renewals find out

    fn address(&self) -> String {
        "toy:".to_owned()
    }
}

impl Subject for Toy {
    fn name(&self) -> String {
        self.bug.map_or("toy".to_owned(), |bug| format!("toy with {bug:?}"))
    }

    fn client(&self) -> Async<'_, Client> {
        Box::pin(ready(Ok(Client::new(Arc::new(self.clone())))))
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn notifies(&self) -> bool {
        true
    }
}
