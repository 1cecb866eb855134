//! A relay between client and server for a connection that holds a lock.
//!
//! The client library exposes neither its socket nor the end of an idle connection, and cannot be
//! given a socket. A relay in this process, on the loopback interface, always reads from the
//! server, so it sees at once when the server closes the connection.

use super::connection::{Owned, connect};
use crate::clock;
use crate::stores::queue::mysql::config::Config;
use crate::stores::queue::sql::Fault;
use mysql_async::{Opts, OptsBuilder};
use rustix::net::sockopt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A connection to the server whose end is noticed.
pub(super) struct Watched {
    pub(super) conn: Owned,
    /// The random number that identifies it to others.
    pub(super) session: u64,
    /// Closed when the connection has ended, as seen on its socket.
    pub(super) end: watch::Receiver<()>,
}

/// A connection with its session configured, through a relay.
pub(super) async fn watched(opts: &Opts, config: &Config) -> Result<Watched, Fault> {
    let broken = |error: io::Error| Fault::Unsent(error.to_string());
    let (listener, end) = relay(config).await.map_err(broken)?;
    let port = listener.local_addr().map_err(broken)?.port();
    let opts = OptsBuilder::from_opts(opts.clone())
        .resolved_ips(Some(vec![Ipv4Addr::LOCALHOST.into()])) // TLS still uses the host's name
        .tcp_port(port);
    let conn = connect(&opts.into(), config).await?;
    // Not before: another user of this machine could listen there, and be told the password.
    drop(listener);
    Ok(Watched { conn: Owned(Some(conn)), session: fastrand::u64(1..1 << 63), end })
}

/// Connects to the server, and waits in the background for the client. Nobody else can listen at
/// the port while the returned listener is open.
async fn relay(config: &Config) -> io::Result<(Arc<TcpListener>, watch::Receiver<()>)> {
    let mut server = TcpStream::connect((config.host.as_str(), config.port)).await?;
    server.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&server, true)?;
    sockopt::set_tcp_keepidle(&server, Duration::from_secs(10))?;
    let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let port = Arc::clone(&listener);
    let (alive, end) = watch::channel(());
    let limit = clock::now().after(config.timeout);
    tokio::spawn(async move {
        let accepted = clock::within(limit, port.accept()).await;
        drop(port); // one client only
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
    Ok((listener, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// It would be given the connection of the client, and by that the password.
    #[tokio::test]
    async fn a_stranger_that_connects_first_cannot_take_the_port() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let config = Config::read(&format!("//{address}/app?scheme=named")).unwrap();
        let (listener, mut end) = relay(&config).await.unwrap();
        let port = listener.local_addr().unwrap();
        let mut stranger = TcpStream::connect(port).await.unwrap();
        stranger.write_all(b"x").await.unwrap();
        // What it says arrives when the relay has accepted it, and accepts nobody else.
        let (mut through, _) = server.accept().await.unwrap();
        assert_eq!(through.read_u8().await.unwrap(), b'x');
        let taken = TcpListener::bind(port).await.map(drop).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop((stranger, through));
        end.changed().await.expect_err("it has ended");
        drop(listener);
        TcpListener::bind(port).await.expect("it is closed");
    }
}
