//! Keys beside a line: outside of the prefix of its places, where Go's clients, which treat every
//! key under it as a place, do not see them.
//!
//! There are two kinds. Locks of python-etcd3 and of Node's etcd3 are the key `NAME` itself, with a
//! lease. They do not see our places, so both could hold at once; therefore they are refused. And
//! the notes of places that were removed by force are at `NAME`, a control character (which no name
//! has), and the ticket, on leases of their own.
//!
//! A user whose role allows only `NAME/` may not see these keys; then both are left out.

use super::layout;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{EVICTIONS_KEPT, Eviction, TicketId};
use holdline_etcd_client::is_forbidden;
use holdline_etcd_client::proto::{
    self, Against, Compare, Delete, KeyValue, Op, Put, Range, RangeAnswer,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The separator of a lock's name and the removed ticket.
const MARK: u8 = 1;

/// The key of other clients' locks of this name.
fn bare(prefix: &[u8]) -> &[u8] {
    prefix.strip_suffix(b"/").unwrap_or(prefix)
}

/// True unless another kind of client holds the lock: a key of this name with a lease.
pub(super) fn no_other(prefix: &[u8]) -> Compare {
    layout::compare(bare(prefix), proto::EQUAL, Against::Lease(0))
}

/// The request for that key.
pub(super) fn other(prefix: &[u8]) -> Range {
    layout::one(bare(prefix))
}

/// The error if that key exists.
pub(super) fn refuse_other(line: &Name, found: &RangeAnswer) -> Result<()> {
    let Some(kv) = found.kvs.first().filter(|kv| kv.lease != 0) else { return Ok(()) };
    let key = String::from_utf8_lossy(&kv.key);
    let message = format!(
        "lock \"{line}\" cannot be used: the key \"{key}\" itself (of lease {:016x}) is a lock as \
         python-etcd3 and Node's etcd3 have it, and they do not see ours; let all use one client, \
         or give them names of their own (prefix=)",
        kv.lease
    );
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// The range of the notes of this line's places that were removed by force.
pub(super) fn notes(prefix: &[u8]) -> Range {
    layout::all(&[bare(prefix), &[MARK]].concat())
}

fn note_key(prefix: &[u8], id: TicketId) -> Vec<u8> {
    [bare(prefix), &[MARK], id.to_string().as_bytes()].concat()
}

/// Writes such a note, and deletes the oldest of the notes found if there are too many.
pub(super) fn keep_note(
    prefix: &[u8],
    id: TicketId,
    note: &str,
    lease: i64,
    found: &[KeyValue],
) -> Vec<proto::RequestOp> {
    let key = note_key(prefix, id);
    let surplus = (found.len() + 1).saturating_sub(EVICTIONS_KEPT);
    let old = found.iter().take(surplus).filter(|kv| kv.key != key);
    let delete =
        |kv: &KeyValue| Op::Delete(Delete { key: kv.key.clone(), range_end: Vec::new() }).into();
    let mut ops: Vec<_> = old.map(delete).collect();
    ops.push(Op::Put(Put { key, value: note.as_bytes().to_vec(), lease }).into());
    ops
}

/// The latest of the notes found, oldest first.
pub(super) fn evictions(prefix: &[u8], found: &[KeyValue]) -> Vec<Eviction> {
    let read = |kv: &KeyValue| {
        let id = kv.key.strip_prefix(bare(prefix))?.strip_prefix(&[MARK])?;
        let id = std::str::from_utf8(id).ok()?.parse().ok()?;
        let note = Arc::from(&*String::from_utf8_lossy(&kv.value));
        Some(Eviction { id, note })
    };
    let all: Vec<_> = found.iter().filter_map(read).collect();
    let surplus = all.len().saturating_sub(EVICTIONS_KEPT);
    all.into_iter().skip(surplus).collect()
}

impl Shared {
    /// Whether our user is assumed to be allowed to read the keys beside a line.
    pub(super) fn sees_beside(&self) -> bool {
        !self.narrow.load(Ordering::Relaxed)
    }

    /// Records the error of a request that may have read beside a line. Returns whether to retry
    /// without that; if the retry is refused too, that was not the reason.
    pub(super) fn narrow_down(&self, error: &Error, beside: bool) -> bool {
        let forbidden = is_forbidden(error);
        if forbidden {
            self.narrow.store(beside, Ordering::Relaxed);
        }
        forbidden && beside
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Address;
    use super::*;
    use crate::store::{Enter, Standing, Ticket};
    use crate::stores::ephemeral::engine;
    use crate::stores::ephemeral::ticket::tests::ticket;
    use holdline_testkit::{Link, Way, soon, until};
    use std::time::Duration;

    /// A login that is refused for a moment says nothing about rights: the store would never look
    /// beside its lines again.
    #[test]
    fn only_missing_rights_keep_the_store_from_looking_beside_a_line() {
        let address = Address::read("etcd", "//host").expect("good");
        let store = Shared::new(address).expect("there are threads");
        let denied = |cause: &str| Error::because(ErrorKind::Denied, "denied", cause.to_owned());
        let login = denied("etcdserver: invalid auth token");
        assert!(!store.narrow_down(&login, true) && store.sees_beside());
        let right = denied("etcdserver: permission denied");
        assert!(store.narrow_down(&right, true) && !store.sees_beside());
        assert!(!store.narrow_down(&login, false) && !store.sees_beside());
        assert!(!store.narrow_down(&right, false) && store.sees_beside(), "that was not why");
    }

    /// Requests for other locks may find out something else about our rights meanwhile. Without the
    /// look beside the line, a refusal is final.
    #[tokio::test]
    async fn a_request_keeps_to_what_was_known_of_our_rights() {
        let Some(servers) = holdline_testkit::etcd::start(1) else { return };
        let words: [&[&str]; 8] = [
            &["user", "add", "root:secret"],
            &["role", "add", "root"],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "me:mine"],
            &["role", "add", "locks"],
            &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "x/"],
            &["user", "grant-role", "me", "locks"],
            &["auth", "enable"],
        ];
        for words in words {
            servers.say(words);
        }
        let link = Link::to(servers.hosts()[0].as_str()).expect("a port is free");
        let address = format!("//me:mine@{}", link.address());
        let store = Shared::new(Address::read("etcd", &address).expect("good")).expect("threads");
        let long = Duration::from_secs(600);
        let enter = |id, wait_lease| {
            let ticket = Ticket { id: TicketId(id), lease: long, wait_lease, ..ticket(1, 1) };
            let (store, line) = (Arc::clone(&store), Name::new("x").expect("good"));
            async move { engine::enter(&store, (&line, &ticket), &"".into(), Enter::Queue).await }
        };
        // It waits on its own lease; the next one needs another.
        until("the lock", async || soon("an answer", enter(1, long)).await.is_ok()).await;
        assert!(!store.sees_beside());
        let before = servers.calls("LeaseGrant");
        link.stall(Way::Replies);
        let waits = tokio::spawn(enter(2, Duration::from_secs(5)));
        until("a grant", async || servers.calls("LeaseGrant") > before).await;
        store.narrow.store(false, Ordering::Relaxed);
        link.mend();
        let standing = soon("an answer", waits).await.expect("no panic").expect("it is allowed");
        assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
    }

    fn kv(key: Vec<u8>, lease: i64) -> KeyValue {
        KeyValue { key, lease, create_revision: 7, value: b"why".to_vec(), ..Default::default() }
    }

    #[test]
    fn notes_lie_beside_the_line_and_are_few() {
        let prefix = b"team/x/";
        let key = note_key(prefix, TicketId(5));
        assert!(!key.starts_with(prefix) && key.starts_with(b"team/x\x01"));
        let range = notes(prefix);
        assert!(key >= range.key && key < range.range_end);
        let found: Vec<_> = (0..8).map(|id| kv(note_key(prefix, TicketId(id)), 1)).collect();
        let kept = evictions(prefix, &found);
        assert_eq!((kept.len(), kept[7].id, &*kept[7].note), (8, TicketId(7), "why"));
        let ops = keep_note(prefix, TicketId(9), "why", 1, &found);
        assert!(matches!(&ops[0].op, Some(Op::Delete(delete)) if delete.key == found[0].key));
        assert_eq!(ops.len(), 2);
    }

    #[test]
    fn a_bare_key_with_a_lease_is_somebody_elses_lock() {
        let name = Name::new("x").expect("good");
        let found =
            |lease| RangeAnswer { kvs: vec![kv(b"x".to_vec(), lease)], ..Default::default() };
        assert!(refuse_other(&name, &found(0)).is_ok(), "data of a program");
        let error = refuse_other(&name, &found(0x1f)).expect_err("a lock");
        assert!(error.to_string().contains("1f) is a lock"), "{error}");
    }
}
