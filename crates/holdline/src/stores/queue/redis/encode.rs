//! The arguments of the line's scripts, and the decoding of the replies of `enter.lua`.

use crate::store::{Enter, Refusal, Seq, Standing, Ticket, TicketId};
use redis::Value;
use std::time::Duration;

/// The text of a place: the ticket's id, the channel of its process, and the note.
pub(in crate::stores) fn tail(id: TicketId, channel: &str, note: &str) -> Vec<u8> {
    let mut tail = Vec::with_capacity(33 + channel.len() + note.len());
    tail.extend_from_slice(&digits(id));
    tail.extend_from_slice(channel.as_bytes());
    tail.push(b' ');
    tail.extend_from_slice(note.as_bytes());
    tail
}

/// How tokens keep rising for an unused line.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Kept {
    /// The shortest time for which its highest token is kept; the longest is twice that.
    pub(in crate::stores) idle: Duration,
    /// How often the server's clock is noted, or zero for never.
    pub(in crate::stores) clock_span: Duration,
}

/// The length of a ticket's numbers, and the offset of the last one: the way to enter. In a batch
/// that one is separate, so that the tickets of many locks have the same numbers.
pub(in crate::stores) const WANTS: usize = 72;
pub(in crate::stores) const HOW: usize = 64;

/// The numbers of a ticket, as `enter_head.lua` unpacks them: in one argument, because each
/// argument costs the server time.
pub(in crate::stores) fn wants(ticket: &Ticket, how: Enter, kept: Kept) -> [u8; WANTS] {
    let how = match how {
        Enter::Try => -1.0,
        Enter::Queue => -2.0,
        Enter::Keep(Seq(seq)) => seq as f64,
    };
    // Whole microseconds, rounded up.
    let micros = |time: Duration| time.as_nanos().div_ceil(1000) as f64;
    let numbers = [
        f64::from(ticket.weight),
        f64::from(ticket.capacity),
        micros(ticket.lease),
        micros(ticket.wait_lease),
        f64::from(ticket.token_count),
        micros(kept.idle),
        ticket.min_token as f64,
        micros(kept.clock_span),
        how,
    ];
    let mut packed = [0; WANTS];
    for (bytes, number) in packed.chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    packed
}

/// The letter in `batch.lua` for a way to enter.
pub(in crate::stores) fn letter(how: Enter) -> u8 {
    match how {
        Enter::Try => b't',
        Enter::Queue => b'q',
        Enter::Keep(_) => b'k',
    }
}

pub(in crate::stores) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An id as the server stores it.
pub(in crate::stores) fn digits(id: TicketId) -> [u8; 32] {
    let mut digits = [0; 32];
    for (n, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(id.0 >> (124 - 4 * n)) as usize & 15];
    }
    digits
}

/// A short description of a reply, for error messages.
pub(in crate::stores) fn describe(value: &Value) -> String {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes.get(..40).unwrap_or(bytes)).into_owned();
        text.escape_debug().to_string()
    };
    match value {
        Value::Nil => "nothing".to_owned(),
        Value::Int(number) => format!("the number {number}"),
        Value::BulkString(bytes) => format!("{} bytes, \"{}\"", bytes.len(), text(bytes)),
        Value::SimpleString(words) => format!("\"{}\"", text(words.as_bytes())),
        Value::Array(parts) => format!("an array of {}", parts.len()),
        Value::ServerError(_) => "an error".to_owned(),
        _ => "of another type".to_owned(),
    }
}

/// The lowest place number: above the codes that begin the other replies of `enter.lua`.
const LOWEST: u64 = 16;

/// Decodes the reply of `enter.lua`; `None` if it is invalid. A kept place must have its earlier
/// number.
pub(in crate::stores) fn standing(
    ticket: &Ticket,
    how: Enter,
    value: &Value,
) -> Option<Result<Standing, Refusal>> {
    if let Value::Int(seq) = value {
        let seq = Seq(u64::try_from(*seq).ok().filter(|seq| *seq >= LOWEST)?);
        let same = !matches!(how, Enter::Keep(kept) if kept != seq);
        return same.then_some(Ok(Standing::Admitted(seq)));
    }
    let Value::Array(items) = value else { return None };
    let number = |at: usize| match items.get(at) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    let seq = |at| number(at).and_then(|seq| u64::try_from(seq).ok());
    Some(Ok(match number(0)? {
        1 => {
            let keep = ticket.wait_lease / 3;
            let wait = match number(2)? {
                due if due < 0 => keep,
                due => keep.min(Duration::from_micros(due.unsigned_abs())),
            };
            let seq = Some(Seq(seq(1)?)).filter(|seq| seq.0 > 0);
            Standing::Waiting { seq, again: wait.max(Duration::from_millis(2)) }
        }
        2 => Standing::Lost,
        3 => return Some(Err(Refusal::Capacity { line: u32::try_from(number(1)?).ok()? })),
        4 => return Some(Err(Refusal::Weight)),
        5 => return Some(Err(Refusal::Exhausted)),
        _ => return None,
    }))
}

/// An id for a holder of another library: a hash of its owner value.
pub(in crate::stores) fn id_from(owner: &[u8]) -> TicketId {
    let hash = redis::Script::new(&String::from_utf8_lossy(owner)).get_hash().to_owned();
    hash.as_bytes().get(..32).and_then(super::pubsub::id_of).unwrap_or(TicketId(0))
}
