//! Commands to a cluster: sends each to the node that serves its slot, and follows redirections.
//!
//! The cluster's client could repeat unanswered commands, but would not say so, and the second
//! answer may differ from the first: a departure then finds nothing to remove. So it repeats
//! nothing. A redirected command was not carried out, and is sent again here.

use crate::config::Config;
use crate::connect::{self, or_error};
use holdline_base::clock;
use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::MultipleNodeRoutingInfo::MultiSlot;
use redis::cluster_routing::RoutingInfo::{MultiNode, SingleNode};
use redis::cluster_routing::SingleNodeRoutingInfo::ByAddress;
use redis::cluster_routing::{MultiSlotArgPattern, Route, Slot, SlotAddr};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::pin::pin;

/// The most redirections of one command.
const MOST: u32 = 5;

/// Sends a command, perhaps to several nodes, of which only the last carries it out.
pub(crate) async fn ask(
    conn: &mut ClusterConnection,
    config: &Config,
    command: &Cmd,
) -> Result<Value, RedisError> {
    let mut answer = conn.req_packed_command(command).await.and_then(or_error);
    for _ in 0..MOST {
        let Err(error) = &answer else { break };
        let next = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => {
                let node = target(conn, error).await;
                Some(moved(conn, node, command).await)
            }
            ErrorKind::Server(ServerErrorKind::Ask) => match target(conn, error).await {
                Some(node) => asking(conn, config, node, command).await,
                None => None,
            },
            _ => None,
        };
        let Some(next) = next else { break };
        answer = next.and_then(or_error);
    }
    answer
}

/// The host and port in a redirection. Some clusters tell no hosts: then it is that of the node
/// that redirects.
async fn target(conn: &mut ClusterConnection, error: &RedisError) -> Option<(String, u16)> {
    let (node, slot) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = if host.is_empty() { host_of(conn, slot).await? } else { host.to_owned() };
    Some((host, port))
}

/// The host of the node to which the cluster's client sends commands on this slot. The client names
/// a node only in the reply to a request for several.
async fn host_of(conn: &mut ClusterConnection, slot: u16) -> Option<String> {
    let route = Route::with_slot(Slot::new(slot)?, SlotAddr::Master);
    let to = MultiSlot((vec![(route, Vec::new())], MultiSlotArgPattern::KeysOnly));
    let answer = conn.route_command(redis::cmd("PING"), MultiNode((to, None))).await;
    let Ok(Value::Map(nodes)) = answer else { return None };
    let (address, _) = nodes.into_iter().next()?;
    let address: String = redis::from_redis_value(address).ok()?;
    address.rsplit_once(':').map(|(host, _)| host.to_owned())
}

/// Whether the cluster's client has no connection to a node, and so has sent it nothing.
fn unconnected(error: &RedisError) -> bool {
    error.kind() == ErrorKind::ClusterConnectionNotFound
}

/// Sends a command to the node that is said to serve its slot. What the client knows of the slots
/// may come from another node, which has not heard of the move.
async fn moved(
    conn: &mut ClusterConnection,
    node: Option<(String, u16)>,
    command: &Cmd,
) -> Result<Value, RedisError> {
    if let Some((host, port)) = node {
        let to = SingleNode(ByAddress { host, port });
        match conn.route_command(command.clone(), to).await {
            Err(error) if unconnected(&error) => {}
            answer => return answer,
        }
    }
    // The client refreshes its slots first.
    conn.req_packed_command(command).await
}

/// Sends a command to the node that is taking over its slot; `None` if that cannot be reached.
async fn asking(
    conn: &mut ClusterConnection,
    config: &Config,
    (host, port): (String, u16),
    command: &Cmd,
) -> Option<Result<Value, RedisError>> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let to = ByAddress { host: host.clone(), port };
    let answers = match conn.route_pipeline(both.clone(), 1, 1, to).await {
        // It may be new: the client knows only nodes that serve slots.
        Err(error) if unconnected(&error) => {
            let connecting = pin!(connect::node(config, &host, port));
            let node = clock::timeout(config.timeout / 4, connecting).await;
            node?.ok()?.req_packed_commands(&both, 1, 1).await
        }
        answers => answers,
    };
    Some(answers.map(|answers| answers.into_iter().next().unwrap_or(Value::Nil)))
}
