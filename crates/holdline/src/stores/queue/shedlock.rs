//! The scheme `shedlock`: the table of ShedLock, a library for Java, with which locks are shared. A
//! lock is a row that is never deleted; it is free when its `lock_until` has passed.
//!
//! That layout has no queue, tokens or notices: it serves mutexes only, and waiters poll. A lock is
//! held for at most its lease, unless it is renewed, and for at least `?at_least=`, even if it is
//! released before, unless its caller never learned that it had it. Times are UTC by the server's
//! live clock.
//!
//! The statements are nearly the same for all servers; a [`Dialect`] has the differences.

use super::calls::{Answer, Row};
use super::in_flight::InFlight;
use super::sql::{Fault, SESSION_LOCKS, no_such_lock};
use crate::error::{Error, ErrorKind, Result};
use crate::hash;
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueEntry, QueueSnapshot, Seq, Standing, Ticket,
    TicketId,
};
use crate::stores::recent::Recent;
use crate::stores::url;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

/// Locks in ShedLock's table.
#[derive(Clone)]
pub(super) struct Shedlock<D> {
    dialect: D,
    /// The tickets whose callers do not know that they may have a lock: they have yet to get an
    /// answer, or gave up, or got an error. Such a lock guarded no work, so it need not stay locked
    /// for the minimum time.
    unanswered: Arc<Recent>,
}

/// The scheme's dialect of one kind of server.
///
/// Its statements contain these words in braces, which [`statement`] replaces: `t` is the table;
/// `now`, `left`, `since` and `durable` are the constants below; `name` is the lock's name; `mine`
/// is the owner, with which `locked_by` begins if the row is its own; `by` is the new `locked_by`;
/// and `until` is the earliest new `lock_until`.
pub(super) trait Dialect: fmt::Display + Clone + Send + Sync + 'static {
    /// The current time, UTC, by the server's live clock.
    const NOW: &'static str;
    /// The whole microseconds until `lock_until`.
    const LEFT: &'static str;
    /// `locked_at`, as text.
    const SINCE: &'static str;
    /// A condition that is true, makes a write durable before it is answered, and limits its wait
    /// for the row.
    const DURABLE: &'static str;
    /// The statement that takes a row which is free or the owner's. Its result is 1 if the owner
    /// has the row, or else the number of microseconds for which another has it. A lock that
    /// another has is only read, neither locked nor written. A repeated request for one's own lock
    /// is answered as the first one.
    const ENTER: &'static str;

    /// A text as an SQL literal.
    fn text(text: &str) -> Result<String>;

    /// The time that is this much later, rounded up to what the server can store.
    fn after(time: &str, span: Duration) -> String;

    /// The table, as the statements name it.
    fn table(&self) -> String;

    /// The minimum time for which a lock stays locked.
    fn at_least(&self) -> Duration;

    /// Runs a statement, which may be retried. One that takes a row names its ticket.
    fn call(
        &self,
        taker: Option<TicketId>,
        sql: &str,
    ) -> impl Future<Output = Result<Answer, Fault>> + Send;

    /// The tickets whose requests to take a row are still unanswered.
    fn in_flight(&self) -> &InFlight;

    /// A second handle for renewals, with connections that a busy program does not delay.
    fn background(&self) -> Self;
}

/// The length of the owner at the beginning of `locked_by`: see [`owner`].
const OWNER: usize = 41;
/// The size of `locked_by`.
const ROOM: usize = 255;
/// The number of unanswered tickets that are remembered.
const UNANSWERED: usize = 4096;
/// The longest pause of a waiter.
const PAUSE: Duration = Duration::from_millis(250);

const KEEP: &str = "\
    UPDATE {t} SET lock_until = greatest(lock_until, {until}), locked_by = {by} \
    WHERE {durable} AND name = {name} AND left(locked_by, 41) = {mine} AND lock_until > {now}";

/// A released row belongs to nobody, though it may stay locked for a while.
const LEAVE: &str = "\
    UPDATE {t} SET lock_until = greatest({now}, {until}), locked_by = 'holdline, released' \
    WHERE {durable} AND name = {name} AND left(locked_by, 41) = {mine} AND lock_until > {now}";

const LOOK: &str = "\
    SELECT {left}, {since}, locked_by FROM {t} WHERE name = {name} AND lock_until > {now}";

const LIST: &str = "\
    SELECT name FROM {t} WHERE lock_until > {now} AND left(name, {length}) = {prefix}";

/// Here `held` is the condition that the row has the same holder still.
const EVICT: &str = "\
    UPDATE {t} SET lock_until = {now} \
    WHERE {durable} AND name = {name} AND {held} AND lock_until > {now}";

