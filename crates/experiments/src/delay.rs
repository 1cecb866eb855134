//! A TCP proxy that adds a delay in each direction to the connections of a server, without limiting
//! their bandwidth.

use crate::error::{Error, Result};
use crate::timer;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

/// The name of a proxy's thread, whose CPU time is not the client's.
pub(crate) const THREAD: &str = "bench-delay";
/// The maximum size of a read, and of reads on the way in one direction of a connection.
const READ: usize = 16 * 1024;
const READS: usize = 256;

/// A proxy to one server, on a thread of its own. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct DelayProxy {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl DelayProxy {
    /// Opens a local port that leads to `server`, half of `round_trip` away in each direction.
    pub(crate) fn to(server: &str, round_trip: Duration) -> Result<Self> {
        let unknown = || Error::usage(format!("{server} has no address to put a delay before"));
        let server = server.to_socket_addrs().map_err(|_| unknown())?.next();
        let server = server.ok_or_else(unknown)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(THREAD)
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let one_way = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(0);
        runtime.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            loop {
                // Out of file descriptors, for example: try again later.
                let Ok((client, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                tokio::spawn(serve(client, server, one_way));
            }
        });
        Ok(DelayProxy { address, runtime: Some(runtime) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(client: TcpStream, server: SocketAddr, one_way: u64) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    // When one direction ends, the other is closed.
    tokio::select! {
        () = pass(client_reads, server_writes, one_way) => {}
        () = pass(server_reads, client_writes, one_way) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, late: u64) {
    let (send, mut queue) = mpsc::channel::<(u64, Vec<u8>)>(READS);
    let reads = async move {
        let mut buffer = vec![0; READ];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if send.send((timer::now() + late, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let writes = async move {
        while let Some((due, bytes)) = queue.recv().await {
            timer::until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reads, writes);
}

/// The addresses in a URL: where each begins and ends. A file or memory has none.
fn addresses(url: &str) -> Vec<std::ops::Range<usize>> {
    let Some(slashes) = url.find("://") else { return Vec::new() };
    let rest = slashes + 3;
    let end = url[rest..].find(['/', '?']).map_or(url.len(), |at| rest + at);
    let start = url[rest..end].rfind('@').map_or(rest, |at| rest + at + 1);
    let mut found = Vec::new();
    let mut at = start;
    for host in url[start..end].split(',') {
        found.push(at..at + host.len());
        at += host.len() + 1;
    }
    found
}

/// The hosts and ports of a URL.
pub(crate) fn hosts(url: &str) -> Vec<String> {
    let default = match url.split("://").next().unwrap_or("") {
        "etcd" | "etcds" => 2379,
        "zookeeper" | "zk" | "zks" => 2181,
        "postgres" | "postgresql" => 5432,
        "mysql" | "mariadb" => 3306,
        _ => 6379,
    };
    let with_port = |host: &str| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port { host.to_owned() } else { format!("{host}:{default}") }
    };
    let nodes = url.strip_prefix("quorum:").map_or(vec![url], |nodes| nodes.split(',').collect());
    nodes.iter().flat_map(|url| addresses(url).into_iter().map(|at| with_port(&url[at]))).collect()
}

/// The stores whose connections can be delayed.
const KNOWN: [&str; 8] =
    ["redis", "etcd", "zookeeper", "zk", "postgres", "postgresql", "mysql", "mariadb"];

/// Puts a proxy in front of every server of a URL. Stores that discover further servers would
/// bypass it, and so would TLS with names: they are refused.
pub(crate) fn put_before(url: &str, round_trip: Duration) -> Result<(String, Vec<DelayProxy>)> {
    if let Some(nodes) = url.strip_prefix("quorum:") {
        let (mut urls, mut proxies) = (Vec::new(), Vec::new());
        for node in nodes.split(',') {
            let (url, more) = put_before(node, round_trip)?;
            urls.push(url);
            proxies.extend(more);
        }
        return Ok((format!("quorum:{}", urls.join(",")), proxies));
    }
    let scheme = url.split(':').next().unwrap_or("");
    if !KNOWN.contains(&scheme) {
        return Err(Error::usage(format!(
            "no link with a delay can be put before {scheme}: it needs a TCP connection without \
             TLS to servers that the URL names"
        )));
    }
    let (mut delayed, mut proxies) = (url.to_owned(), Vec::new());
    for (at, host) in addresses(url).into_iter().zip(hosts(url)).rev() {
        let proxy = DelayProxy::to(&host, round_trip)?;
        delayed.replace_range(at, &proxy.address().to_string());
        proxies.push(proxy);
    }
    Ok((delayed, proxies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_of_a_url_is_found() {
        assert_eq!(hosts("redis://me:p@h:1/3?idle=5m"), ["h:1"]);
        assert_eq!(hosts("etcd://a,b:2/prefix"), ["a:2379", "b:2"]);
        assert_eq!(hosts("quorum:redis://a:1,redis://b:2"), ["a:1", "b:2"]);
        assert_eq!(hosts("postgres://me@h/db?install=yes"), ["h:5432"]);
        assert_eq!(hosts("mysql://me:p@h:1/db"), ["h:1"]);
        assert!(hosts("sqlite:/a/b").is_empty() && hosts("memory:").is_empty());
    }

    #[test]
    fn servers_move_away_and_the_rest_stays() {
        let url = "zk://127.0.0.1:1,127.0.0.1:2/path";
        let (delayed, proxies) = put_before(url, Duration::from_millis(1)).unwrap();
        let (first, second) = (proxies[1].address(), proxies[0].address());
        assert_eq!(delayed, format!("zk://{first},{second}/path"));
        assert!(put_before("sqlite:/x", Duration::from_millis(1)).is_err());
        assert!(put_before("rediss://h:1", Duration::from_millis(1)).is_err());
    }

    #[test]
    fn a_round_trip_takes_as_much_longer_as_was_asked_for() {
        use std::io::{Read, Write};
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&byte).unwrap();
        });
        let proxy = DelayProxy::to(&address, Duration::from_millis(30)).unwrap();
        let mut stream = std::net::TcpStream::connect(proxy.address()).unwrap();
        let start = std::time::Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
        echo.join().unwrap();
    }
}
