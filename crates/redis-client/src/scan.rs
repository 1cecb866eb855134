//! Scans one server for all keys that match a pattern.

use crate::fault::Fault;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

fn from(cursor: u64, pattern: &str) -> Cmd {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
    command
}

/// The keys that match the pattern. The caller limits the time.
pub(crate) async fn scan(
    pattern: &str,
    conn: &mut MultiplexedConnection,
) -> Result<Vec<String>, Fault> {
    let (mut keys, mut cursor) = (Vec::new(), 0_u64);
    loop {
        cursor = add(from(cursor, pattern).query_async(conn).await?, &mut keys)?;
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

/// Adds the keys of a reply, except those that are no text. Returns the next cursor.
fn add(reply: Value, keys: &mut Vec<String>) -> Result<u64, Fault> {
    let (next, found): (u64, Vec<Vec<u8>>) =
        redis::from_redis_value(reply).map_err(RedisError::from)?;
    keys.extend(found.into_iter().filter_map(|key| String::from_utf8(key).ok()));
    Ok(next)
}
