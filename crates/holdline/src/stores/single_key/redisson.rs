//! The layout `?scheme=redisson`: a lock is a hash, shared with Redisson's `RLock`.
//!
//! The hash has the lock's own name, one field `uuid:thread` with the count of holds, and an
//! expiry. A holder is a thread there and a guard here, so each guard acts as a client of its own
//! with one thread: the ticket's id is the uuid. A release publishes on the lock's channel, which
//! wakes Redisson's waiters, and Redisson's releases wake ours. The hash has no room for a holder's
//! note, which is in a key beside it.

use super::{Found, KeyLayout, LONGEST};
use crate::error::{Error, ErrorKind, Result};
use crate::store::TicketId;
use crate::stores::redis::encode::id_from;
use crate::stores::redis::keys::{NOTE, beside};
use holdline_redis_client::Script;
use redis::{Cmd, Value};
use std::time::Duration;

macro_rules! with_foreign {
    ($file:literal) => {
        concat!(include_str!("lua/redisson_foreign.lua"), "\n", include_str!($file))
    };
}

static ENTER: Script = Script::new(with_foreign!("lua/redisson_enter.lua"));
static LEAVE: Script = Script::new(concat!(
    include_str!("../queue/redis/lua/evicted.lua"),
    "\n",
    include_str!("lua/redisson_leave.lua")
));
static LOOK: Script = Script::new(with_foreign!("lua/redisson_look.lua"));

pub(in crate::stores) struct Redisson {
    /// Whether the channels are sharded.
    pub(in crate::stores) sharded: bool,
    /// Whether the server is a cluster.
    pub(in crate::stores) cluster: bool,
}

/// The thread number of our owners. Java's threads count from 1.
const THREAD: &str = ":0";

impl KeyLayout for Redisson {
    fn scheme(&self) -> &'static str {
        "redisson"
    }

    fn scripts(&self) -> [&'static Script; 3] {
        [&ENTER, &LEAVE, &LOOK]
    }

    fn owner(&self, id: TicketId) -> String {
        let text = id.to_string();
        let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
        parts.join("-") + THREAD
    }

    fn to_enter(&self, key: &str, command: &mut Cmd) {
        command.arg(beside(key, NOTE));
    }

    fn to_leave(&self, key: &str, command: &mut Cmd) {
        let publish = if self.sharded { "SPUBLISH" } else { "PUBLISH" };
        command.arg(beside(key, NOTE)).arg(publish).arg(channel(key));
    }

    fn to_look(&self, key: &str, command: &mut Cmd) {
        command.arg(beside(key, NOTE));
    }

    fn read(&self, value: &Value) -> Option<Vec<Found>> {
        let Value::Array(parts) = value else { return None };
        let [Value::Array(fields), Value::Int(left), note, ..] = &parts[..] else { return None };
        let expires_in = u64::try_from(*left).map_or(LONGEST, Duration::from_millis);
        let mut found = Vec::new();
        for pair in fields.chunks(2) {
            let [Value::BulkString(owner), _] = pair else { return None };
            if owner == b"mode" {
                continue; // shows Redisson's read-write lock that the name is taken
            }
            let text = String::from_utf8_lossy(owner);
            found.push(Found {
                id: id_of(&text).unwrap_or_else(|| id_from(owner)),
                note: words(note, &text).unwrap_or_else(|| text.clone().into_owned()),
                certain: looks_like_an_owner(&text),
                owner: owner.clone(),
                expires_in,
            });
        }
        Some(found)
    }

    fn channel(&self, key: &str) -> Option<String> {
        Some(channel(key))
    }

    fn is_notification(&self) -> fn(&[u8]) -> bool {
        |_| true
    }

    /// Refuses names whose key and channel are in different slots of a cluster: those with
    /// unbalanced braces. Redisson cannot use them there either.
    fn check(&self, key: &str) -> Result<()> {
        if !self.cluster || tag(key) == tag(&channel(key)) {
            return Ok(());
        }
        let message = format!(
            "lock \"{key}\" cannot be shared with Redisson in a cluster: its braces would put the \
             lock and its channel on different nodes; use another name"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

/// The channel of a lock.
fn channel(key: &str) -> String {
    if key.contains('{') {
        format!("redisson_lock__channel:{key}")
    } else {
        format!("redisson_lock__channel:{{{key}}}")
    }
}

/// The part of a key that determines its slot.
fn tag(key: &str) -> &str {
    key.split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag })
}

/// The ticket of an owner; `None` if it is another library's.
fn id_of(owner: &str) -> Option<TicketId> {
    let uuid = owner.strip_suffix(THREAD).filter(|_| looks_like_an_owner(owner))?;
    uuid.replace('-', "").parse().ok()
}

/// Whether this is `8-4-4-4-12` hexadecimal digits and a number.
fn looks_like_an_owner(text: &str) -> bool {
    let Some((uuid, thread)) = text.split_once(':') else { return false };
    let lengths = uuid.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12])
        && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
        && thread.parse::<i64>().is_ok()
}

/// The holder's note, if the key beside the lock belongs to this holder.
fn words(note: &Value, owner: &str) -> Option<String> {
    let Value::BulkString(note) = note else { return None };
    let words = note.strip_prefix(owner.as_bytes())?.strip_prefix(b" ")?;
    Some(String::from_utf8_lossy(words).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_of_a_client_with_one_thread() {
        let layout = Redisson { sharded: false, cluster: true };
        let id = TicketId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let owner = layout.owner(id);
        assert_eq!(owner, "01234567-89ab-cdef-0123-456789abcdef:0");
        assert_eq!(id_of(&owner), Some(id));
        assert_eq!(id_of("01234567-89ab-cdef-0123-456789abcdef:-37"), None);
        assert!(looks_like_an_owner("01234567-89ab-cdef-0123-456789abcdef:-37"));
        for text in ["mode", "0123:1", "01234567-89ab-cdef-0123-456789abcdef:x", "a:1"] {
            assert!(!looks_like_an_owner(text), "{text}");
        }
    }

    #[test]
    fn keys_and_channels_share_a_slot_or_are_refused() {
        let layout = Redisson { sharded: true, cluster: true };
        assert_eq!(channel("jobs"), "redisson_lock__channel:{jobs}");
        assert_eq!(channel("app:{jobs}:1"), "redisson_lock__channel:app:{jobs}:1");
        for good in ["jobs", "app:{jobs}:1", "with space"] {
            layout.check(good).expect("one slot");
        }
        for bad in ["a}b", "{a", "a{}", "}{"] {
            let error = layout.check(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            Redisson { sharded: false, cluster: false }.check(bad).expect("one server");
        }
    }
}
