//! The transport: one connection to one server, with its requests, its answers, and its liveness.
//!
//! Requests are collected and sent in one write. The socket does not delay them until earlier ones
//! are answered (Nagle's algorithm is off).

use crate::error::Error;
use crate::jute::{Reader, Writer};
use holdline_base::clock;
use holdline_base::net::Socket;
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;

/// The longest answer. The servers' default limit is 1 MiB, but lists may be longer if configured.
const LONGEST: usize = 16 << 20;
/// The most unanswered requests; later ones wait.
const UNANSWERED: usize = 4096;
/// The most bytes collected for the socket; later requests wait.
const GATHERED: usize = 256 << 10;
/// The size that buffers shrink to after they had to grow.
const KEPT: usize = 256 << 10;
/// The number of bytes read at once.
const CHUNK: usize = 16 << 10;

/// The types of request, as the protocol numbers them.
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN_2: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE_2: i32 = 15;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const GET_EPHEMERALS: i32 = 103;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const CLOSE: i32 = -11;
}

/// The numbers of messages that are not answered in order.
pub(crate) mod xid {
    pub(crate) const EVENT: i32 = -1;
    pub(crate) const PING: i32 = -2;
    pub(crate) const AUTH: i32 = -4;
    pub(crate) const SET_WATCHES: i32 = -8;
}

/// The header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) xid: i32,
    /// The last transaction that the server had seen.
    pub(crate) zxid: i64,
    pub(crate) code: i32,
}

impl Header {
    pub(crate) const LEN: usize = 16;

    pub(crate) fn read(frame: &[u8]) -> Result<(Header, Reader<'_>), Error> {
        let mut reader = Reader(frame);
        let header = Header { xid: reader.int()?, zxid: reader.long()?, code: reader.int()? };
        Ok((header, reader))
    }
}

/// A connection. `T` is the state of a request until it is answered.
pub(crate) struct Transport<T> {
    stream: Stream,
    /// The requests without an answer, in order.
    sent: VecDeque<(i32, T)>,
}

/// The bytes of a connection, and the times by which its liveness is judged.
struct Stream {
    socket: Box<dyn Socket>,
    out: Vec<u8>,
    /// The length of the part of `out` already written.
    written: usize,
    input: Vec<u8>,
    /// The length of the part of `input` already consumed.
    taken: usize,
    last: i32,
    /// Whether a ping is unanswered.
    pinged: bool,
    spoke: Time,
    heard: Time,
    /// When a whole frame was last received.
    progress: Time,
    /// Since when some request has been unanswered.
    asked: Time,
}

impl<T> Transport<T> {
    pub(crate) fn new(socket: Box<dyn Socket>) -> Self {
        let now = clock::now();
        let stream = Stream {
            socket,
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            taken: 0,
            last: 0,
            pinged: false,
            spoke: now,
            heard: now,
            progress: now,
            asked: now,
        };
        Transport { stream, sent: VecDeque::new() }
    }

    /// The same connection for another type of request state, when all requests are answered.
    pub(crate) fn turn<U>(self) -> Transport<U> {
        Transport { stream: self.stream, sent: VecDeque::new() }
    }

    /// Adds bytes to be sent, preceded by their length.
    pub(crate) fn put(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        self.stream.out.extend_from_slice(&len.to_be_bytes());
        for part in parts {
            self.stream.out.extend_from_slice(part);
        }
        self.stream.spoke = clock::now();
    }

    /// Adds a request that is not answered in order.
    pub(crate) fn say(&mut self, xid: i32, op: i32, body: &[u8]) {
        self.put(&[&Writer::default().int(xid).int(op).0, body]);
    }

    /// Adds a request that is answered in order.
    pub(crate) fn ask(&mut self, op: i32, body: &[u8], kept: T) {
        self.stream.last = self.stream.last.checked_add(1).unwrap_or(1);
        self.say(self.stream.last, op, body);
        if !self.waits() {
            self.stream.asked = self.stream.spoke;
        }
        self.sent.push_back((self.stream.last, kept));
    }

