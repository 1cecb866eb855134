//! What `look.lua` answers, as somebody looking at the line sees it.

use super::ears::id_of;
use crate::store::{Seq, Standee, View};
use redis::Value;
use std::time::Duration;

/// Where `enter_one.lua` packs things, in numbers that come after one byte for the kind.
const CAPACITY: usize = 2;
const WEIGHT: usize = 3;
const SEQ: usize = 4;
const EXPIRES: usize = 5;
/// Where the ticket's id begins, and its words.
const ID: usize = 65;
const WORDS: usize = ID + 32;

/// Reads the time, the line and its places: lapsed ones are left out, and who is admitted follows
/// from the rule. Nothing if it makes no sense.
pub(super) fn read(value: &Value) -> Option<View> {
    let Value::Array(parts) = value else { return None };
    let [Value::Array(time), head, Value::Array(fields)] = &parts[..] else { return None };
    let mut clock = time.iter().map(|part| std::str::from_utf8(bytes(part)?).ok()?.parse().ok());
    let (seconds, rest): (u64, u64) = (clock.next()??, clock.next()??);
    let now = seconds * 1_000_000 + rest;
    if *head == Value::Nil {
        return Some(View::default());
    }
    let head = bytes(head)?;
    let capacity = number(head, CAPACITY)? as u32;
    let mut places = if head[0] == 1 { vec![only(head)?] } else { Vec::new() };
    if head[0] == 2 {
        for pair in fields.chunks_exact(2) {
            places.push(place(bytes(&pair[0])?, bytes(&pair[1])?)?);
        }
    }
    places.retain(|(_, expires)| *expires > now);
    places.sort_by_key(|(place, _)| place.seq);
    let mut ahead = 0;
    for (place, expires) in &mut places {
        ahead += u64::from(place.weight);
        place.admitted = ahead <= u64::from(capacity);
        place.expires_in = Duration::from_micros(*expires - now);
    }
    let places: Vec<_> = places.into_iter().map(|(place, _)| place).collect();
    Some(View { capacity: if places.is_empty() { 0 } else { capacity }, places })
}

/// The place in a line of one, and when it lapses. In an empty line it lapsed long ago, and there
/// may be no words.
fn only(head: &[u8]) -> Option<(Standee, u64)> {
    let id = head.get(ID..WORDS).and_then(id_of).unwrap_or(crate::store::TicketId(0));
    let words = head.get(WORDS..).unwrap_or_default();
    let note = words.iter().position(|byte| *byte == b' ').map_or(&[][..], |at| &words[at + 1..]);
    let place = Standee {
        id,
        seq: Seq(number(head, SEQ)? as u64),
        weight: number(head, WEIGHT)? as u32,
        admitted: false,
        expires_in: Duration::ZERO,
        note: String::from_utf8_lossy(note).into(),
    };
    Some((place, number(head, EXPIRES)? as u64))
}

/// A place in a line of many, and when it lapses.
fn place(id: &[u8], content: &[u8]) -> Option<(Standee, u64)> {
    let content = String::from_utf8_lossy(content);
    let mut words = content.splitn(5, ' ');
    let weight = words.next()?.parse().ok()?;
    let seq = Seq(words.next()?.parse().ok()?);
    let expires = words.next()?.parse().ok()?;
    let _channel = words.next()?;
    let note = words.next()?.into();
    let expires_in = Duration::ZERO;
    Some((Standee { id: id_of(id)?, seq, weight, admitted: false, expires_in, note }, expires))
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
