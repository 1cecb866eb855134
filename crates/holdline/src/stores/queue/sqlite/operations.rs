//! The operations, each in one transaction: the kernel's line over the rows, and the notices to
//! send.

use super::errors::corrupt_value;
use super::rows::{self, Owner, Process, Rows, column, number};
use super::{evictions, machine};
use crate::clock;
use crate::names::Name;
use crate::store::{Enter, QueueEntry, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use holdline_kernel::rule::fits;
use holdline_kernel::{Head, Line, Place, Places, Time};
use rusqlite::{Connection, Result, params};
use std::sync::Arc;

/// The kinds of notice that a process gets about one of its tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum NoticeKind {
    /// It was admitted.
    Admitted = b'A',
    /// It is now the first waiter.
    First = b'F',
    /// It was removed by force.
    Evicted = b'E',
}

/// A notice to be sent once the transaction is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) process: Process,
    pub(super) place: Noticed,
    pub(super) kind: NoticeKind,
}

/// A ticket and its place, as a notice names them.
pub(super) type Noticed = (TicketId, Seq);

impl Notice {
    fn about(place: &Place<Owner>, kind: NoticeKind) -> Self {
        Notice { process: place.data.process, place: (place.id, place.seq), kind }
    }
}

/// The result of a transaction, and the notices to send.
#[derive(Debug)]
pub(super) struct Done<T> {
    pub(super) value: T,
    pub(super) notices: Vec<Notice>,
}

/// The result of an attempt to enter.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) outcome: Result<Standing, Refusal>,
    /// The processes that hold or wait, after a try that was not admitted.
    pub(super) blockers: Vec<Process>,
}

/// The state of a ticket that is about to wait.
#[derive(Debug)]
pub(super) enum Outlook {
    /// It holds, or is gone.
    Decided,
    /// It waits, and would wait for ever if the death of one of these processes went unnoticed.
    Waits(Vec<Process>),
}

type LineOf<'a> = Line<'a, Rows<'a>, &'a mut dyn FnMut(&Place<Owner>)>;

/// The age of its last token, in microseconds, at which an empty line may be deleted.
const IDLE: u64 = 3600 * 1_000_000;
/// The number of lines in one sweep; one new line in [`SWEEP_ODDS`] triggers a sweep.
const SWEEP: u32 = 64;
const SWEEP_ODDS: u8 = 16;
/// The most places of a dead process removed in one transaction.
const REMOVAL_BATCH: u32 = 256;

/// An open transaction; rolled back unless it is committed.
struct Txn<'a>(&'a Connection);

impl<'a> Txn<'a> {
    fn begin(conn: &'a Connection, how: &str) -> Result<Self> {
        conn.prepare_cached(how)?.execute([])?;
        Ok(Txn(conn))
    }

    fn commit(self) -> Result<()> {
        self.0.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            let _ = self.0.execute_batch("ROLLBACK");
        }
    }
}

fn write<T>(
    conn: &Connection,
    work: impl FnOnce(&mut Vec<Notice>) -> Result<T>,
) -> Result<Done<T>> {
    let txn = Txn::begin(conn, "BEGIN IMMEDIATE")?;
    let mut notices = Vec::new();
    let value = work(&mut notices)?;
    txn.commit()?;
    Ok(Done { value, notices })
}

fn read<T>(conn: &Connection, work: impl FnOnce() -> Result<T>) -> Result<Done<T>> {
    let txn = Txn::begin(conn, "BEGIN")?;
    let value = work()?;
    txn.commit()?;
    Ok(Done { value, notices: Vec::new() })
}

