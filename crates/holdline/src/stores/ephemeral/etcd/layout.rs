//! The layout of a line in etcd: keys, values, and the admission rule over them.
//!
//! A ticket's key is `NAME/LEASE-SLOT`, both in hexadecimal. The slot distinguishes the places that
//! one process has in one line at the same time, and is reused afterwards: etcd remembers every key
//! that it ever had until its history is compacted, and a read of a line walks over all of them.
//! The ticket is in the value. (A leader's value is its published value, so its key is
//! `NAME/LEASE-TICKET`, new each time.)
//!
//! Go's `concurrency` package, and so `etcdctl lock`, writes `NAME/LEASE`, and takes the key under
//! `NAME/` that was created first for the owner's, so both respect each other. Deeper keys
//! (`NAME/x/y`) belong to another name, and a key without a lease is no place: neither can ever
//! block us, as they can block Go's clients.

use crate::names::Name;
use crate::store::{Ticket, TicketId};
use crate::stores::ephemeral::values::{self, OURS, made_up};
use holdline_etcd_client::proto::{self, KeyValue};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

/// The value of one of our keys.
#[derive(Debug, Serialize, Deserialize)]
struct Value<'a> {
    holdline: u8,
    #[serde(borrow)]
    ticket: std::borrow::Cow<'a, str>,
    weight: u32,
    capacity: u32,
    #[serde(borrow)]
    note: std::borrow::Cow<'a, str>,
}

/// The prefix of all keys of a line.
pub(super) fn prefix(root: &str, line: &Name) -> Vec<u8> {
    format!("{root}{line}/").into_bytes()
}

/// The key of a ticket's place, named after its slot or the ticket itself.
pub(super) fn key(prefix: &[u8], lease: i64, ticket: &Ticket, slot: Option<u32>) -> Vec<u8> {
    let is_light = ticket.weight == 1 && ticket.capacity > 1;
    let mut key = if is_light { light(prefix) } else { prefix.to_vec() };
    let child = match slot {
        Some(slot) => format!("{lease:x}-{slot:x}"),
        None => format!("{lease:x}-{}", ticket.id),
    };
    key.extend_from_slice(child.as_bytes());
    key
}

/// The prefix of the keys of a line's light tickets. They sort behind all other places' keys, but
/// for those of other clients that begin with `~` or a character behind it.
pub(super) fn light(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"~"].concat()
}

/// The first key behind those of a line's light tickets: these go on with a hexadecimal digit.
pub(super) fn light_end(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"~g"].concat()
}

/// The first key behind all keys with this prefix.
pub(super) fn end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0] // to the end of everything
}

/// The value of a ticket's key. A leader's published value is stored bare, so that Go's observers
/// can read it; its note then has a key of its own.
pub(super) fn value(ticket: &Ticket, note: &str, leads: bool) -> Vec<u8> {
    let Ticket { id, weight, capacity, .. } = *ticket;
    let word = leads.then(|| word(ticket, note)).flatten();
    word.map_or_else(
        || {
            let ticket = format!("{:x}", id.0).into();
            let value = Value { holdline: 1, ticket, weight, capacity, note: note.into() };
            serde_json::to_vec(&value).unwrap_or_default()
        },
        String::into_bytes,
    )
}

/// The value that a leader publishes, if the ticket is a candidate's; `None` if it looks like one
/// of our own values.
pub(super) fn word(ticket: &Ticket, note: &str) -> Option<String> {
    values::word(ticket, note).filter(|word| !word.starts_with(OURS))
}

/// The key of a leader's note. It is created after the place, and deleted with it.
pub(super) fn note_key(key: &[u8]) -> Vec<u8> {
    [key, b"/note"].concat()
}

/// Deletes a place and its note, if the place was created at this revision (0: always). So a late
/// request deletes no other ticket's key.
pub(super) fn delete(key: &[u8], create: i64) -> proto::Txn {
    let guard = (create != 0).then(|| created_at(key, create));
    proto::Txn {
        compare: guard.into_iter().collect(),
        success: vec![proto::Op::Delete(removal(key)).into()],
        failure: Vec::new(),
    }
}

