//! The scheme `shedlock`: the table of ShedLock, a library for Java, with which locks are shared. A
//! lock is a row that stays; it is free when its `lock_until` has passed.
//!
//! There is no queue, no token and no notice in that layout: mutexes only, and waiters poll. A lock
//! is held for its lease at most, unless it is renewed, and for `?at_least=` at least, even if it
//! is released before. Times are UTC by the server's live clock.

use super::address::Address;
use super::connection::{Answer, Connection};
use super::encode::{Param, fill, truth, value};
use super::keys::native;
use super::schema::{check_server, statement};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{
    AsyncStore, Capabilities, Enter, LossHint, QueueEntry, QueueSnapshot, Seq, Standing, Ticket,
    TicketId,
};
use crate::stores::queue::sql::{Fault, SESSION_LOCKS, micros, outcome_unknown};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// Locks in ShedLock's table.
#[derive(Clone)]
pub(super) struct Shedlock(Arc<Shared>);

struct Shared {
    address: Arc<Address>,
    connection: Connection,
}

/// As ShedLock says, with more room for names.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS \"holdline\".shedlock ( \
    name varchar(255) PRIMARY KEY, \
    lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";

const TYPE: &str = "SELECT a.atttypid::regtype::text FROM pg_attribute a JOIN pg_class c \
    ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relname = 'shedlock' AND a.attname = 'lock_until'";

/// The owner of a row is the beginning of `locked_by`: see [`owner`].
const OWNER: usize = 41;
/// The room in `locked_by`.
const ROOM: usize = 255;
/// The longest pause of a waiter.
const PAUSE: Duration = Duration::from_millis(250);

/// A name and a ticket, in `$1` and `$2`; a time in microseconds in `$3`; and in `$4` what
/// `locked_by` becomes. A lock that another has is only read, neither locked nor written. Of one's
/// own, a repeated request is answered as the first one.
const ENTER: &str = "\
    WITH durable AS MATERIALIZED (SELECT CASE WHEN current_setting('synchronous_commit') = 'off' \
        THEN set_config('synchronous_commit', 'on', true) END), \
    other AS MATERIALIZED (SELECT lock_until FROM {t}, durable \
        WHERE name = $1 AND lock_until > {now} AND left(locked_by, 41) <> $2), \
    mine AS (INSERT INTO {t} AS l (name, lock_until, locked_at, locked_by) \
        SELECT $1, {now} + $3::float8 * {us}, {now}, $4 WHERE NOT EXISTS (SELECT FROM other) \
        ON CONFLICT (name) DO UPDATE SET locked_by = $4, \
            lock_until = greatest({now} + $3::float8 * {us}, \
                CASE WHEN left(l.locked_by, 41) = $2 THEN l.lock_until END), \
            locked_at = CASE WHEN left(l.locked_by, 41) = $2 AND l.lock_until > {now} \
                THEN l.locked_at ELSE {now} END \
        WHERE l.lock_until <= {now} OR left(l.locked_by, 41) = $2 RETURNING 1) \
    SELECT EXISTS (SELECT FROM mine), coalesce((SELECT \
        extract(epoch FROM lock_until - {now}) * 1000000 FROM other), 0)::bigint";

const KEEP: &str = "\
    WITH durable AS MATERIALIZED (SELECT CASE WHEN current_setting('synchronous_commit') = 'off' \
        THEN set_config('synchronous_commit', 'on', true) END) \
    UPDATE {t} SET lock_until = greatest(lock_until, {now} + $3::float8 * {us}), locked_by = $4 \
    FROM durable WHERE name = $1 AND left(locked_by, 41) = $2 AND lock_until > {now} RETURNING 1";

/// What was released is nobody's, though it may stay locked for a while.
const LEAVE: &str = "\
    UPDATE {t} SET lock_until = greatest({now}, locked_at + $3::float8 * {us}), \
        locked_by = 'holdline, released' \
    WHERE name = $1 AND left(locked_by, 41) = $2 AND lock_until > {now} RETURNING 1";

