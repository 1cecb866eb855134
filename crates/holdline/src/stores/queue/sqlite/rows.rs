//! The rows of one line, inside an open transaction: its head and its places.
//!
//! A place that was added when the line had fewer than 16 places stays among the first 16, because
//! places leave and none is inserted in between. So these are found by scanning 16 rows, and only
//! the others are in the indexes: a short line costs no index.
//!
//! Values are checked before the kernel uses them: inconsistent numbers were not written by
//! holdline, and fail the operation.

use super::errors::corrupt_value;
use crate::store::{Seq, TicketId};
use holdline_kernel::{Head, Place, Places, Time};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use std::sync::Arc;

/// The number of a process, which names its liveness lock. Random, and never reused.
pub(super) type Process = u64;

/// The data of a place.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// The process that has the place.
    pub(super) process: Process,
    /// The note of the ticket. Not read back, because no decision needs it.
    pub(super) note: Option<Arc<str>>,
}

/// The number of places that are scanned; those behind are found by an index.
const NEAR: u64 = 16;

const HEAD: &str = "SELECT capacity, last, count, held, front, due FROM line WHERE name = ?1";
const ADD_HEAD: &str = "INSERT INTO line (name, capacity, last, count, held, front, due) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const SET_HEAD: &str = "UPDATE line SET capacity = ?2, last = ?3, count = ?4, held = ?5, \
    front = ?6, due = ?7 WHERE name = ?1";
const FROM: &str = "SELECT seq, id, weight, expires, process FROM place \
    WHERE name = ?1 AND seq >= ?2 ORDER BY seq LIMIT 1";
const BEFORE: &str = "SELECT process FROM place \
    WHERE name = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 1";
const NEAREST: &str = "SELECT seq, id, weight, expires, process FROM place \
    WHERE name = ?1 ORDER BY seq LIMIT 16";
const DEEP_ID: &str = "SELECT seq, id, weight, expires, process FROM place \
    INDEXED BY place_id WHERE id = ?2 AND name = ?1 AND deep = 1";
const DEEP_DUE: &str = "SELECT seq, id, weight, expires, process FROM place \
    INDEXED BY place_due WHERE name = ?1 AND deep = 1 ORDER BY expires LIMIT 1";
const PUSH: &str = "INSERT INTO place (name, seq, id, weight, expires, process, deep, note) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const UPDATE: &str = "UPDATE place SET weight = ?3, expires = ?4, process = ?5, \
    note = coalesce(?6, note) WHERE name = ?1 AND seq = ?2";
const REMOVE: &str = "DELETE FROM place WHERE name = ?1 AND seq = ?2";
const PROCESSES: &str = "SELECT process FROM place \
    WHERE name = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq LIMIT 64";

/// The number of owners read at once.
pub(super) const OWNERS: usize = 64;

/// A number as a column value. Numbers beyond the column's range are `END` or `NEVER`.
pub(super) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A column as a number: the inverse of [`column`].
pub(super) fn number(row: &Row<'_>, at: usize) -> Result<u64> {
    let value: i64 = row.get(at)?;
    match u64::try_from(value) {
        Ok(_) if value == i64::MAX => Ok(u64::MAX),
        Ok(number) => Ok(number),
        Err(_) => Err(rusqlite::Error::IntegralValueOutOfRange(at, value)),
    }
}

pub(super) fn process(row: &Row<'_>, at: usize) -> Result<Process> {
    Ok(row.get::<_, i64>(at)?.cast_unsigned())
}

pub(super) fn ticket(row: &Row<'_>, at: usize) -> Result<TicketId> {
    let bytes: [u8; 16] = row.get(at)?;
    Ok(TicketId(u128::from_be_bytes(bytes)))
}

fn place(row: &Row<'_>) -> Result<Place<Owner>> {
    Ok(Place {
        seq: Seq(number(row, 0)?),
        id: ticket(row, 1)?,
        weight: row.get(2)?,
        expires: Time(number(row, 3)?),
        data: Owner { process: process(row, 4)?, note: None },
    })
}

