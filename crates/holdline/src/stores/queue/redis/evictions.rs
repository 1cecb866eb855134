//! Recent evictions, as `lua/evicted.lua` stores them.
//!
//! They are in a string beside the lock, with an expiry of its own: for each eviction the ticket's
//! 32 digits, the length of the note, and the note.

use super::pubsub::id_of;
use crate::store::{EVICTIONS_KEPT, Eviction};
use redis::Value;

/// The number of digits of the note's length: see `lua/evicted.lua`.
const DIGITS: usize = 5;

/// Decodes the evictions in the last part of a reply.
pub(in crate::stores) fn last_of(answer: &Value) -> Vec<Eviction> {
    match answer {
        Value::Array(parts) => parts.last().map(read).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Decodes the evictions of a lock, oldest first. Leaves invalid ones out: nothing depends on them.
pub(in crate::stores) fn read(value: &Value) -> Vec<Eviction> {
    let Value::BulkString(bytes) = value else { return Vec::new() };
    let (mut evictions, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((eviction, next)) = first(rest) {
        evictions.push(eviction);
        rest = next;
    }
    let surplus = evictions.len().saturating_sub(EVICTIONS_KEPT);
    evictions.split_off(surplus)
}

fn first(bytes: &[u8]) -> Option<(Eviction, &[u8])> {
    let (id, bytes) = bytes.split_at_checked(32)?;
    let (size, bytes) = bytes.split_at_checked(DIGITS)?;
    let (note, rest) = bytes.split_at_checked(std::str::from_utf8(size).ok()?.parse().ok()?)?;
    Some((Eviction { id: id_of(id)?, note: String::from_utf8_lossy(note).into() }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::TicketId;

    fn of(text: &str) -> Vec<(TicketId, String)> {
        let value = Value::BulkString(text.as_bytes().to_vec());
        read(&value).into_iter().map(|one| (one.id, one.note.to_string())).collect()
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let (one, two) = (format!("{:032x}00002hi", 1), format!("{:032x}00000", 2));
        let both = [(TicketId(1), "hi".to_owned()), (TicketId(2), String::new())];
        assert_eq!(of(&(one.clone() + &two)), both);
        assert_eq!(of(&(one.clone() + &two[..36])), both[..1]);
        assert_eq!(of(&one[..38]), []);
        assert_eq!(of(""), []);
        assert_eq!(of(&one.repeat(9)).len(), EVICTIONS_KEPT);
        assert_eq!(read(&Value::Nil), []);
    }
}
