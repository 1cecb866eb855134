//! The parameters and results of the functions in `sql/line.sql`.

use crate::store::{
    Enter, Eviction, QueueEntry, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId,
};
use bytes::BytesMut;
use holdline_kernel::rule::admitted_prefix;
use std::error::Error;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// A ticket's id, as a `uuid`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id(pub(super) TicketId);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.0.to_be_bytes());
        Ok(IsNull::No)
    }
    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Id(TicketId(u128::from_be_bytes(raw.try_into()?))))
    }
    accepts!(UUID);
}

/// Whole microseconds, at least as long.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The kind of an entry, as `enter` takes it.
pub(super) fn number_of(how: Enter) -> i64 {
    match how {
        Enter::Try => -1,
        Enter::Queue => -2,
        Enter::Keep(Seq(seq)) => i64::try_from(seq).unwrap_or(i64::MAX),
    }
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
    let seq = |at| number(at).and_then(|seq| u64::try_from(seq).ok()).map(Seq);
    Some(Ok(match number(0)? {
        0 => Standing::Admitted(seq(1)?),
        1 => {
            let keep = ticket.wait_lease / 3;
            let seq = seq(1)?;
            let again = match number(2)? {
                due if due < 0 => keep,
                due => {
                    let waited = Duration::from_micros(number(3)?.abs_diff(seq.0.cast_signed()));
                    let poll = (waited / 8).clamp(POLL_MIN, POLL_MAX);
                    let most = if notices || seq.0 == 0 { keep } else { keep.min(poll) };
                    most.min(Duration::from_micros(due.unsigned_abs()))
                }
            };
            let again = again.max(Duration::from_millis(2));
            Standing::Waiting { seq: Some(seq).filter(|seq| seq.0 > 0), again }
        }
        2 => Standing::Lost,
        3 => return Some(Err(Refusal::Capacity { line: u32::try_from(number(1)?).ok()? })),
        4 => return Some(Err(Refusal::Weight)),
        5 => return Some(Err(Refusal::Exhausted)),
        _ => return None,
    }))
}

/// Decodes the result of `look`. The rule says which places are admitted.
pub(super) fn snapshot(rows: &[Row]) -> Result<QueueSnapshot, tokio_postgres::Error> {
    let mut snapshot = QueueSnapshot::default();
    for row in rows {
        let (Id(id), note): (Id, String) = (row.try_get(2)?, row.try_get(6)?);
        if row.try_get(0)? {
            snapshot.evictions.push(Eviction { id, note: note.into() });
            continue;
        }
        let [seq, weight, rest, capacity] = [1, 3, 4, 5].map(|at| row.try_get::<_, i64>(at));
        snapshot.capacity = capacity? as u32;
        snapshot.places.push(QueueEntry {
            id,
            seq: Seq(seq?.unsigned_abs()),
            weight: weight? as u32,
            admitted: false,
            expires_in: Duration::from_micros(rest?.unsigned_abs()),
            note: note.into(),
        });
    }
    let weights: Vec<u32> = snapshot.places.iter().map(|place| place.weight).collect();
    for (place, admitted) in
        snapshot.places.iter_mut().zip(admitted_prefix(snapshot.capacity, weights))
    {
        place.admitted = admitted;
    }
    Ok(snapshot)
}
