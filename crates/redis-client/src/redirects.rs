//! Commands to a cluster: sends each to the node that serves its slot, and follows redirections.
//!
//! The cluster's client could repeat unanswered commands, but would not say so, and the second
//! answer may differ from the first: a departure then finds nothing to remove. So it repeats
//! nothing. A redirected command was not carried out, and is sent again here.

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo::ByAddress;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

/// The most redirections of one command.
const MOST: u32 = 5;

/// Sends a command, perhaps to several nodes, of which only the last carries it out.
pub(crate) async fn ask(conn: &mut ClusterConnection, command: &Cmd) -> Result<Value, RedisError> {
    let mut answer = conn.req_packed_command(command).await;
    for _ in 0..MOST {
        answer = match &answer {
            // The client now refreshes its slots first.
            Err(error) if is(error, ServerErrorKind::Moved) => {
                conn.req_packed_command(command).await
            }
            Err(error) if is(error, ServerErrorKind::Ask) => match target(error) {
                Some(node) => asking(conn, node, command).await,
                None => break,
            },
            _ => break,
        };
    }
    answer
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == ErrorKind::Server(kind)
}

/// The host and port in a redirection.
fn target(error: &RedisError) -> Option<(String, u16)> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Sends a command to the node that is taking over its slot.
async fn asking(
    conn: &mut ClusterConnection,
    (host, port): (String, u16),
    command: &Cmd,
) -> Result<Value, RedisError> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let answers = conn.route_pipeline(both, 1, 1, ByAddress { host, port }).await?;
    Ok(answers.into_iter().next().unwrap_or(Value::Nil))
}
