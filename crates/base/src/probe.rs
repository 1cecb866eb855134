//! Detects what kind of server listens at an address where a client fails, for the error message:
//! from its first bytes, and by a probe.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::fmt;
use std::io::ErrorKind::WouldBlock;
use std::pin::pin;
use tokio::net::TcpStream;

/// A kind of server, recognized by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Redis or Valkey.
    Redis,
    /// Redis or Valkey that has no connection left.
    RedisFull,
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL, or a connection pooler in front of it.
    Postgres,
    /// Any server that speaks TLS.
    Tls,
    /// An HTTP server.
    Http,
    /// A server that closed the connection without a reply.
    Closed,
    /// The beginning of any other reply.
    Other(String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Found::Redis | Found::RedisFull => "a Redis or Valkey server",
            Found::MySql => "a MySQL or MariaDB server",
            Found::Postgres => "a PostgreSQL server",
            Found::Tls => "a server that speaks TLS",
            Found::Http => "an HTTP server",
            Found::Closed => "a server that closes connections without a word",
            Found::Other(text) => return write!(f, "a server that answers \"{text}\""),
        })
    }
}

/// Finds the first of these hosts that replies to a plain `PING`. Returns it as `host:port`, with
/// its kind. The caller limits the time.
///
/// # Cancel safety
///
/// Dropping the future closes its connections.
pub async fn first(hosts: &[(String, u16)]) -> Option<(String, Found)> {
    let asked = hosts.iter().map(|(host, port)| async move {
        let answer = ask(host, *port).await?;
        Some((format!("{host}:{port}"), recognise(&answer)))
    });
    let asked = asked.collect::<FuturesUnordered<_>>().filter_map(std::future::ready);
    pin!(asked).next().await
}

/// The first bytes of the reply; empty if the connection was closed.
async fn ask(host: &str, port: u16) -> Option<Vec<u8>> {
    let stream = TcpStream::connect((host, port)).await.ok()?;
    stream.writable().await.ok()?;
    stream.try_write(b"PING\r\n\r\n").ok()?; // so little fits at once
    let mut answer = [0; 64];
    loop {
        stream.readable().await.ok()?;
        match stream.try_read(&mut answer) {
            Ok(size) => return answer.get(..size).map(<[u8]>::to_vec),
            Err(error) if error.kind() == WouldBlock => {}
            Err(_) => return Some(Vec::new()),
        }
    }
}

/// The kind of a server that sends this first, unasked or in reply to an unknown request.
pub fn recognise(answer: &[u8]) -> Found {
    match answer {
        [] => Found::Closed,
        // An alert, or a handshake.
        [0x15 | 0x16, 0x03, ..] => Found::Tls,
        full if full.starts_with(b"-ERR max number of clients") => Found::RedisFull,
        [b'+' | b'-', ..] => Found::Redis,
        // A greeting of version 10, or an error.
        [_, _, 0, 0..=2, 10 | 0xff, ..] => Found::MySql,
        // An error, which is plain text if the server could not even start.
        [b'E', 0, ..] | [b'E', b'F', b'A', b'T', b'A', b'L', b':', ..] => Found::Postgres,
        [b'H', b'T', b'T', b'P', b'/', ..] | [b'<', b'!' | b'h' | b'H', ..] => Found::Http,
        text => {
            let text = String::from_utf8_lossy(text.get(..40).unwrap_or(text)).into_owned();
            Found::Other(text.trim_end().escape_debug().to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart() {
        assert_eq!(recognise(b"+PONG\r\n"), Found::Redis);
        assert_eq!(recognise(b"-NOAUTH Authentication required.\r\n"), Found::Redis);
        assert_eq!(recognise(b"-ERR max number of clients reached\r\n"), Found::RedisFull);
        assert_eq!(recognise(b"J\0\0\0\n8.0.36\0"), Found::MySql);
        assert_eq!(recognise(b"E\0\0\0\xff\x6a\x04Host '10.0.0.1' is not allowed"), Found::MySql);
        assert_eq!(recognise(b"E\0\0\0=SFATAL\0C08P01\0Mclient sent partial"), Found::Postgres);
        assert_eq!(recognise(b"EFATAL:  sorry, too many clients already\n"), Found::Postgres);
        assert_eq!(recognise(b"ERROR\r\n"), Found::Other("ERROR".to_owned()));
        assert_eq!(recognise(b"HTTP/1.1 400 Bad Request\r\n"), Found::Http);
        assert_eq!(recognise(b"<!DOCTYPE HTML>\n<html lang=\"en\">"), Found::Http);
        assert_eq!(recognise(&[0x15, 3, 3, 0, 2, 2, 70]), Found::Tls);
        assert_eq!(recognise(b""), Found::Closed);
        let ssh = Found::Other("SSH-2.0-OpenSSH_9.2\\u{1b}".to_owned());
        assert_eq!(recognise(b"SSH-2.0-OpenSSH_9.2\x1b\r\n"), ssh);
    }
}
