//! A relay between the client and the server of a connection that holds a lock.
//!
//! The client library shows neither its socket nor that an idle connection has ended, and cannot be
//! given a socket. A relay in this process, on the loopback interface, reads from the server at all
//! times, so it sees at once that the server has closed the connection.

use super::connection::{Owned, connect};
use crate::clock;
use crate::stores::queue::mysql::config::Config;
use crate::stores::queue::sql::Fault;
use mysql_async::{Opts, OptsBuilder};
use rustix::net::sockopt;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A connection to the server, and its end.
pub(super) struct Watched {
    pub(super) conn: Owned,
    /// The random number by which others know it.
    pub(super) session: u64,
    pub(super) end: End,
}

/// The end of a connection, as the socket tells it.
#[derive(Clone)]
pub(super) struct End(watch::Receiver<()>);

impl End {
    /// Waits for it.
    pub(super) async fn wait(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// A connection whose session is set, by way of a relay.
pub(super) async fn watched(opts: &Opts, config: &Config) -> Result<Watched, Fault> {
    let broken = |error: io::Error| Fault::Unsent(error.to_string());
    let (port, end) = relay(config).await.map_err(broken)?;
    let opts = OptsBuilder::from_opts(opts.clone())
        .resolved_ips(Some(vec![Ipv4Addr::LOCALHOST.into()])) // the host stays TLS's
        .tcp_port(port);
    let conn = connect(&opts.into(), config).await?;
    Ok(Watched { conn: Owned(Some(conn)), session: fastrand::u64(1..1 << 63), end })
}

/// Connects to the server, and waits in the background for the client at the port that it answers.
async fn relay(config: &Config) -> io::Result<(u16, End)> {
    let mut server = TcpStream::connect((config.host.as_str(), config.port)).await?;
    server.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&server, true)?;
    sockopt::set_tcp_keepidle(&server, Duration::from_secs(10))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let (alive, end) = watch::channel(());
    let limit = clock::now().after(config.timeout);
    tokio::spawn(async move {
        let accepted = clock::within(limit, listener.accept()).await;
        drop(listener); // for one client only
        if let Some(Ok((mut client, _))) = accepted
            && client.set_nodelay(true).is_ok()
        {
            let (mut from_server, mut to_server) = server.split();
            let (mut from_client, mut to_client) = client.split();
            tokio::select! {
                _ = copy(&mut from_server, &mut to_client) => {}
                _ = copy(&mut from_client, &mut to_server) => {}
            }
        }
        drop(alive);
    });
    Ok((port, End(end)))
}
