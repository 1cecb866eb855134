//! Whether anybody listens where the servers should be.
//!
//! Of a connection that did not come about the client says only that there is none. Who is silent,
//! or closes the connection, may be on its way up, and is worth some patience; where everybody
//! refuses there is nobody, and whoever asks is told so at once.

use futures_util::future::join_all;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::TcpStream;

/// Who has not refused by then does not refuse.
const LIMIT: Duration = Duration::from_millis(500);

/// Whether nobody listens at any of these, `host:port` each.
pub(super) async fn nobody(hosts: &[String]) -> bool {
    join_all(hosts.iter().map(|host| refuses(host))).await.into_iter().all(|refuses| refuses)
}

async fn refuses(host: &str) -> bool {
    let tried = tokio::time::timeout(LIMIT, TcpStream::connect(host)).await;
    matches!(tried, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}
