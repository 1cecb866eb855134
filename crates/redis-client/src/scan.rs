//! Scans for all keys that match a pattern, on one server or on each primary of a cluster.

use crate::fault::Fault;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, RedisError, Value};

/// Scans each primary that the cluster lists.
pub(crate) async fn cluster(
    pattern: &str,
    conn: &mut ClusterConnection,
) -> Result<Vec<String>, Fault> {
    let slots: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(conn).await?;
    let mut primaries: Vec<(String, u16)> = slots
        .iter()
        .filter_map(|range| match range.get(2) {
            Some(Value::Array(node)) => {
                redis::from_redis_value(Value::Array(node.get(..2)?.to_vec())).ok()
            }
            _ => None,
        })
        .collect();
    primaries.sort();
    primaries.dedup();
    let mut keys = Vec::new();
    for (host, port) in primaries {
        let mut cursor = 0;
        loop {
            let node = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port };
            let reply =
                conn.route_command(from(cursor, pattern), RoutingInfo::SingleNode(node)).await?;
            cursor = add(reply, &mut keys)?;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(keys)
}

fn from(cursor: u64, pattern: &str) -> Cmd {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
    command
}

/// Scans one server.
pub(crate) async fn one(
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
