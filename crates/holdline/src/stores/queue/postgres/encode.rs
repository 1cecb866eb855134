//! Calls of the functions in `sql/line.sql` as text, and the decoding of their results.
//!
//! A call is one protocol message (a simple query) with its parameters written as constants. With
//! bound parameters it would be five messages, which are not safe when calls are pipelined through
//! a proxy that pools transactions: PgBouncer gives a server to another client once it has answered
//! all complete calls, though it may have forwarded the first messages of the next call. The rest
//! of that call then meets the other client's prepared statement. (Seen with PgBouncer 1.18; newer
//! versions count such calls in the same way.)

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Refusal, Standing, Ticket, TicketId};
use crate::stores::queue::calls::{Answer, Row};
use crate::stores::queue::sql;
use std::mem;
use std::time::Duration;
use tokio_postgres::SimpleQueryMessage;

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param<'a> {
    Text(&'a str),
    Id(TicketId),
    Number(i64),
}

/// A statement that ends with a function call with these parameters.
pub(super) fn call(function: &str, params: &[Param<'_>]) -> Result<String> {
    let constant = |param: &Param<'_>| match param {
        Param::Text(value) => text(value),
        Param::Id(id) => Ok(format!("'{id}'")),
        Param::Number(value) => Ok(format!("'{value}'")),
    };
    let params = params.iter().map(constant).collect::<Result<Vec<_>>>()?;
    Ok(format!("{function}({})", params.join(", ")))
}

/// A text as a constant that means the same under every server setting.
pub(super) fn text(value: &str) -> Result<String> {
    if value.contains('\0') {
        let message = "PostgreSQL keeps no text with the character zero in it";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(format!("E'{}'", value.replace('\\', r"\\").replace('\'', "''")))
}

/// The answers in these messages, one for each statement.
pub(super) fn answers(messages: Vec<SimpleQueryMessage>) -> Vec<Answer> {
    let (mut answers, mut answer) = (Vec::new(), Answer::default());
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let value = |at| Some(row.try_get(at).ok()??.as_bytes().to_vec());
                answer.rows.push(Row((0..row.len()).map(value).collect()));
            }
            SimpleQueryMessage::CommandComplete(changed) => {
                answers.push(Answer { changed, ..mem::take(&mut answer) });
            }
            _ => {}
        }
    }
    answers
}

/// The numbers of an array.
pub(super) fn numbers(row: &Row, at: usize) -> Option<Vec<i64>> {
    let inner = row.text(at)?.strip_prefix('{')?.strip_suffix('}')?;
    inner.split(',').map(|number| number.parse().ok()).collect()
}

/// The shortest and the longest pause of the first waiter that polls.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(250);

/// Decodes the result of `enter`; `None` if it is malformed. Without notices, the first waiter asks
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_constants() {
        let params = [Param::Text("it's \\ \"é\""), Param::Number(-7), Param::Id(TicketId(0xab))];
        let sql = call("SELECT f", &params).expect("no zero");
        assert_eq!(sql, format!("SELECT f(E'it''s \\\\ \"é\"', '-7', '{:032x}')", 0xab));
        let error = call("SELECT f", &[Param::Text("a\0b")]).expect_err("a zero");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