/// Runs one of the kernel's operations on a line.
fn on<T>(
    conn: &Connection,
    name: &str,
    hint: Option<Seq>,
    notices: &mut Vec<Notice>,
    work: impl FnOnce(&mut LineOf<'_>) -> Result<T>,
) -> Result<T> {
    let stored = rows::head(conn, name)?;
    let before = match stored {
        Some(head) => head,
        None => Head { last: swept_last(conn)?, ..Head::default() },
    };
    let mut head = before;
    let mut rows = Rows::new(conn, name, &head, hint);
    let mut wake = |place: &Place<Owner>| {
        notices.push(Notice::about(place, NoticeKind::Admitted));
    };
    let mut line = Line {
        head: &mut head,
        places: &mut rows,
        now: machine::now(),
        stamp: clock::wall_micros(),
        wake: &mut wake as &mut dyn FnMut(&Place<Owner>),
    };
    let value = work(&mut line)?;
    if head == before {
        return Ok(value);
    }
    if !rows::fits_together(&head) {
        return Err(corrupt_value());
    }
    if head.front != before.front && before.front != Seq::END && head.front != Seq::END {
        notices.extend(first(conn, name, &head)?);
    }
    rows::set_head(conn, name, &head, stored.is_some())?;
    if stored.is_none() && fastrand::u8(..SWEEP_ODDS) == 0 {
        sweep(conn, notices)?;
    }
    Ok(value)
}

/// The notice to the first waiting ticket, whose process then watches the holders' processes.
fn first(conn: &Connection, name: &str, head: &Head) -> Result<Option<Notice>> {
    let first = Rows::new(conn, name, head, None).first_from(head.front)?;
    Ok(first.map(|place| Notice::about(&place, NoticeKind::First)))
}

/// Takes, keeps or renews a place.
pub(super) fn enter(
    conn: &Connection,
    line: &Name,
    ticket: &Ticket,
    how: Enter,
    owner: &Owner,
) -> Result<Done<Entered>> {
    let hint = match how {
        Enter::Keep(seq) => Some(seq),
        Enter::Try | Enter::Queue => None,
    };
    let name = line.as_str();
    write(conn, |notices| {
        let outcome = on(conn, name, hint, notices, |line| line.enter(ticket, how, owner.clone()))?;
        let refused = matches!(outcome, Ok(Standing::Waiting { seq: None, .. }));
        let line = if refused { rows::head(conn, name)? } else { None };
        let blockers = match line {
            Some(head) => before(conn, name, &head, Seq::END)?,
            None => Vec::new(),
        };
        Ok(Entered { outcome, blockers })
    })
}

/// Gives a place up.
pub(super) fn leave(conn: &Connection, line: &Name, id: TicketId) -> Result<Done<bool>> {
    write(conn, |notices| on(conn, line.as_str(), None, notices, |line| line.leave(id)))
}

/// Evicts a ticket, and stores the note about it.
pub(super) fn evict(
    conn: &Connection,
    line: &Name,
    id: TicketId,
    note: &str,
) -> Result<Done<Option<Seq>>> {
    write(conn, |notices| {
        let (token, owner) = on(conn, line.as_str(), None, notices, |line| {
            let owner = if line.head.count == 0 { None } else { line.places.by_id(id)? };
            Ok((line.evict(id)?, owner))
        })?;
        if let (Some(_), Some(place)) = (token, owner) {
            evictions::keep(conn, line.as_str(), id, note)?;
            notices.push(Notice::about(&place, NoticeKind::Evicted));
        }
        Ok(token)
    })
}

/// Removes places of a dead process. Returns whether there may be more. Most dead processes have
/// none, and then the write lock is not taken.
pub(super) fn remove_places_of(conn: &Connection, process: Process) -> Result<Done<bool>> {
    const ANY: &str = "SELECT 1 FROM place WHERE process = ?1 LIMIT 1";
    const OF_PROCESS: &str =
        "SELECT name, id FROM place WHERE process = ?1 ORDER BY name, seq LIMIT ?2";
    if !conn.prepare_cached(ANY)?.exists([process.cast_signed()])? {
        return Ok(Done { value: false, notices: Vec::new() });
    }
    write(conn, |notices| {
        let found: Vec<(String, TicketId)> = conn
            .prepare_cached(OF_PROCESS)?
            .query_map(params![process.cast_signed(), REMOVAL_BATCH], |row| {
                Ok((row.get(0)?, rows::ticket(row, 1)?))
            })?
            .collect::<Result<_>>()?;
        for (name, id) in &found {
            on(conn, name, None, notices, |line| line.leave(*id))?;
        }
        Ok(found.len() == REMOVAL_BATCH as usize)
    })
}

/// Finds the processes that a waiting ticket must watch.
///
/// The first waiter watches the holders, and every other one the ticket ahead of it, so that a
/// death wakes one process and not all.
pub(super) fn outlook(conn: &Connection, line: &Name, id: TicketId) -> Result<Done<Outlook>> {
    let name = line.as_str();
    read(conn, || {
        let Some(head) = rows::head(conn, name)? else { return Ok(Outlook::Decided) };
        let place = Rows::new(conn, name, &head, None).by_id(id)?;
        let Some(place) = place.filter(|place| place.seq >= head.front) else {
            return Ok(Outlook::Decided);
        };
        Ok(Outlook::Waits(if place.seq == head.front {
            before(conn, name, &head, head.front)?
        } else {
            rows::owner_before(conn, name, place.seq)?.into_iter().collect()
        }))
    })
}

/// The owners of the places before `until`, without duplicates. If there are more than can be
/// watched at once, the first one and a random selection of the others.
fn before(conn: &Connection, name: &str, head: &Head, until: Seq) -> Result<Vec<Process>> {
    let mut found = rows::owners(conn, name, Seq(0), until)?;
    if found.len() == rows::OWNERS {
        let first = Rows::new(conn, name, head, None).first_from(Seq(0))?;
        let first = first.map_or(0, |place| place.seq.0);
        let start = Seq(fastrand::u64(first..=head.last.max(first)));
        found.extend(rows::owners(conn, name, start.min(until), until)?);
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The whole line, without places that have lapsed or whose process is dead. Writes nothing, so it
/// works even while another process holds the write lock.
pub(super) fn snapshot(
    conn: &Connection,
    line: &Name,
    is_alive: &mut dyn FnMut(Process) -> bool,
) -> Result<Done<QueueSnapshot>> {
    const ALL: &str =
        "SELECT seq, id, weight, expires, process, note FROM place WHERE name = ?1 ORDER BY seq";
    let name = line.as_str();
    read(conn, || {
        let now = machine::now();
        let evictions = evictions::of(conn, name, now)?;
        let Some(head) = rows::head(conn, name)? else {
            return Ok(QueueSnapshot { evictions, ..QueueSnapshot::default() });
        };
        let (mut ahead, mut open, mut seen) = (0, true, 0);
        let mut places = Vec::new();
        let mut statement = conn.prepare_cached(ALL)?;
        let mut rows = statement.query([name])?;
        while let Some(row) = rows.next()? {
            let (seq, expires) = (Seq(number(row, 0)?), Time(number(row, 3)?));
            let weight: u32 = row.get(2)?;
            seen += 1;
            if !rows::belongs(&head, seq, weight) {
                return Err(corrupt_value());
            }
            if expires <= now || !is_alive(rows::process(row, 4)?) {
                continue;
            }
            // Dead and lapsed places may still count in the head's front, so the rule is applied to
            // the others behind it.
            open = open && (seq < head.front || fits(ahead, weight, head.capacity));
            ahead = ahead.saturating_add(u64::from(weight));
            places.push(QueueEntry {
                id: rows::ticket(row, 1)?,
                seq,
                weight,
                admitted: open,
                expires_in: now.until(expires),
                note: Arc::from(row.get_ref(5)?.as_str()?),
            });
        }
        if seen != head.count {
            return Err(corrupt_value());
        }
        let capacity = if places.is_empty() { 0 } else { head.capacity };
        Ok(QueueSnapshot { capacity, places, evictions })
    })
}

/// The names of the lines that have a place of a living process.
pub(super) fn list(
    conn: &Connection,
    prefix: &str,
    is_alive: &mut dyn FnMut(Process) -> bool,
) -> Result<Done<Vec<Name>>> {
    const NAMES: &str = "SELECT name, count FROM line WHERE name >= ?1 ORDER BY name";
    const OWNERS: &str = "SELECT process FROM place WHERE name = ?1 AND expires > ?2 ORDER BY seq";
    read(conn, || {
        let now = machine::now();
        let mut names = Vec::new();
        let mut lines = conn.prepare_cached(NAMES)?;
        let mut lines = lines.query([prefix])?;
        while let Some(line) = lines.next()? {
            let name: String = line.get(0)?;
            if !name.starts_with(prefix) {
                break;
            }
            if number(line, 1)? == 0 {
                continue;
            }
            let mut owners = conn.prepare_cached(OWNERS)?;
            let mut owners = owners.query(params![name, column(now.0)])?;
            while let Some(owner) = owners.next()? {
                if is_alive(rows::process(owner, 0)?) {
                    names.push(Name::new(name).map_err(|_| corrupt_value())?);
                    break;
                }
            }
        }
        Ok(names)
    })
}

fn swept_last(conn: &Connection) -> Result<u64> {
    conn.prepare_cached("SELECT last FROM meta")?.query_row([], |row| number(row, 0))
}

/// Deletes the idle lines among the next few in order of name. Their highest token is kept for all
/// lines, so that no line's tokens ever fall.
#[allow(clippy::redundant_closure_for_method_calls, reason = "the method alone is not general")]
fn sweep(conn: &Connection, notices: &mut Vec<Notice>) -> Result<()> {
    const NEXT: &str =
        "SELECT name, last, count, due FROM line WHERE name > ?1 ORDER BY name LIMIT ?2";
    let (mut last, cursor): (u64, String) =
        conn.prepare_cached("SELECT last, cursor FROM meta")?
            .query_row([], |row| Ok((number(row, 0)?, row.get(1)?)))?;
    let old = clock::wall_micros().saturating_sub(IDLE);
    let now = machine::now();
    let mut statement = conn.prepare_cached(NEXT)?;
    let found = statement.query_map(params![cursor, SWEEP], |row| {
        Ok((row.get::<_, String>(0)?, number(row, 1)?, number(row, 2)?, Time(number(row, 3)?)))
    })?;
    let found: Vec<_> = found.collect::<Result<_>>()?;
    for (name, token, count, due) in &found {
        if *count > 0 && *due <= now {
            // A later sweep deletes it.
            on(conn, name, None, notices, |line| line.expire())?;
        } else if *count == 0 && *token < old {
            last = last.max(*token);
            conn.prepare_cached("DELETE FROM line WHERE name = ?1")?.execute([name])?;
        }
    }
    let cursor = if found.len() == SWEEP as usize {
        found.last().map_or("", |(name, ..)| name.as_str())
    } else {
        ""
    };
    evictions::forget(conn, now)?;
    conn.prepare_cached("UPDATE meta SET last = ?1, cursor = ?2")?
        .execute(params![column(last), cursor])?;
    Ok(())
}
