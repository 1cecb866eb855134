//! The statements of a line in tables, and the decoding of their answers.
//!
//! Texts are written as hexadecimal digits, so that nothing in them can be taken for SQL.
//!
//! A lock of the scheme `row` or `named` has a line, too. Its only place is the record of the
//! holder, and its `listener` the holder's session.

use super::config::Scheme;
use crate::names::Name;
use crate::store::{EVICTIONS_KEPT, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::calls::Row;
use crate::stores::queue::sql::{self, micros, number_of};
use mysql_async::Value;
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

/// The server's live clock in microseconds since 1970; its session is in UTC.
macro_rules! now {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"
    };
}
pub(super) const NOW: &str = now!();

/// The session settings on which the quick statements depend. The procedures refuse another time
/// zone.
macro_rules! set {
    () => {
        "@@autocommit = 1 AND @@time_zone = '+00:00'"
    };
}

/// A line's key in the tables: the name of a lock, after the [`mark`] of its scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn new(scheme: Scheme, line: &Name) -> Self {
        Key([mark(scheme), line.as_str().as_bytes()].concat())
    }

    /// Whether it is that of a record of a holder.
    fn is_record(&self) -> bool {
        matches!(self.0.first(), Some(1 | 2))
    }

    fn hex(&self) -> String {
        hex(&self.0)
    }

    /// The name.
    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a name is text")
    }
}

/// The first byte of the keys of the scheme `row` or `named`, which no name has.
fn mark(scheme: Scheme) -> &'static [u8] {
    match scheme {
        Scheme::Row => &[1],
        Scheme::Named => &[2],
        Scheme::Table | Scheme::Shedlock => &[],
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    format!("x'{}'", hex_digits(bytes))
}

fn hex_digits(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    text
}

pub(super) fn enter(key: &Key, ticket: &Ticket, note: &str, how: Enter, listener: u64) -> String {
    format!(
        "CALL holdline_1_enter({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {listener})",
        key.hex(),
        hex(&ticket.id.0.to_be_bytes()),
        ticket.weight,
        ticket.capacity,
        micros(ticket.lease),
        micros(ticket.wait_lease),
        ticket.token_count,
        i64::try_from(ticket.min_token).unwrap_or(i64::MAX), // more than there are
        number_of(how),
        hex(note.as_bytes()),
    )
}

/// The highest token with which the quick statements are used, so that they need not handle the
/// last ones.
const MOST: i64 = i64::MAX / 2;

/// A statement, and the values of its `?`. If it has any, it is prepared once for each connection,
/// which saves the server from parsing it.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) text: Cow<'static, str>,
    pub(super) values: Vec<Value>,
    /// The line of a quick statement: it may be sent with others.
    pub(super) line: Option<Key>,
}

/// The number of prepared statements.
pub(super) const PREPARED: usize = 3;

impl Statement {
    pub(super) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Statement { text: text.into(), values: Vec::new(), line: None }
    }

    fn quick(text: &'static str, values: Vec<Value>, key: &Key) -> Self {
        Statement { text: text.into(), values, line: Some(key.clone()) }
    }

    /// The statement with its values in it.
    pub(super) fn literal(&self) -> String {
        let mut values = self.values.iter();
        let mut literal = String::with_capacity(self.text.len() * 2);
        for (n, part) in self.text.split('?').enumerate() {
            if n > 0 {
                // The values are numbers and hexadecimal digits.
                literal.push_str(&values.next().map_or_else(String::new, |one| one.as_sql(true)));
            }
            literal.push_str(part);
        }
        literal
    }
}

/// Bytes as the value of an `UNHEX(?)`. The server could take raw bytes for text in some character
/// set, and convert them.
fn digits(bytes: &[u8]) -> Value {
    Value::Bytes(hex_digits(bytes).into_bytes())
}

/// The assignments are evaluated from left to right, so the clock is read once.
const QUICK_ENTER: &str = concat!(
    "UPDATE holdline_line SET expires = ",
    now!(),
    " + ?, due = expires, seq = LAST_INSERT_ID(GREATEST(last + 1, expires - ?, ?)), \
     last = seq + ?, capacity = ?, places = 1, held = ?, id = UNHEX(?), weight = ?, \
     note = UNHEX(?) WHERE name = UNHEX(?) AND places = 0 AND bar = 0 AND last < ? AND ",
    set!()
);

