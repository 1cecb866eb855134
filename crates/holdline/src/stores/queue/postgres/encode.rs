//! Calls of the functions in `sql/line.sql` as text, and their results.
//!
//! A call is one message of the protocol (a simple query), its parameters written as constants.
//! With parameters of their own it would be five messages, and those are not safe where a proxy
//! pools transactions and calls are sent without waiting for replies: PgBouncer gives a server to
//! another client as soon as it has answered the calls that are complete, though it may have
//! forwarded the first messages of the next call, whose others then meet what that client has
//! prepared. (Seen with PgBouncer 1.18; newer ones count such calls in the same way.)

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Eviction, QueueEntry, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::sql;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;
use tokio_postgres::SimpleQueryRow as Row;

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param<'a> {
    Text(&'a str),
    Id(TicketId),
    Number(i64),
}

/// A statement that ends with the call of a function, with these parameters.
pub(super) fn call(function: &str, params: &[Param<'_>]) -> Result<String> {
    let mut sql = String::with_capacity(function.len() + 40 * params.len());
    sql.push_str(function);
    for (at, param) in params.iter().enumerate() {
        sql.push_str(if at == 0 { "(" } else { ", " });
        push(&mut sql, *param)?;
    }
    sql.push(')');
    Ok(sql)
}

/// A statement with these parameters in place of `$1`, `$2` and so on. It has no other `$`.
pub(super) fn fill(statement: &str, params: &[Param<'_>]) -> Result<String> {
    let mut parts = statement.split('$');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digit, rest) = part.split_at(1);
        let param = digit.parse().ok().and_then(|at: usize| params.get(at.checked_sub(1)?));
        push(&mut sql, *param.expect("each has its parameter"))?;
        sql.push_str(rest);
    }
    Ok(sql)
}

/// Writes a parameter as a constant.
fn push(sql: &mut String, param: Param<'_>) -> Result<()> {
    match param {
        Param::Text(value) => push_text(sql, value)?,
        Param::Id(id) => _ = write!(sql, "'{id}'"),
        Param::Number(value) => _ = write!(sql, "'{value}'"),
    }
    Ok(())
}

/// Writes a text as a constant that no setting of the server reads differently.
fn push_text(sql: &mut String, value: &str) -> Result<()> {
    sql.push_str("E'");
    for c in value.chars() {
        match c {
            '\0' => {
                let message = "PostgreSQL keeps no text with the character zero in it";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            '\'' | '\\' => sql.extend([c, c]),
            _ => sql.push(c),
        }
    }
    sql.push('\'');
    Ok(())
}

/// A value of a row; none if it is null or makes no sense.
pub(super) fn value<T: FromStr>(row: &Row, at: usize) -> Option<T> {
    row.try_get(at).ok()??.parse().ok()
}

/// The same of a boolean.
pub(super) fn truth(row: &Row, at: usize) -> Option<bool> {
    match row.try_get(at).ok()?? {
        "t" => Some(true),
        "f" => Some(false),
        _ => None,
    }
}

/// The numbers of an array.
pub(super) fn numbers(row: &Row, at: usize) -> Option<Vec<i64>> {
    let text = row.try_get(at).ok()??;
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    inner.split(',').map(|number| number.parse().ok()).collect()
}

/// The ticket that a uuid stands for.
pub(super) fn id_of(uuid: &str) -> Option<TicketId> {
    uuid.replace('-', "").parse().ok()
}

/// The shortest and the longest pause of the first waiter that polls.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(250);

/// Decodes the result of `enter`; none if it makes no sense. Without notices, the first waiter asks
/// again after an eighth of the time that it has waited, within bounds.
pub(super) fn standing(
    ticket: &Ticket,
    numbers: &[i64],
    notices: bool,
) -> Option<Result<Standing, Refusal>> {
    let number = |at: usize| numbers.get(at).copied();
    let seq = number(1).and_then(|seq| u64::try_from(seq).ok());
    let wait = match (number(2).and_then(|due| u64::try_from(due).ok()), seq) {
        (Some(due), Some(seq @ 1..)) if !notices => {
            let waited = Duration::from_micros(number(3)?.abs_diff(seq.cast_signed()));
            Some(Duration::from_micros(due).min((waited / 8).clamp(POLL_MIN, POLL_MAX)))
        }
        (due, _) => due.map(Duration::from_micros),
    };
    sql::standing(ticket, number(0)?, seq, wait)
}

/// Decodes the result of `look`; none if it makes no sense. The rule says which places are
/// admitted.
pub(super) fn snapshot(rows: &[Row]) -> Option<QueueSnapshot> {
    let mut snapshot = QueueSnapshot::default();
    for row in rows {
        let (id, note) = (id_of(row.try_get(2).ok()??)?, row.try_get(6).ok()??);
        if truth(row, 0)? {
            snapshot.evictions.push(Eviction { id, note: note.into() });
            continue;
        }
        let number = |at| value::<i64>(row, at);
        snapshot.capacity = number(5)? as u32;
        snapshot.places.push(QueueEntry {
            id,
            seq: Seq(number(1)?.unsigned_abs()),
            weight: number(3)? as u32,
            admitted: false,
            expires_in: Duration::from_micros(number(4)?.unsigned_abs()),
            note: note.into(),
        });
    }
    sql::admit(&mut snapshot);
    Some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_constants() {
        let params = [Param::Text("it's \\ \"é\""), Param::Number(-7), Param::Id(TicketId(0xab))];
        let sql = call("SELECT f", &params).expect("no zero");
        assert_eq!(sql, format!("SELECT f(E'it''s \\\\ \"é\"', '-7', '{:032x}')", 0xab));
        let text = fill("$2 + f($1)", &params).expect("no zero");
        assert_eq!(text, "'-7' + f(E'it''s \\\\ \"é\"')");
        let error = call("SELECT f", &[Param::Text("a\0b")]).expect_err("a zero");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_uuid_is_a_ticket() {
        assert_eq!(id_of("00000000-0000-0000-0000-0000000000ab"), Some(TicketId(0xab)));
        assert_eq!(id_of("00000000-0000-0000-0000-0000000000a"), None);
        assert_eq!(id_of("ééééééééééééééééxxxxxxxxxxxxxxxx"), None);
    }
}