    /// The state of the request that this answers.
    pub(crate) fn answered(&mut self, xid: i32) -> Result<T, Error> {
        match self.sent.pop_front() {
            Some((sent, kept)) if sent == xid => Ok(kept),
            _ => Err(Error::Garbled),
        }
    }

    /// The state of a request that the server does not know. Servers before 3.6 say so ahead of the
    /// answers to earlier requests, and then close the connection.
    pub(crate) fn refused(&mut self, xid: i32) -> Result<T, Error> {
        let at = self.sent.iter().position(|(sent, _)| *sent == xid).ok_or(Error::Garbled)?;
        self.sent.remove(at).map(|(_, kept)| kept).ok_or(Error::Garbled)
    }

    /// Whether another request may be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.sent.len() < UNANSWERED && self.stream.out.len() - self.stream.written < GATHERED
    }

    /// Whether all requests are answered.
    pub(crate) fn is_done(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether any request is unanswered.
    fn waits(&self) -> bool {
        self.stream.pinged || !self.sent.is_empty()
    }

    pub(crate) fn ponged(&mut self) {
        self.stream.pinged = false;
    }

    /// When anything was last received.
    pub(crate) fn heard(&self) -> Time {
        self.stream.heard
    }

    /// When the connection counts as dead, unless an expected answer comes before. Partial data is
    /// a sign of life only for a limited time: an invalid length would swallow everything that
    /// comes.
    fn end(&self, silence: Duration) -> Time {
        let heard = self.stream.heard.max(self.stream.asked).after(silence);
        heard.min(self.stream.progress.max(self.stream.asked).after(silence * 4))
    }

    /// When to check the connection's liveness. A server that has sent nothing for `silence`,
    /// though a request is unanswered, is dead.
    pub(crate) fn due(&self, silence: Duration) -> Time {
        let ping = self.stream.spoke.after(silence * 3 / 8);
        let end = self.end(silence);
        match (self.stream.pinged, self.waits()) {
            (true, _) => end,
            (false, true) => ping.min(end),
            (false, false) => ping,
        }
    }

    /// Sends a ping when it is due. False if the server is dead.
    pub(crate) fn tick(&mut self, silence: Duration) -> bool {
        let now = clock::now();
        if self.waits() && now >= self.end(silence) {
            return false;
        }
        if !self.stream.pinged && now >= self.stream.spoke.after(silence * 3 / 8) {
            self.say(xid::PING, op::PING, &[]);
            if !self.waits() {
                self.stream.asked = now;
            }
            self.stream.pinged = true;
        }
        true
    }

    /// Writes the collected bytes as far as possible. The task of the context must continue.
    pub(crate) fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while self.stream.written < self.stream.out.len() {
            let rest = &self.stream.out[self.stream.written..];
            match Pin::new(&mut *self.stream.socket).poll_write(cx, rest) {
                Poll::Ready(Ok(some @ 1..)) => self.stream.written += some,
                Poll::Ready(_) => return Err(Error::ConnectionLoss),
                Poll::Pending => return Ok(()),
            }
            if self.stream.written == self.stream.out.len() {
                self.stream.out.clear();
                self.stream.out.shrink_to(KEPT);
                self.stream.written = 0;
            }
        }
        match Pin::new(&mut *self.stream.socket).poll_flush(cx) {
            Poll::Ready(Err(_)) => Err(Error::ConnectionLoss),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// The next frame from the server.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, Error>> {
        loop {
            if let Some(frame) = self.frame()? {
                return Poll::Ready(Ok(frame));
            }
            let mut space = [0; CHUNK];
            let mut space = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut *self.stream.socket).poll_read(cx, &mut space));
            if read.is_err() || space.filled().is_empty() {
                return Poll::Ready(Err(Error::ConnectionLoss));
            }
            self.stream.input.extend_from_slice(space.filled());
            self.stream.heard = clock::now();
        }
    }

    fn frame(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut reader = Reader(&self.stream.input[self.stream.taken..]);
        let Ok(len) = reader.int() else { return Ok(self.more()) };
        let len = usize::try_from(len).ok().filter(|len| *len <= LONGEST).ok_or(Error::Garbled)?;
        let Some(frame) = reader.0.get(..len) else { return Ok(self.more()) };
        let frame = frame.to_vec();
        self.stream.taken += 4 + len;
        self.stream.progress = self.stream.heard;
        Ok(Some(frame))
    }

    /// Makes room for the rest of a frame.
    fn more<F>(&mut self) -> Option<F> {
        self.stream.input.drain(..self.stream.taken);
        self.stream.taken = 0;
        if self.stream.input.len() < KEPT / 2 {
            self.stream.input.shrink_to(KEPT);
        }
        None
    }

    /// The requests that will not be answered.
    pub(crate) fn unanswered(self) -> impl Iterator<Item = T> {
        self.sent.into_iter().map(|(_, kept)| kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn requests_go_out_together_and_answers_come_in_pieces() {
        let (near, mut far) = duplex(1 << 10);
        let mut transport = Transport::new(Box::new(near));
        transport.ask(op::DELETE, b"ab", 'a');
        transport.ask(op::SYNC, b"", 'b');
        poll_fn(|cx| Poll::Ready(transport.write(cx))).await.expect("there is room");
        let mut bytes = [0; 26];
        far.read_exact(&mut bytes).await.expect("it is there");
        assert_eq!(&bytes[..14], b"\0\0\0\x0a\0\0\0\x01\0\0\0\x02ab");
        assert_eq!(&bytes[14..], b"\0\0\0\x08\0\0\0\x02\0\0\0\x09");
        let answer = Writer::default().int(1).long(5).int(-101).0;
        let frame = Writer::default().bytes(&answer).bytes(b"next").0;
        let cut_up = async {
            for byte in &frame {
                far.write_all(&[*byte]).await.expect("there is room");
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            let first = poll_fn(|cx| transport.poll_frame(cx)).await.expect("good");
            (first, poll_fn(|cx| transport.poll_frame(cx)).await.expect("good"))
        };
        let ((first, second), ()) = tokio::join!(read, cut_up);
        let (header, rest) = Header::read(&first).expect("good");
        assert_eq!(header, Header { xid: 1, zxid: 5, code: -101 });
        assert!(rest.0.is_empty() && second == b"next");
        assert_eq!(transport.answered(1), Ok('a'));
        assert_eq!(transport.answered(1), Err(Error::Garbled), "not the next one's turn");
        drop(far);
        assert_eq!(poll_fn(|cx| transport.poll_frame(cx)).await, Err(Error::ConnectionLoss));
    }

    #[tokio::test]
    async fn hostile_frames_end_the_connection() {
        for bad in [&b"\xff\xff\xff\xff"[..], b"\x7f\xff\xff\xff", b"\x01\0\0\x01"] {
            let (near, mut far) = duplex(1 << 10);
            let mut transport = Transport::<()>::new(Box::new(near));
            far.write_all(bad).await.expect("there is room");
            let frame = poll_fn(|cx| transport.poll_frame(cx)).await;
            assert_eq!(frame, Err(Error::Garbled), "{bad:?}");
        }
        for len in 0..Header::LEN {
            assert_eq!(Header::read(&[0; 16][..len]).err(), Some(Error::Garbled));
        }
    }

    #[tokio::test]
    async fn a_silent_server_is_asked_and_then_given_up() {
        let (near, _far) = duplex(1 << 10);
        let mut transport = Transport::<()>::new(Box::new(near));
        let silence = Duration::from_millis(80);
        let until = |due: Time| clock::pause(clock::now().until(due));
        assert!(transport.tick(silence) && !transport.waits(), "it is too early to ask");
        until(transport.due(silence)).await;
        assert!(transport.tick(silence) && transport.waits());
        until(transport.due(silence)).await;
        assert!(!transport.tick(silence));
        transport.ponged();
        assert!(transport.tick(silence), "who was not asked need not answer");
    }
}
