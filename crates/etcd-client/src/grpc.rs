//! The parts of gRPC that are used here: the framing of messages, and the status of an answer.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use http::response::Parts;
use prost::Message;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// Whether the request never left this machine.
    pub(crate) unsent: bool,
}

/// The status codes that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
    /// A server other than etcd answers.
    Foreign,
    /// The connection was accepted, but the TLS handshake was not answered.
    Silent,
    Other,
}

impl Code {
    fn read(text: &str) -> Code {
        match text {
            "1" => Code::Cancelled,
            "3" => Code::InvalidArgument,
            "4" => Code::DeadlineExceeded,
            "7" => Code::PermissionDenied,
            "8" => Code::ResourceExhausted,
            "9" => Code::FailedPrecondition,
            "10" => Code::Aborted,
            "12" => Code::Unimplemented,
            "13" => Code::Internal,
            "14" => Code::Unavailable,
            "16" => Code::Unauthenticated,
            "5" | "6" | "11" | "15" => Code::Other,
            // 2, or no code at all: the server may have carried the request out.
            _ => Code::Unknown,
        }
    }
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Status { code, message: message.into(), unsent: false }
    }

    pub(crate) fn unavailable(message: impl std::fmt::Display) -> Self {
        Status::new(Code::Unavailable, message.to_string())
    }

    /// The status of a request that was not sent because there is no connection.
    pub(crate) fn unsent(message: impl std::fmt::Display) -> Self {
        Status { unsent: true, ..Status::unavailable(message) }
    }

    /// The status for a server other than etcd, met before anything was sent.
    pub(crate) fn foreign(what: impl std::fmt::Display) -> Self {
        Status { unsent: true, ..Status::new(Code::Foreign, what.to_string()) }
    }

    pub(crate) fn late(what: &str) -> Self {
        Status::new(Code::DeadlineExceeded, what)
    }

    /// The final status in headers or trailers, if any.
    fn of(headers: &HeaderMap) -> Option<Result<(), Status>> {
        let code = headers.get("grpc-status")?.to_str().unwrap_or_default();
        if code == "0" {
            return Some(Ok(()));
        }
        let message = headers.get("grpc-message").map_or(&[][..], |value| value.as_bytes());
        Some(Err(Status::new(Code::read(code), unescape(message))))
    }

    /// The status in the head of an answer, if the call ends with it.
    pub(crate) fn of_head(head: &Parts) -> Result<(), Status> {
        match (head.status.as_u16(), Status::of(&head.headers)) {
            (200, Some(Err(status))) => Err(status),
            (200, _) => Ok(()),
            (404, _) => Err(Status::new(Code::Unimplemented, "it does not know this call")),
            (other, _) => Err(Status::unavailable(format!("it answered with HTTP status {other}"))),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl From<h2::Error> for Status {
    fn from(error: h2::Error) -> Self {
        Status::unavailable(error)
    }
}

/// Decodes percent-encoding: `%41` is `A`.
fn unescape(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte.filter(|_| first == b'%') {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A message's frame: not compressed, preceded by its length.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A growing buffer is never too small.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// The size of a frame's head: the compression flag and the length.
const HEAD: usize = 5;
/// The largest message: a line of ten thousand places, with room to spare.
const LARGEST: usize = 64 << 20;

/// The messages of an answer, one by one.
#[derive(Debug)]
pub(crate) struct Messages {
    body: RecvStream,
    /// The bytes of the next message so far.
    buffer: BytesMut,
}

impl Messages {
    pub(crate) fn new(body: RecvStream) -> Self {
        Messages { body, buffer: BytesMut::new() }
    }

    /// The next message; `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next<R: Message + Default>(&mut self) -> Result<Option<R>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(bytes) => {
                    let bytes = bytes?;
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                    self.buffer.extend_from_slice(&bytes);
                }
                None => return self.end().await.map(|()| None),
            }
        }
    }

    /// Reads to the end, and checks the final status.
    pub(crate) async fn end(&mut self) -> Result<(), Status> {
        while let Some(bytes) = self.body.data().await {
            let _ = self.body.flow_control().release_capacity(bytes?.len());
        }
        let trailers = self.body.trailers().await?;
        let said = trailers.as_ref().and_then(Status::of);
        said.unwrap_or_else(|| Err(Status::unavailable("the answer was cut off")))
    }

    /// The next message, if it is complete.
    fn take<R: Message + Default>(&mut self) -> Result<Option<R>, Status> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 || length > LARGEST {
            return Err(Status::new(Code::Internal, "an answer that is compressed or too long"));
        }
        if rest.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let message = self.buffer.split_to(length).freeze();
        let garbled = |error| Status::new(Code::Internal, format!("a garbled answer: {error}"));
        R::decode(message).map(Some).map_err(garbled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_length_in_front() {
        let bytes = frame(&crate::proto::LeaseId { id: 1 });
        assert_eq!(&bytes[..], [0, 0, 0, 0, 2, 8, 1]);
    }

    #[test]
    fn what_is_escaped_is_read() {
        assert_eq!(unescape(b"etcdserver: 100%25 %C3%A9 %zz %4"), "etcdserver: 100% é %zz %4");
    }

    #[test]
    fn an_end_says_how_it_went() {
        let mut headers = HeaderMap::new();
        assert!(Status::of(&headers).is_none());
        headers.insert("grpc-status", "0".parse().expect("a value"));
        assert!(Status::of(&headers).is_some_and(|said| said.is_ok()));
        headers.insert("grpc-status", "14".parse().expect("a value"));
        headers.insert("grpc-message", "no%20leader".parse().expect("a value"));
        let status = Status::of(&headers).expect("it says").expect_err("it failed");
        assert_eq!((status.code, &*status.message), (Code::Unavailable, "no leader"));
        assert_eq!(["5", "17", ""].map(Code::read), [Code::Other, Code::Unknown, Code::Unknown]);
    }
}