const LOOK: &str = "\
    SELECT locked_by, (extract(epoch FROM lock_until - {now}) * 1000000)::bigint \
    FROM {t} WHERE name = $1 AND lock_until > {now}";

const LIST: &str = "\
    SELECT name::text FROM {t} WHERE lock_until > {now} AND starts_with(name::text, $1) \
    ORDER BY name::text COLLATE \"C\"";

/// Here `$2` is the whole of `locked_by`.
const EVICT: &str = "\
    UPDATE {t} SET lock_until = {now} WHERE name = $1 AND locked_by = $2 AND lock_until > {now} \
    RETURNING 1";

impl Shedlock {
    /// Connects, and checks what is there.
    pub(super) async fn open(address: Address) -> Result<Self> {
        let address = Arc::new(address);
        let connection = Connection::new(Arc::clone(&address));
        let opened = connection.session().await;
        opened.map_err(|fault| fault.explain(&address, "ShedLock's table"))?;
        Ok(Shedlock(Arc::new(Shared { address, connection })))
    }

    /// Runs a statement, which may be repeated, about this.
    async fn call(&self, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Answer> {
        let Shared { address, connection } = &*self.0;
        let sql = sql.replace("{now}", "timezone('utc', clock_timestamp())");
        let sql = sql.replace("{us}", "interval '1 microsecond'");
        let sql = statement(&address.schema, &sql.replace("{t}", "\"holdline\".shedlock"));
        let answer = connection.call(None, &fill(&sql, params)?).await;
        answer.map_err(|fault| fault.explain(address, what))
    }

    async fn call_about(&self, line: &Name, sql: &str, params: &[Param<'_>]) -> Result<Answer> {
        self.call(&format!("lock \"{line}\""), sql, params).await
    }

    fn no_such_lock(&self) -> Error {
        let message = format!(
            "{} has mutexes only by scheme=shedlock; scheme=table has semaphores and read-write \
             locks",
            self.0.address
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// The present holder: what `locked_by` says, and for how long.
    async fn holder(&self, line: &Name) -> Result<Option<(String, Duration)>> {
        let answer = self.call_about(line, LOOK, &[Param::Text(line.as_str())]).await?;
        let Some(row) = answer.rows.first() else { return Ok(None) };
        let left: i64 = value(row, 1).unwrap_or(0);
        let by = row.try_get(0).ok().flatten().unwrap_or_default().to_owned();
        Ok(Some((by, Duration::from_micros(left.max(0).unsigned_abs()))))
    }
}

/// Checks a new connection, and that ShedLock's table is there, which it makes if the address says
/// so.
pub(super) async fn check(client: &Client, address: &Address) -> Result<(), Fault> {
    check_server(client, address).await?;
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
        [(&address.schema, Type::TEXT)];
    let mut rows = client.query_typed(TYPE, &params).await?;
    if rows.is_empty() && address.install {
        client.batch_execute(&statement(&address.schema, CREATE)).await?;
        rows = client.query_typed(TYPE, &params).await?;
    }
    let wrong = match rows.first().map(|row| row.get::<_, &str>(0)) {
        Some("timestamp without time zone") => return Ok(()),
        Some(other) => format!("has times of the type {other}, not timestamp"),
        None => "is not there; make it as ShedLock says, or open it with ?install=yes".to_owned(),
    };
    let message = format!("the table {}.shedlock at {address} {wrong}", address.schema);
    Err(Fault::Ours(ErrorKind::Unsupported, message))
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

/// The ticket and the note in a `locked_by`; of another program's, a number that stands for it.
fn holder_of(locked_by: &str) -> (TicketId, &str) {
    let ours = locked_by.strip_prefix("holdline ").and_then(|rest| rest.split_at_checked(32));
    if let Some((id, note)) = ours.and_then(|(id, note)| Some((id.parse().ok()?, note))) {
        return (id, note.trim_start());
    }
    let hash = native(locked_by);
    (TicketId(u128::from_be_bytes(std::array::from_fn(|at| hash[at]))), locked_by)
}

impl AsyncStore for Shedlock {
    async fn enter(
        &self,
        line: &Name,
        ticket: &Ticket,
        note: &Arc<str>,
        how: Enter,
    ) -> Result<Standing> {
        if ticket.capacity != 1 {
            return Err(self.no_such_lock());
        }
        if matches!(how, Enter::Keep(seq) if seq != Seq(0)) {
            return Ok(Standing::Lost); // no place of this store
        }
        let (mine, by) = (owner(ticket.id), locked_by(ticket.id, note));
        let keeps = matches!(how, Enter::Keep(_));
        let (sql, least) =
            if keeps { (KEEP, Duration::ZERO) } else { (ENTER, self.0.address.at_least) };
        let params = [
            Param::Text(line.as_str()),
            Param::Text(&mine),
            Param::Number(micros(ticket.lease.max(least))),
            Param::Text(&by),
        ];
        let answer = self.call_about(line, sql, &params).await?;
        let row = answer.rows.first();
        if keeps {
            return Ok(row.map_or(Standing::Lost, |_| Standing::Admitted(Seq(0))));
        }
        if row.is_some_and(|row| truth(row, 0) == Some(true)) {
            return Ok(Standing::Admitted(Seq(0)));
        }
        let left: i64 = row.and_then(|row| value(row, 1)).unwrap_or(0);
        let left = Duration::from_micros(left.max(0).unsigned_abs());
        Ok(Standing::Waiting { seq: None, again: left.clamp(Duration::from_millis(2), PAUSE) })
    }

    async fn leave(&self, line: &Name, id: TicketId) -> Result<bool> {
        let params = [
            Param::Text(line.as_str()),
            Param::Text(&owner(id)),
            Param::Number(micros(self.0.address.at_least)),
        ];
        let answer = self.call_about(line, LEAVE, &params).await?;
        if answer.rows.is_empty() && answer.repeated {
            return Err(outcome_unknown(&self.0.address, line));
        }
        Ok(!answer.rows.is_empty())
    }

    async fn watch(&self, _line: &Name, _id: TicketId) -> Result<Option<Seq>> {
        pending().await
    }

    async fn snapshot(&self, line: &Name) -> Result<QueueSnapshot> {
        let mut snapshot = QueueSnapshot::default();
        if let Some((by, expires_in)) = self.holder(line).await? {
            let (id, note) = holder_of(&by);
            snapshot.capacity = 1;
            snapshot.places.push(QueueEntry {
                id,
                seq: Seq(0),
                weight: 1,
                admitted: true,
                expires_in,
                note: note.into(),
            });
        }
        Ok(snapshot)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let rows = self.call("the list of locks", LIST, &[Param::Text(prefix)]).await?.rows;
        let names = rows.iter().filter_map(|row| row.try_get(0).ok()?);
        Ok(names.filter_map(|name| Name::new(name).ok()).collect())
    }

    /// Frees it; no reason is kept.
    async fn evict(&self, line: &Name, id: TicketId, _note: &str) -> Result<Option<Seq>> {
        let Some((by, _)) = self.holder(line).await?.filter(|(by, _)| holder_of(by).0 == id) else {
            return Ok(None);
        };
        let params = [Param::Text(line.as_str()), Param::Text(&by)];
        let answer = self.call_about(line, EVICT, &params).await?;
        if answer.rows.is_empty() && answer.repeated {
            return Err(outcome_unknown(&self.0.address, line));
        }
        Ok((!answer.rows.is_empty()).then_some(Seq(0)))
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
        self.clone() // connections run on a thread of their own
    }

    fn on_loss_hint(&self, _loss_hint: LossHint) {}

    fn address(&self) -> String {
        self.0.address.to_string()
    }
}

impl fmt::Debug for Shedlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_found_in_locked_by() {
        let id = TicketId(7 << 100);
        assert_eq!(owner(id).len(), OWNER);
        assert_eq!(holder_of(&locked_by(id, "{}")), (id, "{}"));
        let long = locked_by(id, &"x".repeat(ROOM - OWNER));
        assert_eq!((&*long, holder_of(&long)), (&*owner(id), (id, "")));
        for other in ["host-1", "holdline ", "holdline, released", "holdline x"] {
            assert_eq!(holder_of(other).1, other);
        }
    }
}