/// Takes the first place of an empty line. It sets the last insert id to the place number.
pub(super) fn quick_enter(key: &Key, ticket: &Ticket, note: &str) -> Option<Statement> {
    let least = i64::try_from(ticket.min_token).ok().filter(|least| *least < MOST)?;
    let lease = micros(ticket.lease);
    let values = vec![
        lease.into(),
        lease.into(),
        least.into(),
        (ticket.token_count.max(1) - 1).into(),
        ticket.capacity.into(),
        ticket.weight.into(),
        digits(&ticket.id.0.to_be_bytes()),
        ticket.weight.into(),
        digits(note.as_bytes()),
        digits(&key.0),
        MOST.into(),
    ];
    Some(Statement::quick(QUICK_ENTER, values, key))
}

const QUICK_RENEW: &str = concat!(
    "UPDATE holdline_line SET note = UNHEX(?), expires = GREATEST(expires, ",
    now!(),
    " + ?), due = IF(places = 1, expires, due) WHERE name = UNHEX(?) AND id = UNHEX(?) \
     AND seq = ? AND front > ? AND weight = ? AND capacity = ? AND places > 0 AND due > ",
    now!(),
    " AND ",
    set!()
);

/// Renews the first place of a line, if it is admitted and there is nothing else to do.
pub(super) fn quick_renew(key: &Key, ticket: &Ticket, note: &str, seq: Seq) -> Option<Statement> {
    let seq = i64::try_from(seq.0).ok().filter(|_| ticket.min_token == 0)?;
    let values = vec![
        digits(note.as_bytes()),
        micros(ticket.lease).into(),
        digits(&key.0),
        digits(&ticket.id.0.to_be_bytes()),
        seq.into(),
        seq.into(),
        ticket.weight.into(),
        ticket.capacity.into(),
    ];
    Some(Statement::quick(QUICK_RENEW, values, key))
}

const QUICK_LEAVE: &str = concat!(
    "UPDATE holdline_line SET places = 0, held = 0, front = ?, due = ? \
     WHERE name = UNHEX(?) AND places = 1 AND id = UNHEX(?) AND due > ",
    now!(),
    " AND ",
    set!()
);

/// Gives up the only place of a line. The row's columns of that place are then meaningless.
pub(super) fn quick_leave(key: &Key, id: TicketId) -> Statement {
    let (name, id) = (digits(&key.0), digits(&id.0.to_be_bytes()));
    Statement::quick(QUICK_LEAVE, vec![i64::MAX.into(), i64::MAX.into(), name, id], key)
}

/// Locks the rows of these lines until the transaction ends, or fails at once if another has locked
/// one. It reads a column that is not in the index, as it would otherwise scan a small table whole,
/// and lock all of it.
pub(super) fn lock_lines<'a>(lines: impl Iterator<Item = &'a Key>) -> String {
    let names: Vec<String> = lines.map(Key::hex).collect();
    format!(
        "SELECT SUM(places) FROM holdline_line FORCE INDEX (PRIMARY) WHERE name IN ({}) \
         FOR UPDATE NOWAIT",
        names.join(", ")
    )
}

pub(super) fn leave(key: &Key, id: TicketId, bar: Duration, listener: u64) -> String {
    let (line, id) = (key.hex(), hex(&id.0.to_be_bytes()));
    format!("CALL holdline_1_leave({line}, {id}, {}, NULL, 0, {listener})", micros(bar))
}

pub(super) fn evict(key: &Key, id: TicketId, note: &str, kept: Duration) -> String {
    let (line, id) = (key.hex(), hex(&id.0.to_be_bytes()));
    let (note, kept) = (hex(note.as_bytes()), micros(kept));
    format!("CALL holdline_1_leave({line}, {id}, 0, {note}, {kept}, 0)")
}

pub(super) fn sweep(idle: Duration, time: Duration) -> String {
    format!("CALL holdline_1_sweep({}, {})", micros(idle), micros(time))
}

/// The condition that the record of a lock of the scheme `row` or `named` is that of a holder: its
/// session exists.
const EXISTS: &str = " AND IS_USED_LOCK(CONCAT('holdline-session:', listener)) IS NOT NULL";

