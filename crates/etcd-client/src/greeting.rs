//! The first bytes from a server, which show whether it speaks HTTP/2 at all.
//!
//! An HTTP/2 server first sends a settings frame. Anything else is reported by its name, and not as
//! a broken connection.

use holdline_base::net::Socket;
use holdline_base::probe::{self, Found};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The protocol of a server that does not speak ours; empty if it does.
pub(crate) type Wrong = Arc<OnceLock<&'static str>>;

/// The name for a server that closes the connection before it has sent anything.
pub(crate) const HUNG_UP: &str =
    "it hung up without a word; perhaps it wants TLS (etcds:), or is no etcd";

/// A socket whose first bytes are inspected.
pub(crate) struct Greeted {
    socket: Box<dyn Socket>,
    head: Vec<u8>,
    wrong: Wrong,
}

/// The head of a frame: its length, its type, and the next byte. As many bytes identify other
/// protocols.
const HEAD: usize = 5;

impl Greeted {
    pub(crate) fn new(socket: Box<dyn Socket>, wrong: &Wrong) -> Self {
        Greeted { socket, head: Vec::new(), wrong: Arc::clone(wrong) }
    }

    /// Records that the connection is closed.
    fn end(&self) {
        if self.head.is_empty() {
            let _ = self.wrong.set(HUNG_UP);
        }
    }

    /// Inspects the bytes read. Fails once they are known not to be our protocol.
    fn greet(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.head.len() == HEAD {
            return Ok(());
        }
        let room = HEAD - self.head.len();
        self.head.extend(bytes.iter().take(room));
        match name(&self.head) {
            None => Ok(()),
            Some(wrong) => {
                let _ = self.wrong.set(wrong);
                Err(io::Error::other(wrong))
            }
        }
    }
}

/// The protocol that begins with these bytes; `None` if it is HTTP/2, or they are too few to tell.
fn name(head: &[u8]) -> Option<&'static str> {
    // The type of a settings frame is 4, and our peers' are far shorter than 64 KB.
    if matches!(head, [] | [0] | [0, _] | [0, _, _] | [0, _, _, 4, ..]) {
        return None;
    }
    match probe::recognise(head) {
        Found::Tls => Some("it speaks TLS; write etcds:"),
        Found::Http => Some("it speaks HTTP/1: either it is no etcd, or it wants TLS (etcds:)"),
        Found::Redis | Found::RedisFull => Some("it is a Redis or Valkey server"),
        Found::MySql => Some("it is a MySQL or MariaDB server"),
        Found::Postgres => Some("it is a PostgreSQL server"),
        Found::Other(_) | Found::Closed if head.len() < HEAD => None,
        Found::Other(_) | Found::Closed => Some("it speaks another protocol than etcd"),
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = ready!(Pin::new(&mut self.socket).poll_read(cx, buffer));
        let read = buffer.filled().get(before..).unwrap_or_default();
        if outcome.is_err() || read.is_empty() {
            self.end();
        }
        Poll::Ready(outcome.and_then(|()| self.greet(read)))
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes));
        if outcome.is_err() {
            self.end();
        }
        Poll::Ready(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, bytes));
        if outcome.is_err() {
            self.end();
        }
        Poll::Ready(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn others_are_known_by_their_first_bytes() {
        for good in [&[][..], &[0], &[0, 0], &[0, 0, 6], &[0, 0, 6, 4], &[0, 0, 6, 4, 0]] {
            assert_eq!(name(good), None, "{good:?}");
        }
        for (bytes, word) in [
            (&b"HTTP/"[..], "HTTP/1"),
            (&[0x15, 3, 3, 0], "TLS"),
            (b"-ERR", "Redis"),
            (&[0x4a, 0, 0, 0, 10], "MySQL"),
            (&[b'E', 0, 0, 0, b'='], "PostgreSQL"),
            (b"SSH-2", "another protocol"),
            (&[0, 0, 0, 7, 0], "another protocol"),
        ] {
            assert!(name(bytes).is_some_and(|said| said.contains(word)), "{bytes:?}");
        }
        assert_eq!(name(b"HT"), None);
    }
}