/// A statement with these values for its words in braces. Words inside of a value are not replaced.
fn statement<D: Dialect>(dialect: &D, text: &str, values: &[(&str, String)]) -> String {
    let table = dialect.table();
    let (now, left, since, durable) = (D::NOW, D::LEFT, D::SINCE, D::DURABLE);
    let known =
        [("t", &*table), ("now", now), ("left", left), ("since", since), ("durable", durable)];
    let value = |word: &str| {
        let values = values.iter().map(|(name, value)| (*name, value.as_str()));
        known.into_iter().chain(values).find(|(name, _)| *name == word).expect("it is known").1
    };
    let mut parts = text.split('{');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (word, rest) = part.split_once('}').expect("braces are in pairs");
        sql.push_str(value(word));
        sql.push_str(rest);
    }
    sql
}

/// Parses the minimum lock time of a URL, or says what is wrong with it.
pub(super) fn at_least(text: &str) -> std::result::Result<Duration, &'static str> {
    url::duration(text)
        .filter(|time| *time <= Duration::from_secs(24 * 3600))
        .ok_or("has an at_least that is not like 500ms, 2s or 5m, up to 24h")
}

/// The fault of a table that is missing, or whose times are of the wrong kind; `what` says which.
pub(super) fn unusable(table: &str, address: &impl fmt::Display, what: Option<&str>) -> Fault {
    let (kind, what) = match what {
        Some(what) => (ErrorKind::Unsupported, what),
        None => (
            ErrorKind::Denied,
            "is not there; make it as ShedLock says, or open it with ?install=yes",
        ),
    };
    Fault::Ours(kind, format!("the table {table} at {address} {what}"))
}

/// The error of a sweep: in ShedLock's layout no row is ever removed.
pub(super) fn not_swept(address: &impl fmt::Display) -> Error {
    let message = format!(
        "{address} is not swept by scheme=shedlock: the rows of ShedLock's table stay; leave the \
         scheme out of the URL to sweep holdline's own tables"
    );
    Error::new(ErrorKind::Unsupported, message)
}

impl<D: Dialect> Shedlock<D> {
    pub(super) fn new(dialect: D) -> Self {
        Shedlock { dialect, unanswered: Arc::new(Recent::new(UNANSWERED)) }
    }

    /// Runs a statement about a line.
    async fn call(
        &self,
        line: &Name,
        taker: Option<TicketId>,
        text: &str,
        values: &[(&str, String)],
    ) -> Result<Answer> {
        let mut values = values.to_vec();
        values.push(("name", D::text(line.as_str())?));
        let answer = self.dialect.call(taker, &statement(&self.dialect, text, &values)).await;
        answer.map_err(|fault| fault.explain(&self.dialect, &format!("lock \"{line}\"")))
    }

    /// Runs a statement that ends a hold. Returns whether there was one.
    async fn end(&self, line: &Name, text: &str, values: &[(&str, String)]) -> Result<bool> {
        let answer = self.call(line, None, text, values).await?;
        answer.found(answer.changed > 0, &self.dialect, line)
    }

    /// The current holder.
    async fn holder(&self, line: &Name) -> Result<Option<Holder>> {
        let answer = self.call(line, None, LOOK, &[]).await?;
        let row = answer.first();
        let text = |at| row.text(at).map(str::to_owned);
        Ok(text(2).map(|locked_by| Holder {
            locked_by,
            locked_at: text(1).unwrap_or_default(),
            expires_in: left(&row, 0),
        }))
    }
}

/// A time in microseconds from a row.
fn left(row: &Row, at: usize) -> Duration {
    Duration::from_micros(row.number::<i64>(at).unwrap_or(0).max(0).unsigned_abs())
}

/// The owner of a ticket's row: the first [`OWNER`] characters of `locked_by`.
fn owner(id: TicketId) -> String {
    format!("holdline {id}")
}

/// The whole of `locked_by`: the owner, and the note if there is room.
fn locked_by(id: TicketId, note: &str) -> String {
    let owner = owner(id);
    if OWNER + 1 + note.chars().count() > ROOM { owner } else { format!("{owner} {note}") }
}

/// The holder of a row.
struct Holder {
    locked_by: String,
    locked_at: String,
    expires_in: Duration,
}

impl Holder {
    /// The ticket and the note in `locked_by`; for another program's value, an id made of that and
    /// `locked_at`, because most programs give the same value for every hold.
    fn who(&self) -> (TicketId, &str) {
        let Holder { locked_by, locked_at, .. } = self;
        let ours = locked_by.strip_prefix("holdline ").and_then(|rest| rest.split_at_checked(32));
        let ours = ours.and_then(|(id, note)| Some((id.parse().ok()?, note)));
        let theirs = || TicketId(hash::wide(&[locked_by.as_bytes(), locked_at.as_bytes()]));
        ours.map_or_else(|| (theirs(), &**locked_by), |(id, note)| (id, note.trim_start()))
    }
}

