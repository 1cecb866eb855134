//! The probe of an address that does not behave like a Redis server, when a store cannot be opened:
//! so that the error can say what listens there.

use crate::config::{Config, Kind};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdline_base::{Error, ErrorKind};
use std::io::ErrorKind::WouldBlock;
use std::pin::pin;
use tokio::net::TcpStream;

/// The kinds of reply to a plain `PING`.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Redis,
    Tls,
    Http,
    /// It closed the connection without a reply.
    Closed,
    /// The beginning of any other reply.
    Other(String),
}

/// The error that says what listens at the first host that replies. None if there is none, or if it
/// is a Redis server. The caller limits the time.
///
/// # Cancel safety
///
/// Dropping the future closes its connections.
pub async fn why(config: &Config) -> Option<Error> {
    if matches!(config.kind, Kind::Unix(_)) {
        return None;
    }
    let asked = config.hosts.iter().map(|(host, port)| async move {
        let answer = ask(host, *port).await?;
        Some((format!("{host}:{port}"), recognise(&answer)))
    });
    let asked = asked.collect::<FuturesUnordered<_>>().filter_map(std::future::ready);
    let (host, found) = pin!(asked).next().await?;
    let address = config.address();
    // A server that is just going down hangs up as well, and so does a proxy without its server.
    let kind = if found == Found::Closed { ErrorKind::Unavailable } else { ErrorKind::Invalid };
    let problem = match (found, config.tls) {
        (Found::Redis, true) => format!("{host} does not speak TLS; use a URL with redis"),
        (Found::Tls, false) => format!("{host} speaks TLS; use a URL with rediss"),
        (Found::Closed, false) => format!(
            "{host} closes connections without a word; if it speaks TLS, use a URL with rediss; \
             else check that it is a Redis or Valkey server"
        ),
        (Found::Http, _) => format!("{host} is an HTTP server, not Redis or Valkey"),
        (Found::Other(text), _) => {
            format!("{host} is no Redis or Valkey server: it answers \"{text}\"")
        }
        (Found::Redis, false) | (Found::Tls | Found::Closed, true) => return None,
    };
    Some(Error::new(kind, format!("{address} cannot be used: {problem}")))
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

fn recognise(answer: &[u8]) -> Found {
    match answer {
        [] => Found::Closed,
        // An alert, or a handshake.
        [0x15 | 0x16, 0x03, ..] => Found::Tls,
        [b'+' | b'-', ..] => Found::Redis,
        [b'H', b'T', b'T', b'P', b'/', ..] => Found::Http,
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
        assert_eq!(recognise(b"HTTP/1.1 400 Bad Request\r\n"), Found::Http);
        assert_eq!(recognise(&[0x15, 3, 3, 0, 2, 2, 70]), Found::Tls);
        assert_eq!(recognise(b""), Found::Closed);
        let ssh = Found::Other("SSH-2.0-OpenSSH_9.2\\u{1b}".to_owned());
        assert_eq!(recognise(b"SSH-2.0-OpenSSH_9.2\x1b\r\n"), ssh);
    }
}