/// Reads the head of a line, if the line has a row.
pub(super) fn head(conn: &Connection, name: &str) -> Result<Option<Head>> {
    let read = |row: &Row<'_>| {
        let head = Head {
            capacity: row.get(0)?,
            last: number(row, 1)?,
            count: number(row, 2)?,
            held: number(row, 3)?,
            front: Seq(number(row, 4)?),
            due: Time(number(row, 5)?),
        };
        if fits_together(&head) { Ok(head) } else { Err(corrupt_value()) }
    };
    conn.prepare_cached(HEAD)?.query_row([name], read).optional()
}

/// Whether the numbers of a head are consistent.
pub(super) fn fits_together(head: &Head) -> bool {
    if head.count == 0 {
        return head.held == 0 && head.front == Seq::END;
    }
    head.capacity > 0 && head.held <= u64::from(head.capacity) && head.count < i64::MAX as u64
}

/// Whether a place is consistent with the head of its line.
pub(super) fn belongs(head: &Head, seq: Seq, weight: u32) -> bool {
    head.count > 0
        && (1..=head.capacity).contains(&weight)
        && seq.0 <= head.last
        && seq < Seq(i64::MAX as u64)
        && (seq >= head.front || u64::from(weight) <= head.held)
}

/// Fails unless one row was changed.
fn one(changed: usize) -> Result<()> {
    if changed == 1 { Ok(()) } else { Err(corrupt_value()) }
}

/// Writes the head of a line; `known` says whether the line has a row.
pub(super) fn set_head(conn: &Connection, name: &str, head: &Head, known: bool) -> Result<()> {
    let sql = if known { SET_HEAD } else { ADD_HEAD };
    one(conn.prepare_cached(sql)?.execute(params![
        name,
        head.capacity,
        column(head.last),
        column(head.count),
        column(head.held),
        column(head.front.0),
        column(head.due.0)
    ])?)
}

/// Up to 64 owners of places at or behind `from` and before `until`, front first.
pub(super) fn owners(conn: &Connection, name: &str, from: Seq, until: Seq) -> Result<Vec<Process>> {
    let mut statement = conn.prepare_cached(PROCESSES)?;
    let range = params![name, column(from.0), column(until.0)];
    statement.query_map(range, |row| process(row, 0))?.collect()
}

/// The owner of the place right before `seq`.
pub(super) fn owner_before(conn: &Connection, name: &str, seq: Seq) -> Result<Option<Process>> {
    let mut statement = conn.prepare_cached(BEFORE)?;
    statement.query_row(params![name, column(seq.0)], |row| process(row, 0)).optional()
}

/// The places of one line.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    conn: &'a Connection,
    name: &'a str,
    /// The head before the operation, minus the places that the operation has removed.
    head: Head,
    /// The last place looked up and its weight, needed if it is removed.
    looked_up: Option<(Seq, u32)>,
    /// The number of the ticket's place, if its process knows it.
    hint: Option<Seq>,
}

impl<'a> Rows<'a> {
    /// The places of the line with this head.
    pub(super) fn new(conn: &'a Connection, name: &'a str, head: &Head, hint: Option<Seq>) -> Self {
        Rows { conn, name, head: *head, looked_up: None, hint }
    }

    fn checked(&self, place: Place<Owner>) -> Result<Place<Owner>> {
        if belongs(&self.head, place.seq, place.weight) { Ok(place) } else { Err(corrupt_value()) }
    }

    fn query(&self, sql: &str, key: impl rusqlite::Params) -> Result<Option<Place<Owner>>> {
        let found = self.conn.prepare_cached(sql)?.query_row(key, place).optional()?;
        found.map(|place| self.checked(place)).transpose()
    }

