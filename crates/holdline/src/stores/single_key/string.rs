//! The layout `?scheme=string`: a lock is a string with an expiry, under the lock's own name,
//! shared with redsync, node-redlock, redis-py's `Lock`, bsm/redislock and many others.
//!
//! The value is the ticket's id, unique to the attempt, followed by the note; other libraries have
//! values of their own. Release is compare-and-delete, renewal compare-and-extend.
//!
//! Most clients publish nothing when they release such a lock. If the server sends keyspace
//! notifications (`notify-keyspace-events`), waiters subscribe to those. The waiters of some other
//! libraries block until a list has an element, or a channel a message, which we send if the URL
//! says so.

use super::{Found, KeyLayout, LONGEST};
use crate::error::{Error, ErrorKind, Result};
use crate::store::TicketId;
use crate::stores::redis::config::Signals;
use crate::stores::redis::encode::id_from;
use crate::stores::redis::pubsub::id_of;
use holdline_redis_client::Script;
use redis::{Cmd, Value};
use std::time::Duration;

static ENTER: Script = Script::new(include_str!("lua/string_enter.lua"));
static LEAVE: Script = Script::new(concat!(
    include_str!("../queue/redis/lua/evicted.lua"),
    "\n",
    include_str!("lua/string_leave.lua")
));
static LOOK: Script = Script::new(include_str!("lua/string_look.lua"));

pub(in crate::stores) struct Strings {
    /// The number of the database, if the server sends keyspace notifications.
    pub(in crate::stores) notified_db: Option<u32>,
    /// The prefix of all keys.
    pub(in crate::stores) prefix: String,
    /// The signals that a release sends.
    pub(in crate::stores) signals: Signals,
}

impl KeyLayout for Strings {
    fn scheme(&self) -> &'static str {
        "string"
    }

    fn scripts(&self) -> [&'static Script; 3] {
        [&ENTER, &LEAVE, &LOOK]
    }

    fn owner(&self, id: TicketId) -> String {
        id.to_string()
    }

    fn to_enter(&self, _key: &str, _command: &mut Cmd) {}

    fn to_leave(&self, key: &str, command: &mut Cmd) {
        let Signals { list, channel } = &self.signals;
        let name = key.strip_prefix(&self.prefix).unwrap_or(key);
        let list = if list.is_empty() { String::new() } else { format!("{list}{name}") };
        let channel = if channel.is_empty() { String::new() } else { format!("{channel}{key}") };
        command.arg(list).arg(channel);
    }

    fn to_look(&self, _key: &str, _command: &mut Cmd) {}

    fn read(&self, value: &Value) -> Option<Vec<Found>> {
        let Value::Array(parts) = value else { return None };
        match &parts[..] {
            [Value::Nil, ..] => Some(Vec::new()),
            [Value::BulkString(bytes), Value::Int(left), ..] => {
                let ours = bytes.get(..32).and_then(id_of);
                let (owner, note) = match ours {
                    Some(_) => bytes.split_at(32),
                    None => (&bytes[..], &bytes[..]),
                };
                Some(vec![Found {
                    id: ours.unwrap_or_else(|| id_from(bytes)),
                    owner: owner.to_vec(),
                    note: String::from_utf8_lossy(note).into_owned(),
                    expires_in: u64::try_from(*left).map_or(LONGEST, Duration::from_millis),
                    certain: ours.is_some(),
                }])
            }
            _ => None,
        }
    }

    fn channel(&self, key: &str) -> Option<String> {
        self.notified_db.map(|db| format!("__keyspace@{db}__:{key}"))
    }

    fn is_notification(&self) -> fn(&[u8]) -> bool {
        |event| matches!(event, b"del" | b"expired" | b"evicted" | b"rename_from")
    }

    fn check(&self, key: &str) -> Result<()> {
        let list = &self.signals.list;
        if list.is_empty() || !key.starts_with(list.as_str()) {
            return Ok(());
        }
        let message = format!(
            "lock \"{key}\" is refused: its key would be that of the list signal_list={list} which \
             wakes the waiters of another lock; use another name"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_ours_if_it_begins_with_32_hexadecimal_digits() {
        let layout =
            Strings { notified_db: None, prefix: String::new(), signals: Signals::default() };
        let ours = "00000000000000000000000000000abc";
        for (value, is_ours) in [
            (ours.to_owned(), true),
            (format!("{ours}{{}}"), true),
            (format!("+{}", &ours[1..]), false),
            (format!("-{}", &ours[1..]), false),
            (ours[1..].to_owned(), false),
        ] {
            let reply = [Value::BulkString(value.clone().into()), Value::Int(1000)];
            let found = layout.read(&Value::Array(reply.into())).expect("a holder");
            assert_eq!((found[0].certain, found[0].id == TicketId(0xabc)), (is_ours, is_ours));
            assert_eq!(found[0].note == value, !is_ours, "{value}");
        }
    }
}
