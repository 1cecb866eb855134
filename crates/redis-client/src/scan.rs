//! The pages of a scan of one server for all keys that match a pattern.

use crate::fault::Fault;
use redis::{Cmd, RedisError, Value};

/// The request of the page at this cursor.
pub(crate) fn from(cursor: u64, pattern: &str) -> Cmd {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
    command
}

/// Adds the keys of a reply, except those that are no text. Returns the next cursor.
pub(crate) fn add(reply: Value, keys: &mut Vec<String>) -> Result<u64, Fault> {
    let (next, found): (u64, Vec<Vec<u8>>) =
        redis::from_redis_value(reply).map_err(RedisError::from)?;
    keys.extend(found.into_iter().filter_map(|key| String::from_utf8(key).ok()));
    Ok(next)
}
