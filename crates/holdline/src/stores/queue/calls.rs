//! Repeatable calls to SQL servers, and the decoding of their answers.

use crate::clock;
use crate::error::Result;
use crate::names::Name;
use crate::store::{Eviction, QueueEntry, QueueSnapshot, Seq, TicketId};
use crate::stores::queue::in_flight::outcome_unknown;
use crate::stores::queue::sql::{Fault, answered};
use holdline_kernel::rule::admitted_prefix;
use holdline_kernel::{Backoff, Time};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The answer to a statement.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The rows of the first result that has any.
    pub(super) rows: Vec<Row>,
    /// The number of rows that the statement wrote or, in PostgreSQL only, read.
    pub(super) changed: u64,
    /// The last insert id, which a MySQL statement may set to any number.
    #[cfg(feature = "mysql")]
    pub(super) insert_id: u64,
    /// Whether an earlier attempt may have been carried out too.
    pub(super) repeated: bool,
}

/// A row: its values as the server prints them, `None` for NULL.
#[derive(Clone, Debug, Default)]
pub(super) struct Row(pub(super) Vec<Option<Vec<u8>>>);

/// The pauses before a call that conflicted with another transaction is repeated.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(50)).jitter(50);

/// Makes a repeatable call within this time. Repeats it after every conflict with another
/// transaction, and once if the connection or the statement was ended; most often the server has
/// closed an idle connection.
pub(super) async fn repeat<C: Future<Output = Result<Answer, Fault>>>(
    time: Duration,
    call: impl Fn(Time) -> C,
) -> Result<Answer, Fault> {
    let limit = clock::now().after(time);
    let (mut conflicts, mut ended) = (0, None);
    while clock::now() < limit {
        let fault = match answered(limit, call(limit)).await {
            Ok(answer) => return Ok(Answer { repeated: ended.unwrap_or(false), ..answer }),
            Err(fault) => fault,
        };
        if fault.conflict() {
            clock::pause(PAUSES.pause(conflicts, fastrand::u64(..))).await;
            conflicts += 1;
        } else if fault.ended() && ended.is_none() {
            ended = Some(fault.in_doubt());
        } else {
            return Err(fault);
        }
    }
    Err(Fault::Silence)
}

impl Answer {
    /// The first row; without values if there is none.
    pub(super) fn first(self) -> Row {
        self.rows.into_iter().next().unwrap_or_default()
    }

    /// The number in the first column of the first row.
    pub(super) fn number<T: FromStr>(&self) -> Option<T> {
        self.rows.first()?.number(0)
    }

    /// Whether what the call was about was `found`. If not, an earlier attempt may have removed it.
    pub(super) fn found(&self, found: bool, address: &impl Display, line: &Name) -> Result<bool> {
        if !found && self.repeated {
            return Err(outcome_unknown(address, line));
        }
        Ok(found)
    }

    /// The names in the first column.
    pub(super) fn names(&self) -> Vec<Name> {
        self.rows.iter().filter_map(|row| Name::new(row.text(0)?).ok()).collect()
    }
}

impl Row {
    pub(super) fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at)?.as_deref()
    }

    pub(super) fn text(&self, at: usize) -> Option<&str> {
        std::str::from_utf8(self.bytes(at)?).ok()
    }

    pub(super) fn number<T: FromStr>(&self, at: usize) -> Option<T> {
        self.text(at)?.parse().ok()
    }

    pub(super) fn truth(&self, at: usize) -> Option<bool> {
        match self.text(at)? {
            "t" | "1" => Some(true),
            "f" | "0" => Some(false),
            _ => None,
        }
    }

    /// A ticket id: its 16 bytes, or a UUID.
    pub(super) fn id(&self, at: usize) -> Option<TicketId> {
        match <[u8; 16]>::try_from(self.bytes(at)?) {
            Ok(bytes) => Some(TicketId(u128::from_be_bytes(bytes))),
            Err(_) => id_of(self.text(at)?),
        }
    }
}

/// The ticket id that a UUID encodes.
pub(super) fn id_of(uuid: &str) -> Option<TicketId> {
    uuid.replace('-', "").parse().ok()
}

/// Decodes a snapshot of a line; `None` if it is malformed. A row is an eviction or a place. Its
/// columns are: whether it is an eviction, the place number, the ticket, the weight, the remaining
/// microseconds, the line's capacity and the note. Places are in order, and expired ones are left
/// out; the admission rule says which are admitted.
pub(super) fn snapshot(rows: &[Row]) -> Option<QueueSnapshot> {
    let mut snapshot = QueueSnapshot::default();
    for row in rows {
        let (id, note) = (row.id(2)?, String::from_utf8_lossy(row.bytes(6)?).into());
        if row.truth(0)? {
            snapshot.evictions.push(Eviction { id, note });
            continue;
        }
        let left: i64 = row.number(4)?;
        snapshot.capacity = snapshot.capacity.max(row.number(5)?);
        if left > 0 {
            snapshot.places.push(QueueEntry {
                id,
                seq: Seq(row.number(1)?),
                weight: row.number(3)?,
                admitted: false,
                expires_in: Duration::from_micros(left.unsigned_abs()),
                note,
            });
        }
    }
    if snapshot.places.is_empty() {
        snapshot.capacity = 0;
    }
    let weights: Vec<u32> = snapshot.places.iter().map(|place| place.weight).collect();
    let admitted = admitted_prefix(snapshot.capacity, weights);
    for (place, admitted) in snapshot.places.iter_mut().zip(admitted) {
        place.admitted = admitted;
    }
    Some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_a_ticket() {
        assert_eq!(id_of("00000000-0000-0000-0000-0000000000ab"), Some(TicketId(0xab)));
        assert_eq!(id_of("00000000-0000-0000-0000-0000000000a"), None);
        assert_eq!(id_of("ééééééééééééééééxxxxxxxxxxxxxxxx"), None);
    }

    #[test]
    fn a_call_is_repeated_once_if_its_connection_ends() {
        let calls = std::cell::Cell::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system gives a runtime");
        let ask = |ends: u32| {
            calls.set(0);
            runtime.block_on(repeat(Duration::from_secs(60), |_| {
                calls.set(calls.get() + 1);
                let broken = calls.get() <= ends;
                async move {
                    let fault = || Fault::Broken("it was closed".to_owned());
                    if broken { Err(fault()) } else { Ok(Answer::default()) }
                }
            }))
        };
        assert!(!ask(0).expect("an answer").repeated);
        assert!(ask(1).expect("an answer").repeated);
        assert!(matches!(ask(2), Err(Fault::Broken(_))));
        assert_eq!(calls.get(), 2);
    }
}
