//! What `look.lua` answers, as somebody looking at the line sees it.

use super::ears::id_of;
use crate::store::{Seq, Standee, View};
use redis::Value;
use std::time::Duration;

/// Reads the time and the line's hash: lapsed places are left out, and who is admitted follows from
/// the rule. Nothing if it makes no sense.
pub(super) fn read(value: &Value) -> Option<View> {
    let Value::Array(parts) = value else { return None };
    let [Value::Array(time), Value::Array(fields)] = &parts[..] else { return None };
    let mut clock = time.iter().map(|part| std::str::from_utf8(bytes(part)?).ok()?.parse().ok());
    let (seconds, rest): (u64, u64) = (clock.next()??, clock.next()??);
    let now = seconds * 1_000_000 + rest;
    let mut capacity = 0;
    let mut places = Vec::new();
    for pair in fields.chunks(2) {
        let [field, content] = pair else { return None };
        let (field, content) = (bytes(field)?, bytes(content)?);
        if field == b"h" {
            // A version, then doubles, of which the first is the capacity.
            let head = content.get(1..9)?.try_into().ok()?;
            capacity = f64::from_le_bytes(head) as u32;
        } else {
            places.extend(place(field, content, now)?);
        }
    }
    places.sort_by_key(|place| place.seq);
    let mut ahead = 0;
    for place in &mut places {
        ahead += u64::from(place.weight);
        place.admitted = ahead <= u64::from(capacity);
    }
    Some(View { capacity: if places.is_empty() { 0 } else { capacity }, places })
}

/// One place; `Some(None)` if it has lapsed.
fn place(id: &[u8], content: &[u8], now: u64) -> Option<Option<Standee>> {
    let content = String::from_utf8_lossy(content);
    let mut words = content.splitn(5, ' ');
    let weight = words.next()?.parse().ok()?;
    let seq = Seq(words.next()?.parse().ok()?);
    let expires: u64 = words.next()?.parse().ok()?;
    let _channel = words.next()?;
    let note = words.next()?.into();
    if expires <= now {
        return Some(None);
    }
    let expires_in = Duration::from_micros(expires - now);
    Some(Some(Standee { id: id_of(id)?, seq, weight, admitted: false, expires_in, note }))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
