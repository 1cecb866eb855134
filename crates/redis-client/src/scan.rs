//! Scans for all keys that match a pattern, on one server or on each primary of a cluster.

use crate::fault::{Fault, broken};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, RedisError, Value};

/// Scans each primary of the cluster, as the cluster's client knows them: a node may not say at
/// which host it is.
pub(crate) async fn cluster(
    pattern: &str,
    conn: &mut ClusterConnection,
) -> Result<Vec<String>, Fault> {
    let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let first = conn.route_command(from(0, pattern), primaries).await?;
    let first: Vec<(String, Value)> = redis::from_redis_value(first).map_err(RedisError::from)?;
    let mut keys = Vec::new();
    for (address, reply) in first {
        let (host, port) = address.rsplit_once(':').ok_or_else(|| broken(false))?;
        let (host, port) = (host.to_owned(), port.parse().map_err(|_| broken(false))?);
        let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
        let mut cursor = add(reply.extract_error()?, &mut keys)?;
        while cursor != 0 {
            let reply = conn.route_command(from(cursor, pattern), node.clone()).await?;
            cursor = add(reply, &mut keys)?;
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