    /// The first of the nearest places for which `wanted` is true.
    fn near(
        &self,
        mut wanted: impl FnMut(&Row<'_>) -> Result<bool>,
    ) -> Result<Option<Place<Owner>>> {
        let mut statement = self.conn.prepare_cached(NEAREST)?;
        let mut rows = statement.query([self.name])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            seen += 1;
            if wanted(row)? {
                return self.checked(place(row)?).map(Some);
            }
        }
        if seen == self.head.count.min(NEAR) { Ok(None) } else { Err(corrupt_value()) }
    }

    /// Remembers the place that was looked up, in case it is removed.
    fn note(&mut self, found: Option<Place<Owner>>) -> Option<Place<Owner>> {
        self.looked_up = found.as_ref().map(|place| (place.seq, place.weight));
        found
    }

    fn find(&mut self, id: TicketId) -> Result<Option<Place<Owner>>> {
        if let Some(seq) = self.hint
            && let Some(place) = self.first_from(seq)?
            && place.id == id
        {
            return Ok(Some(place));
        }
        let key = id.0.to_be_bytes();
        let near = self.near(|row| Ok(row.get_ref(1)? == ValueRef::Blob(&key)))?;
        if near.is_some() || self.head.count <= NEAR {
            return Ok(near);
        }
        self.query(DEEP_ID, params![self.name, key])
    }

    fn deep_due(&self) -> Result<Option<Place<Owner>>> {
        if self.head.count > NEAR { self.query(DEEP_DUE, [self.name]) } else { Ok(None) }
    }
}

impl Places for Rows<'_> {
    type Data = Owner;
    type Error = rusqlite::Error;

    fn by_id(&mut self, id: TicketId) -> Result<Option<Place<Owner>>> {
        let found = if self.head.count == 0 { None } else { self.find(id)? };
        Ok(self.note(found))
    }

    fn first_from(&mut self, seq: Seq) -> Result<Option<Place<Owner>>> {
        self.query(FROM, params![self.name, column(seq.0)])
    }

    fn push(&mut self, place: &Place<Owner>) -> Result<()> {
        self.conn.prepare_cached(PUSH)?.execute(params![
            self.name,
            column(place.seq.0),
            place.id.0.to_be_bytes(),
            place.weight,
            column(place.expires.0),
            place.data.process.cast_signed(),
            self.head.count >= NEAR,
            place.data.note.as_deref().unwrap_or_default()
        ])?;
        self.head.count += 1;
        Ok(())
    }

    fn update(&mut self, place: &Place<Owner>) -> Result<()> {
        one(self.conn.prepare_cached(UPDATE)?.execute(params![
            self.name,
            column(place.seq.0),
            place.weight,
            column(place.expires.0),
            place.data.process.cast_signed(),
            place.data.note.as_deref()
        ])?)
    }

    fn remove(&mut self, seq: Seq) -> Result<()> {
        let weight = self.looked_up.take().filter(|(at, _)| *at == seq).map(|(_, weight)| weight);
        let weight = weight.ok_or_else(corrupt_value)?;
        if seq < self.head.front {
            let left = self.head.held.checked_sub(weight.into());
            self.head.held = left.ok_or_else(corrupt_value)?;
        }
        self.head.count = self.head.count.checked_sub(1).ok_or_else(corrupt_value)?;
        one(self.conn.prepare_cached(REMOVE)?.execute(params![self.name, column(seq.0)])?)
    }

    fn lapsed(&mut self, now: Time) -> Result<Option<Place<Owner>>> {
        let near = self.near(|row| Ok(Time(number(row, 3)?) <= now))?;
        let found = match near {
            Some(place) => Some(place),
            None => self.deep_due()?.filter(|place| place.expires <= now),
        };
        Ok(self.note(found))
    }

    fn earliest(&mut self) -> Result<Time> {
        let mut least = Time::NEVER;
        self.near(|row| {
            least = least.min(Time(number(row, 3)?));
            Ok(false)
        })?;
        Ok(self.deep_due()?.map_or(least, |place| least.min(place.expires)))
    }
}