/// Deletes a place and its note unconditionally.
pub(super) fn removal(key: &[u8]) -> proto::Delete {
    // Only keys named after a ticket have a note.
    let child = key.rsplit(|byte| *byte == b'/').next().and_then(|own| str::from_utf8(own).ok());
    let is_leader = child.and_then(ticket_of).is_some();
    let range_end = if is_leader { [key, b"0"].concat() } else { Vec::new() };
    proto::Delete { key: key.to_vec(), range_end }
}

/// One place in a line.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: TicketId,
    pub(super) key: Vec<u8>,
    pub(super) create: i64,
    pub(super) lease: i64,
    /// Unknown if it is not ours: then it takes everything.
    pub(super) weights: Option<(u32, u32)>,
    pub(super) note: Arc<str>,
}

impl Member {
    /// Parses a key of a line; `None` if it is no place of that line.
    pub(super) fn read(prefix: &[u8], kv: &KeyValue) -> Option<Member> {
        let child = std::str::from_utf8(kv.key.strip_prefix(prefix)?).ok()?;
        if child.contains('/') || kv.lease == 0 {
            return None;
        }
        let named = ticket_of(child);
        let text = String::from_utf8_lossy(&kv.value);
        let value = (parts(child).is_some() && text.starts_with(OURS)).then_some(&*text);
        let value = value.and_then(|text| serde_json::from_str::<Value<'_>>(text).ok());
        let ticket = value.as_ref().and_then(|value| hex(&value.ticket)).map(TicketId);
        let ours = named.or(ticket);
        let (weights, note) = match value {
            Some(value) => (Some((value.weight, value.capacity)), value.note.into()),
            None => (named.map(|_| (1, 1)), spoken(&text)),
        };
        Some(Member {
            id: ours.unwrap_or_else(|| made_up(&kv.key, kv.create_revision)),
            key: kv.key.clone(),
            create: kv.create_revision,
            lease: kv.lease,
            weights,
            note,
        })
    }

    /// The capacity of its line, if it has one.
    pub(super) fn capacity(&self) -> Option<u32> {
        self.weights.map(|(_, capacity)| capacity)
    }

    /// Its share of this capacity.
    pub(super) fn weight(&self, capacity: u32) -> u32 {
        self.weights.map_or(capacity, |(weight, _)| weight.min(capacity))
    }
}

/// A note made from a bare value.
fn spoken(text: &str) -> Arc<str> {
    if text.is_empty() { Arc::from("") } else { json!({ "value": text }).to_string().into() }
}

/// The parts of one of our keys: `LEASE-SLOT` or `LEASE-TICKET`.
fn parts(child: &str) -> Option<(u128, &str)> {
    let child = child.strip_prefix('~').unwrap_or(child);
    let (lease, own) = child.split_once('-')?;
    hex(own)?;
    Some((hex(lease)?, own))
}

/// The ticket that a key is named after, if any.
fn ticket_of(child: &str) -> Option<TicketId> {
    let (_, own) = parts(child)?;
    (own.len() == 32).then(|| hex(own).map(TicketId))?
}

fn hex(text: &str) -> Option<u128> {
    let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (digits && !text.is_empty()).then(|| u128::from_str_radix(text, 16).ok())?
}

/// The name of the line to which this key belongs; `None` if it is no place.
pub(super) fn name_of(root: &str, kv: &KeyValue) -> Option<Name> {
    let key = std::str::from_utf8(&kv.key).ok()?.strip_prefix(root)?;
    let (name, child) = key.rsplit_once('/')?;
    // Every key with a lease is a place, for Go's clients as for us, except a leader's note.
    let above = name.rsplit_once('/').map(|(_, above)| above);
    let is_note = child == "note" && above.is_some_and(|key| ticket_of(key).is_some());
    if kv.lease == 0 || is_note {
        return None;
    }
    Name::new(name).ok()
}

/// Keys without a lease among the places. They are no places here, but Go's clients wait for them.
pub(super) fn strays(prefix: &[u8], kvs: &[KeyValue]) -> Vec<Member> {
    let without = kvs.iter().filter(|kv| kv.lease == 0);
    let read = |kv: &KeyValue| {
        let mut stray = Member::read(prefix, &KeyValue { lease: 1, ..kv.clone() })?;
        let key = String::from_utf8_lossy(&kv.key);
        let what = "has no lease, and holds nothing; Go's clients wait for it";
        stray.note = format!("the key {key} {what}").into();
        stray.weights = Some((0, stray.capacity().unwrap_or(1)));
        Some(stray)
    };
    without.filter_map(read).collect()
}

/// The places of a line in order, from the keys under its prefix in order of creation.
pub(super) fn members(prefix: &[u8], kvs: &[KeyValue]) -> Vec<Member> {
    let mut members: Vec<Member> = kvs.iter().filter_map(|kv| Member::read(prefix, kv)).collect();
    for kv in kvs {
        let Some(key) = kv.key.strip_suffix(b"/note") else { continue };
        if let Some(leader) = members.iter_mut().find(|member| member.key == key) {
            leader.note = String::from_utf8_lossy(&kv.value).into();
        }
    }
    members
}

/// All keys under a prefix, in order of creation.
pub(super) fn all(prefix: &[u8]) -> proto::Range {
    proto::Range {
        key: prefix.to_vec(),
        range_end: end(prefix),
        sort_order: proto::ASCEND,
        sort_target: proto::BY_CREATE,
        ..proto::Range::default()
    }
}

/// The newest `limit` keys under a prefix that were created before a revision (0: of all).
pub(super) fn newest(prefix: &[u8], before: i64, limit: i64) -> proto::Range {
    proto::Range {
        limit,
        sort_order: proto::DESCEND,
        max_create_revision: if before > 0 { before - 1 } else { 0 },
        ..all(prefix)
    }
}

/// The request for a range, in a transaction.
pub(super) fn look(range: proto::Range) -> proto::RequestOp {
    proto::Op::Range(range).into()
}

/// One key, without its value.
pub(super) fn one(key: &[u8]) -> proto::Range {
    proto::Range { keys_only: true, ..with_value(key) }
}

/// One key and its value.
pub(super) fn with_value(key: &[u8]) -> proto::Range {
    proto::Range { key: key.to_vec(), ..proto::Range::default() }
}

/// True if the key does not exist; with an end, if no key in the range does.
pub(super) fn absent(key: &[u8], range_end: Vec<u8>) -> proto::Compare {
    let created = proto::Against::CreateRevision(0);
    proto::Compare { range_end, ..compare(key, proto::EQUAL, created) }
}

/// True if the key exists, and was created at this revision.
pub(super) fn created_at(key: &[u8], revision: i64) -> proto::Compare {
    compare(key, proto::EQUAL, proto::Against::CreateRevision(revision))
}

/// True if the key exists, and was last written at this revision.
pub(super) fn written_at(key: &[u8], revision: i64) -> proto::Compare {
    compare(key, proto::EQUAL, proto::Against::ModRevision(revision))
}

/// True if the key exists, and is unchanged since that revision.
pub(super) fn is_as_at(key: &[u8], revision: i64) -> [proto::Compare; 2] {
    let there = compare(key, proto::GREATER, proto::Against::CreateRevision(0));
    [there, compare(key, proto::LESS, proto::Against::ModRevision(revision + 1))]
}

/// True if no key under the prefix was written after that revision.
pub(super) fn unchanged_since(prefix: &[u8], revision: i64) -> proto::Compare {
    let written = proto::Against::ModRevision(revision + 1);
    proto::Compare { range_end: end(prefix), ..compare(prefix, proto::LESS, written) }
}

/// Compares an attribute of a key.
pub(super) fn compare(key: &[u8], result: i32, against: proto::Against) -> proto::Compare {
    let target = match against {
        proto::Against::CreateRevision(_) => proto::CREATE,
        proto::Against::ModRevision(_) => proto::MOD,
        proto::Against::Lease(_) => proto::LEASE,
    };
    let (key, against, range_end) = (key.to_vec(), Some(against), Vec::new());
    proto::Compare { result, target, key, against, range_end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::ephemeral::ticket::tests::ticket;

    fn kv(key: &str, value: &[u8], lease: i64) -> KeyValue {
        KeyValue {
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
            lease,
            create_revision: 7,
            mod_revision: 7,
        }
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let name = Name::new("a/b").expect("good");
        let prefix = prefix("team/", &name);
        let text = |key| String::from_utf8(key).expect("text");
        let key = |slot| text(super::key(&prefix, 0x1f, &ticket(2, 3), slot));
        let (slot, named) = (key(Some(10)), key(None));
        assert_eq!(slot, "team/a/b/1f-a");
        assert_eq!(named, "team/a/b/1f-00000000000000000000000000000005");
        assert!(text(super::key(&prefix, 1, &ticket(1, 3), Some(0))).ends_with("/~1-0"));
        let read = |key: &str, value: &[u8]| {
            Member::read(&prefix, &kv(key, value, 0x1f)).expect("a place")
        };
        let member = read(&slot, &value(&ticket(2, 3), "{\"host\":\"é\\\"\"}", false));
        assert_eq!((member.id, member.weights), (TicketId(5), Some((2, 3))));
        assert_eq!(&*member.note, "{\"host\":\"é\\\"\"}");
        let leader = value(&ticket(1, 1), "{\"host\":\"h\",\"value\":\"10.0.0.1\"}", true);
        assert_eq!(leader, b"10.0.0.1");
        let member = read(&named, &leader);
        assert_eq!(&*member.note, "{\"value\":\"10.0.0.1\"}");
        assert_eq!((member.id, member.weights), (TicketId(5), Some((1, 1))));
        assert_eq!(name_of("team/", &kv(&named, b"", 0x1f)), Some(name.clone()));
        assert_eq!(name_of("team/", &kv(&slot, b"", 0x1f)), Some(name));
    }

    #[test]
    fn others_are_read_for_what_they_are() {
        let prefix = b"a/";
        let go = Member::read(prefix, &kv("a/1f", b"", 0x1f)).expect("Go's place");
        assert_eq!((go.weights, go.weight(9)), (None, 9));
        assert!(Member::read(prefix, &kv("a/b/1f", b"", 0x1f)).is_none(), "of the name a/b");
        assert!(Member::read(prefix, &kv("a/config", b"", 0)).is_none(), "no lease");
        assert_eq!(name_of("", &kv("a/1f", b"", 3)), Name::new("a").ok());
        assert_eq!(name_of("", &kv("a/config", b"", 0)), None);
        assert_eq!(name_of("", &kv("a/config", b"", 3)), Name::new("a").ok());
        let note = "a/1f-00000000000000000000000000000005/note";
        assert_eq!(name_of("", &kv(note, b"", 3)), None);
    }

    #[test]
    fn a_leaders_note_goes_with_it() {
        let range_end = |key: &[u8]| match &delete(key, 3).success[0].op {
            Some(proto::Op::Delete(delete)) => delete.range_end.clone(),
            _ => panic!("it deletes"),
        };
        let named = key(b"a/", 1, &ticket(1, 1), None);
        assert!(note_key(&named) < range_end(&named));
        assert!(range_end(&key(b"a/", 1, &ticket(1, 1), Some(7))).is_empty());
        // Another client's, of a name that makes it as long: beside it may be others, as `...1f-0`.
        let long = format!("a-{}/1f", "b".repeat(29));
        assert!(range_end(long.as_bytes()).is_empty());
    }

    #[test]
    fn an_end_is_behind_its_prefix() {
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(b"a\xff"), b"b");
        assert_eq!(end(b""), [0]);
    }
}
