//! Detects what answers in place of a ZooKeeper server, when no session can be opened there.
//!
//! ZooKeeper does not answer what it does not understand, and neither do others. So each kind is
//! asked in its own protocol, on connections of their own.

use crate::config::Config;
use crate::error::UnexpectedServer;
use futures_util::future::Either;
use holdline_base::clock;
use holdline_base::probe::{self, Found};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The time limit of an answer.
const LIMIT: Duration = Duration::from_secs(1);

const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
/// One of ZooKeeper's four-letter words: the server always answers, if only that the word is not on
/// its list.
const WORD: &[u8] = b"srvr";
/// The beginning of a TLS connection, with three cipher suites: a TLS server answers with its own
/// beginning, or with an alert.
const HELLO: &[u8] =
    b"\x16\x03\x01\x00\x33\x01\x00\x00\x2f\x03\x03holdline asks: is this TLS here?\
                       \x00\x00\x06\xc0\x2f\xc0\x30\x00\x9c\x01\x00\x00\x00";

/// Reports what answers there, if it differs from the configuration.
pub(crate) async fn identify(config: &Config, host: &str) -> Option<UnexpectedServer> {
    let (http, other) = if config.servers.tls { (HTTP, WORD) } else { (HTTP, HELLO) };
    let http = async { verdict(config, &says(host, http, 7).await, &[]) };
    let other = async { verdict(config, &[], &says(host, other, 64).await) };
    let (http, other) = (std::pin::pin!(http), std::pin::pin!(other));
    // A server that answers one probe may wait for more of the other.
    match futures_util::future::select(http, other).await {
        Either::Left((None, other)) => other.await,
        Either::Right((None, http)) => http.await,
        Either::Left((found, _)) | Either::Right((found, _)) => found,
    }
}

/// What the answers show.
fn verdict(config: &Config, http: &[u8], other: &[u8]) -> Option<UnexpectedServer> {
    let speaks_tls = |answer| probe::recognise(answer) == Found::Tls;
    if speaks_tls(http) || speaks_tls(other) {
        return (!config.servers.tls).then_some(UnexpectedServer::Other(Found::Tls));
    }
    if config.servers.tls && is_zookeeper(other) {
        return Some(UnexpectedServer::Plain);
    }
    match probe::recognise(http) {
        Found::Closed => None, // it may be one that is on its way up
        found => Some(UnexpectedServer::Other(found)),
    }
}

fn is_zookeeper(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    ["Zookeeper version", "ZooKeeper instance", "is not executed because"]
        .iter()
        .any(|words| answer.contains(words))
}

/// The first bytes of the answer, if any.
async fn says(host: &str, question: &[u8], enough: usize) -> Vec<u8> {
    let mut answer = Vec::new();
    let ask = async {
        let mut socket = TcpStream::connect(host).await.ok()?;
        socket.write_all(question).await.ok()?;
        while answer.len() < enough && socket.read_buf(&mut answer).await.ok()? > 0 {}
        Some(())
    };
    let _ = clock::timeout(LIMIT, ask).await;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_has_the_lengths_that_it_tells() {
        let long = |bytes: &[u8]| bytes.iter().fold(0, |long, byte| long << 8 | usize::from(*byte));
        assert_eq!(long(&HELLO[3..5]), HELLO.len() - 5);
        assert_eq!(long(&HELLO[6..9]), HELLO.len() - 9);
    }

    #[test]
    fn servers_that_refuse_a_word_are_known_by_that() {
        for answer in [
            "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on",
            "This ZooKeeper instance is not currently serving requests\n",
            "srvr is not executed because it is not in the whitelist.\n",
        ] {
            assert!(is_zookeeper(answer.as_bytes()), "{answer}");
        }
        assert!(!is_zookeeper(b"-ERR unknown command"));
    }
}
