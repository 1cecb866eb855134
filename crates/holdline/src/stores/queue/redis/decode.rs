//! Decodes the reply of `look.lua` into a snapshot.

use super::evictions;
use super::pubsub::id_of;
use crate::store::{QueueEntry, QueueSnapshot, Seq, TicketId};
use holdline_kernel::rule::admitted_prefix;
use redis::Value;
use std::time::Duration;

/// The fields of a line as `enter_one.lua` packs them, in doubles after one byte for the kind.
const CAPACITY: usize = 2;
const WEIGHT: usize = 3;
const SEQ: usize = 4;
const EXPIRES: usize = 5;
/// The offsets of the ticket's id, and of its channel and note.
const ID: usize = 65;
const WORDS: usize = ID + 32;

/// The offset of the first place in a line of a few places; and in each place the offset of the
/// ticket's id, after three numbers and the length of the rest.
const FIRST: usize = 73;
const REST: usize = 28;

/// Decodes the time, the line and its places. Leaves lapsed places out, and applies the rule to
/// find the admitted ones. `None` if the reply is invalid, or the key is not a line's.
pub(super) fn read(value: &Value) -> Option<QueueSnapshot> {
    let Value::Array(parts) = value else { return None };
    let [Value::Array(time), head, Value::Array(fields), evictions] = &parts[..] else {
        return None;
    };
    let evictions = evictions::read(evictions);
    let mut clock = time.iter().map(|part| std::str::from_utf8(bytes(part)?).ok()?.parse().ok());
    let (seconds, rest): (u64, u64) = (clock.next()??, clock.next()??);
    let now = seconds.checked_mul(1_000_000)?.checked_add(rest)?;
    if *head == Value::Nil {
        return Some(QueueSnapshot { evictions, ..QueueSnapshot::default() });
    }
    let head = bytes(head)?;
    if idle(head) {
        return Some(QueueSnapshot { evictions, ..QueueSnapshot::default() });
    }
    let capacity = number(head, CAPACITY)? as u32;
    let mut places = match head.first()? {
        1 => vec![only(head)?],
        3 => few(head.get(FIRST..)?)?,
        2 => fields
            .chunks(2)
            .map(|pair| match pair {
                [id, content] => place(bytes(id)?, bytes(content)?),
                _ => None,
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    places.retain(|(_, expires)| *expires > now);
    places.sort_by_key(|(place, _)| place.seq);
    let weights: Vec<u32> = places.iter().map(|(place, _)| place.weight).collect();
    for ((place, expires), admitted) in places.iter_mut().zip(admitted_prefix(capacity, weights)) {
        place.admitted = admitted;
        place.expires_in = Duration::from_micros(*expires - now);
    }
    let places: Vec<_> = places.into_iter().map(|(place, _)| place).collect();
    let capacity = if places.is_empty() { 0 } else { capacity };
    Some(QueueSnapshot { capacity, places, evictions })
}

/// Whether the line is idle: its string has only the highest token, negated. Some servers write a
/// round number with an exponent.
fn idle(head: &[u8]) -> bool {
    let number = std::str::from_utf8(head).ok().and_then(|text| text.parse::<f64>().ok());
    number.is_some_and(|number| number < 0.0 && number.is_finite())
}

/// The only place in a line of one, and when it lapses. In an empty line it lapsed long ago, and
/// may have no channel and note.
fn only(head: &[u8]) -> Option<(QueueEntry, u64)> {
    let id = head.get(ID..WORDS).and_then(id_of).unwrap_or(TicketId(0));
    let words = head.get(WORDS..).unwrap_or_default();
    let [weight, seq, expires] = [WEIGHT, SEQ, EXPIRES].map(|at| number(head, at));
    Some((entry(id, seq? as u64, weight? as u32, words), expires? as u64))
}

/// The places of a line of a few, and when they lapse.
fn few(mut text: &[u8]) -> Option<Vec<(QueueEntry, u64)>> {
    let mut places = Vec::new();
    while !text.is_empty() {
        let (numbers, rest) = text.split_at_checked(REST)?;
        let number = |at: usize| {
            let bytes = numbers.get(at * 8..at * 8 + 8)?;
            Some(f64::from_le_bytes(bytes.try_into().ok()?))
        };
        let size = u32::from_le_bytes(numbers.get(24..)?.try_into().ok()?);
        let (tail, next) = rest.split_at_checked(size as usize)?;
        let (id, words) = tail.split_at_checked(WORDS - ID)?;
        let place = entry(id_of(id)?, number(1)? as u64, number(0)? as u32, words);
        places.push((place, number(2)? as u64));
        text = next;
    }
    Some(places)
}

/// An entry, not yet known to be admitted. The first word is the channel, the rest is the note.
fn entry(id: TicketId, seq: u64, weight: u32, words: &[u8]) -> QueueEntry {
    let note = words
        .iter()
        .position(|byte| *byte == b' ')
        .and_then(|at| words.get(at + 1..))
        .unwrap_or_default();
    let (seq, note) = (Seq(seq), String::from_utf8_lossy(note).into());
    QueueEntry { id, seq, weight, admitted: false, expires_in: Duration::ZERO, note }
}

/// A place in a line of many, and when it lapses.
fn place(id: &[u8], content: &[u8]) -> Option<(QueueEntry, u64)> {
    let content = String::from_utf8_lossy(content);
    let mut words = content.splitn(5, ' ');
    let weight = words.next()?.parse().ok()?;
    let seq = Seq(words.next()?.parse().ok()?);
    let expires = words.next()?.parse().ok()?;
    let _channel = words.next()?;
    let note = words.next()?.into();
    let expires_in = Duration::ZERO;
    Some((QueueEntry { id: id_of(id)?, seq, weight, admitted: false, expires_in, note }, expires))
}

fn number(head: &[u8], at: usize) -> Option<f64> {
    let bytes = head.get(1 + at * 8..9 + at * 8)?;
    Some(f64::from_le_bytes(bytes.try_into().ok()?))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