/// Takes a snapshot in one statement, so that it is consistent.
pub(super) fn look(key: &Key) -> String {
    let (line, exists) = (key.hex(), if key.is_record() { EXISTS } else { "" });
    format!(
        "SELECT 0, seq, id, weight, expires - {NOW}, capacity, note FROM holdline_line \
         WHERE name = {line} AND places > 0{exists} \
         UNION ALL SELECT 0, seq, id, weight, expires - {NOW}, 0, note FROM holdline_place \
         WHERE line = {line} \
         UNION ALL (SELECT 1, n, id, 0, 0, 0, note FROM holdline_evicted \
         WHERE line = {line} AND until > {NOW} ORDER BY n DESC LIMIT {EVICTIONS_KEPT}) \
         ORDER BY 1, 2"
    )
}

/// The names of a scheme's lines that have an unexpired place.
pub(super) fn list(scheme: Scheme, prefix: &str) -> String {
    let mark = mark(scheme);
    let prefix = [mark, prefix.as_bytes()].concat();
    let (length, prefix, from) = (prefix.len(), hex(&prefix), mark.len() + 1);
    // The keys of other schemes come before all names.
    let (first, exists) = if mark.is_empty() { (hex(b" "), "") } else { (prefix.clone(), EXISTS) };
    format!(
        "SELECT SUBSTRING(name, {from}) FROM holdline_line \
         WHERE name >= GREATEST({prefix}, {first}) AND LEFT(name, {length}) = {prefix} \
         AND places > 0{exists} AND (due > {NOW} OR expires > {NOW} OR EXISTS (SELECT 1 \
         FROM holdline_place WHERE line = name AND holdline_place.expires > {NOW})) ORDER BY name"
    )
}

/// The name of a named lock, of 64 characters. All databases of a server share these names.
fn key(line: &Name) -> String {
    let digits = hex_digits(line.as_str().as_bytes());
    format!("CONCAT('holdline:', LEFT(SHA2(CONCAT(DATABASE(), ' {digits}'), 256), 55))")
}

pub(super) fn get_lock(line: &Name) -> String {
    format!("SELECT GET_LOCK({}, 0)", key(line))
}

pub(super) fn is_mine(line: &Name) -> String {
    format!("SELECT IS_USED_LOCK({}) = CONNECTION_ID()", key(line))
}

pub(super) fn release_lock(line: &Name) -> String {
    format!("SELECT RELEASE_LOCK({})", key(line))
}

pub(super) fn lock_row(line: &Name) -> String {
    let line = hex(line.as_str().as_bytes());
    format!("SELECT 1 FROM holdline_row WHERE name = {line} FOR UPDATE NOWAIT")
}

pub(super) fn make_row(line: &Name) -> String {
    // With statement-based logging, a server refuses writes under READ COMMITTED.
    format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
         INSERT IGNORE INTO holdline_row (name) VALUES ({})",
        hex(line.as_str().as_bytes())
    )
}

/// The named lock that a session holds for as long as it lasts.
fn session_key(session: u64) -> String {
    format!("'holdline-session:{session}'")
}

pub(super) fn name_session(session: u64) -> String {
    format!("SELECT GET_LOCK({}, 0)", session_key(session))
}

/// Gives a session another number: 2 if it had the first one, and nobody has the other.
pub(super) fn rename_session(from: u64, to: u64) -> String {
    format!("SELECT RELEASE_LOCK({}) + GET_LOCK({}, 0)", session_key(from), session_key(to))
}

/// Ends the connection that has this session at that moment. If none has, that is connection 0,
/// which never exists.
pub(super) fn end_session(session: u64) -> String {
    format!("KILL CONNECTION IFNULL(IS_USED_LOCK({}), 0)", session_key(session))
}

/// Takes the named lock by which a process's listener is found: 1, or 0 if another connection has
/// it. NULL if the connection has another number in the server, as behind a proxy that shares
/// connections: then another client's statement could be ended instead. The server frees the lock
/// soon after the listener falls silent, for the next one.
pub(super) fn listen(process: u64, connection: u32) -> String {
    format!(
        "SET SESSION wait_timeout = 5; SELECT IF(@@pseudo_thread_id = {connection}, \
         GET_LOCK('holdline-listener:{process}', 0), NULL)"
    )
}

/// Takes the named lock for which a process's listener waits, for a connection for calls, unless
/// one has it already.
pub(super) fn be_waited_for(process: u64) -> String {
    let lock = format!("'holdline-process:{process}'");
    format!("SELECT IF(IS_USED_LOCK({lock}) IS NULL, GET_LOCK({lock}, 0), 1)")
}