impl<D: Dialect> AsyncStore for Shedlock<D> {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.capacity != 1 {
            return Err(no_such_lock(&self.dialect, "mutexes only"));
        }
        let (text, taker, least) = match how {
            Enter::Keep(Seq(0)) => (KEEP, None, Duration::ZERO),
            Enter::Keep(_) => return Ok(Standing::Lost), // no place of this store
            Enter::Try | Enter::Queue => (D::ENTER, Some(ticket.id), self.dialect.at_least()),
        };
        let values = [
            ("mine", D::text(&owner(ticket.id))?),
            ("by", D::text(&locked_by(ticket.id, note))?),
            ("until", D::after(D::NOW, ticket.lease.max(least))),
        ];
        if let Some(id) = taker.filter(|_| !least.is_zero()) {
            self.unanswered.insert(id);
        }
        let answer = self.call(line, taker, text, &values).await?;
        let standing = match taker {
            None if answer.changed == 0 => Standing::Lost,
            Some(_) if answer.number() != Some(1) => {
                if answer.repeated {
                    return Err(
                        Fault::doubtful().explain(&self.dialect, &format!("lock \"{line}\""))
                    );
                }
                let left = answer.rows.first().map_or(PAUSE, |row| left(row, 1));
                let again = left.clamp(Duration::from_millis(2), PAUSE);
                Standing::Waiting { seq: None, again }
            }
            _ => Standing::Admitted(Seq(0)),
        };
        // An earlier request of this ticket may yet take the row, unknown to its caller.
        let may_take = matches!(standing, Standing::Waiting { .. })
            && self.dialect.in_flight().in_doubt(ticket.id);
        if !may_take {
            self.unanswered.remove(ticket.id);
        }
        Ok(standing)
    }

    /// Waits for the ticket's own requests that may be carried out later: nothing bars the ticket
    /// then.
    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        self.dialect.in_flight().stays_in_doubt(id).await;
        let unanswered = self.unanswered.contains(id);
        let least = if unanswered { Duration::ZERO } else { self.dialect.at_least() };
        let values = [("mine", D::text(&owner(id))?), ("until", D::after("locked_at", least))];
        let found = self.end(line, LEAVE, &values).await?;
        self.dialect.in_flight().forget(id);
        self.unanswered.remove(id);
        Ok(found)
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        pending().await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let mut snapshot = QueueSnapshot::default();
        if let Some(holder) = self.holder(line).await? {
            let (id, note) = holder.who();
            snapshot.capacity = 1;
            snapshot.places.push(QueueEntry {
                id,
                seq: Seq(0),
                weight: 1,
                admitted: true,
                expires_in: holder.expires_in,
                note: note.into(),
            });
        }
        Ok(snapshot)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let length = prefix.chars().count().to_string();
        let values = [("length", length), ("prefix", D::text(prefix)?)];
        let answer = self.dialect.call(None, &statement(&self.dialect, LIST, &values)).await;
        let answer = answer.map_err(|fault| fault.explain(&self.dialect, "the list of locks"))?;
        let mut names = answer.names();
        // A table's collation may consider names equal that are not.
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        Ok(names)
    }

    /// Frees the lock; no reason is stored.
    async fn evict(&self, line: &Name, id: TicketId, _note: &str) -> Result<Option<Seq>> {
        let Some(holder) = self.holder(line).await?.filter(|holder| holder.who().0 == id) else {
            return Ok(None);
        };
        let Holder { locked_by, locked_at, .. } = holder;
        let held = if locked_by.starts_with(&owner(id)) {
            // The note may change meanwhile.
            format!("left(locked_by, {OWNER}) = {}", D::text(&owner(id))?)
        } else {
            format!(
                "locked_by = {} AND {} = {}",
                D::text(&locked_by)?,
                D::SINCE,
                D::text(&locked_at)?
            )
        };
        let found = self.end(line, EVICT, &[("held", held)]).await?;
        Ok(found.then_some(Seq(0)))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fencing_tokens: false,
            crash_release: false,
            survives_restart: true,
            ..SESSION_LOCKS
        }
    }

    fn background_handle(&self) -> Self {
        Shedlock { dialect: self.dialect.background(), unanswered: Arc::clone(&self.unanswered) }
    }

    fn on_loss_hint(&self, _loss_hint: LossHint) {}

    fn address(&self) -> String {
        self.dialect.to_string()
    }
}

impl<D: Dialect> fmt::Debug for Shedlock<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dialect.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_found_in_locked_by() {
        let held = |locked_by: &str, locked_at: &str| Holder {
            locked_by: locked_by.to_owned(),
            locked_at: locked_at.to_owned(),
            expires_in: Duration::ZERO,
        };
        let id = TicketId(7 << 100);
        assert_eq!(owner(id).len(), OWNER);
        assert_eq!(held(&locked_by(id, "{}"), "now").who(), (id, "{}"));
        let long = locked_by(id, &"x".repeat(ROOM - OWNER));
        assert_eq!((&*long, held(&long, "now").who()), (&*owner(id), (id, "")));
        for other in ["host-1", "holdline ", "holdline, released", "holdline x"] {
            assert_eq!(held(other, "now").who().1, other);
        }
        let ids = [("host-1", "now"), ("host-2", "now"), ("host-1", "later")]
            .map(|(locked_by, locked_at)| held(locked_by, locked_at).who().0);
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
    }
}
