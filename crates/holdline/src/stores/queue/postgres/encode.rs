//! Calls of the functions in `sql/line.sql` as text, and the decoding of their results.
//!
//! A call is one protocol message (a simple query) with its parameters written as constants. With
//! bound parameters it would be five messages, which are not safe when calls are pipelined through
//! a proxy that pools transactions: PgBouncer gives a server to another client once it has answered
//! all complete calls, though it may have forwarded the first messages of the next call. The rest
//! of that call then meets the other client's prepared statement. (Seen with PgBouncer 1.18; newer
//! versions count such calls in the same way.)

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Enter, Refusal, Standing, Ticket, TicketId};
use crate::stores::queue::calls::{Answer, Row};
use crate::stores::queue::sql::{self, micros, number_of};
use std::mem;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio_postgres::SimpleQueryMessage;

/// The call that takes, keeps or renews a place. `schema` is quoted.
pub(super) fn enter(
    schema: &str,
    line: &str,
    ticket: &Ticket,
    how: Enter,
    channel: &str,
    note: &str,
) -> Result<String> {
    Ok(format!(
        "SELECT {schema}.enter({}, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', {}, {})",
        text(line)?,
        ticket.id,
        ticket.weight,
        ticket.capacity,
        micros(ticket.lease),
        micros(ticket.wait_lease),
        ticket.token_count,
        i64::try_from(ticket.min_token).unwrap_or(i64::MAX), // more than there are
        number_of(how),
        text(channel)?,
        text(note)?,
    ))
}

/// The call that gives up a place, and bars the ticket for this time.
pub(super) fn leave(schema: &str, line: &str, id: TicketId, bar: Duration) -> Result<String> {
    Ok(format!("SELECT {schema}.leave({}, '{id}', '{}')", text(line)?, micros(bar)))
}

/// The call that removes a place by force.
pub(super) fn evict(schema: &str, line: &str, id: TicketId, note: &str) -> Result<String> {
    Ok(format!("SELECT {schema}.evict({}, '{id}', {})", text(line)?, text(note)?))
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

/// The bounds of the pause of a waiter that polls: of the first, and of the others.
const FIRST: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(250);
const OTHERS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);

/// Decodes the result of `enter`; `None` if it is malformed. Without notices, a waiter asks again
/// after an eighth of the time that it has waited, within bounds.
pub(super) fn standing(
    ticket: &Ticket,
    row: &Row,
    notices: bool,
) -> Option<Result<Standing, Refusal>> {
    let array = row.text(0)?.strip_prefix('{')?.strip_suffix('}')?;
    let numbers: Option<Vec<i64>> = array.split(',').map(|number| number.parse().ok()).collect();
    let numbers = numbers?;
    let number = |at: usize| numbers.get(at).copied();
    let seq = number(1).and_then(|seq| u64::try_from(seq).ok());
    let due = number(2).and_then(|due| u64::try_from(due).ok()).map(Duration::from_micros);
    let wait = match (number(0)?, seq) {
        (1, Some(seq @ 1..)) if !notices => {
            let waited = Duration::from_micros(number(3)?.abs_diff(seq.cast_signed()));
            let bounds = if due.is_some() { FIRST } else { OTHERS };
            let pause = (waited / 8).clamp(*bounds.start(), *bounds.end());
            Some(due.map_or(pause, |due| due.min(pause)))
        }
        _ => due,
    };
    sql::standing(ticket, number(0)?, seq, wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sooner if a place may expire then; and also if the server's clock was set back.
    #[test]
    fn without_notices_a_waiter_asks_again_after_an_eighth_of_its_wait_within_bounds() {
        let lease = Duration::from_secs(30);
        let ticket = Ticket {
            id: TicketId(1),
            weight: 1,
            capacity: 1,
            lease,
            wait_lease: lease,
            token_count: 1,
            min_token: 0,
        };
        let asks = |waited_ms: i64, due: i64, notices: bool| {
            let text = format!("{{1,1000000000,{due},{}}}", 1_000_000_000 + waited_ms * 1000);
            match standing(&ticket, &Row(vec![Some(text.into_bytes())]), notices) {
                Some(Ok(Standing::Waiting { again, .. })) => again.as_millis(),
                other => panic!("{other:?}"),
            }
        };
        let (first, other) = (20_000_000, -1);
        for (waited_ms, first_asks, other_asks) in [
            (0, 10, 100),
            (400, 50, 100),
            (1_600, 200, 200),
            (4_000, 250, 500),
            (80_000, 250, 1_000),
        ] {
            assert_eq!(asks(waited_ms, first, false), first_asks);
            assert_eq!(asks(waited_ms, other, false), other_asks);
            assert_eq!(asks(waited_ms, first, true), 10_000, "a third of its lease");
            assert_eq!(asks(waited_ms, other, true), 10_000, "a third of its lease");
        }
        assert_eq!(asks(80_000, 30_000, false), 30, "a place may expire then");
        assert_eq!(asks(-1_600, other, false), 200, "the clock was set back");
    }

    #[test]
    fn parameters_are_constants() {
        let sql = evict("s", "it's \\ \"é\"", TicketId(0xab), "").expect("no zero");
        assert_eq!(sql, format!("SELECT s.evict(E'it''s \\\\ \"é\"', '{:032x}', E'')", 0xab));
        let error = evict("s", "a", TicketId(0xab), "a\0b").expect_err("a zero");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