/// Waits for that lock: 0 at the end of the time, NULL or an error when the statement was ended,
/// and 1 if no connection had it.
pub(super) fn wait_to_be_told(process: u64, time: Duration) -> String {
    format!("SELECT GET_LOCK('holdline-process:{process}', {})", time.as_secs())
}

/// Creates a line, unless it exists.
pub(super) fn make_line(key: &Key) -> String {
    format!("CALL holdline_1_create({})", key.hex())
}

/// Records the holder of a lock of the scheme `row` or `named`, which already has the lock, in its
/// line, and sets the last insert id to its token. Records nothing if its session has ended: then
/// another may hold the lock and be on record.
pub(super) fn record(key: &Key, ticket: &Ticket, session: u64, note: &str) -> Statement {
    let (line, id, note) = (key.hex(), hex(&ticket.id.0.to_be_bytes()), hex(note.as_bytes()));
    let (lease, weight, capacity) = (micros(ticket.lease), ticket.weight, ticket.capacity);
    let text = format!(
        "UPDATE holdline_line SET expires = {NOW} + {lease}, due = expires, \
         seq = LAST_INSERT_ID(GREATEST(last + 1, expires - {lease})), last = seq, places = 1, \
         capacity = {capacity}, held = {weight}, front = {}, id = {id}, weight = {weight}, \
         note = {note}, listener = {session} WHERE name = {line} AND IS_USED_LOCK({}) IS NOT NULL",
        i64::MAX,
        session_key(session)
    );
    Statement { line: Some(key.clone()), ..Statement::text(text) }
}

/// The session that holds the lock for this ticket.
pub(super) fn session_of(key: &Key, id: TicketId) -> String {
    let (line, id) = (key.hex(), hex(&id.0.to_be_bytes()));
    format!("SELECT listener FROM holdline_line WHERE name = {line} AND places > 0 AND id = {id}")
}

/// The front of admission in these lines, and the first place if it has not expired.
pub(super) fn fronts(lines: &[Name]) -> String {
    let names: Vec<String> = lines.iter().map(|line| hex(line.as_str().as_bytes())).collect();
    format!(
        "SELECT name, front, IF(places > 0 AND expires > {NOW}, id, NULL), seq FROM holdline_line \
         WHERE name IN ({})",
        names.join(", ")
    )
}

/// The front of admission in a line.
#[derive(Debug, PartialEq)]
pub(super) struct Front {
    /// The first waiting place.
    pub(super) waits: Seq,
    /// The first of all places.
    pub(super) first: Option<(TicketId, Seq)>,
}

/// Decodes the answer to [`fronts`].
pub(super) fn front_rows(rows: &[Row]) -> HashMap<Vec<u8>, Front> {
    let row = |row: &Row| {
        let first = row.id(2).zip(row.number(3).map(Seq));
        Some((row.bytes(0)?.to_vec(), Front { waits: Seq(row.number(1)?), first }))
    };
    rows.iter().filter_map(row).collect()
}

/// The admitted tickets and their places.
pub(super) type Woken = Vec<(TicketId, Seq)>;

fn woken(bytes: &[u8]) -> Option<Woken> {
    let place = |place: &[u8]| {
        let id = u128::from_be_bytes(*place.first_chunk()?);
        let seq = u64::from_be_bytes(*place.get(16..)?.first_chunk()?);
        Some((TicketId(id), Seq(seq)))
    };
    // The number of the process is for the server only.
    bytes.chunks(32).map(place).collect()
}

/// Decodes the answer to an entry; `None` if it is malformed. A place that is kept must keep its
/// number.
pub(super) fn standing(
    ticket: &Ticket,
    how: Enter,
    rows: &[Row],
) -> Option<(Result<Standing, Refusal>, Woken)> {
    let row = rows.first()?;
    let (answer, seq) = (row.number(0)?, row.number(1));
    if matches!((how, answer), (Enter::Keep(kept), 0) if Some(kept.0) != seq) {
        return None;
    }
    let wait = row.number(2).map(Duration::from_micros);
    let standing = sql::standing(ticket, answer, seq, wait)?;
    Some((standing, woken(row.bytes(3)?)?))
}

/// Decodes the answer to a departure or an eviction: a number and the admitted tickets.
pub(super) fn left(rows: &[Row]) -> Option<(u64, Woken)> {
    let row = rows.first()?;
    Some((row.number(0)?, woken(row.bytes(1)?)?))
}
