//! One HTTP/2 connection to one member.
//!
//! A task reads from it and keeps it alive, but a caller writes its own request at once, so sending
//! costs no thread switch. (A client that hands every request to a task pays for two wake-ups per
//! call, which is more than the rest of the call's overhead in the client.)

use crate::error;
use crate::greeting::{Greeted, HUNG_UP, Wrong};
use crate::grpc::{Code, Messages, Status, frame};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::client::{ResponseFuture, SendRequest};
use h2::{PingPong, RecvStream, SendStream};
use holdline_base::clock;
use holdline_base::net::{self, Socket, Tls};
use holdline_base::sync::Mutex;
use http::{Method, Request, Response};
use prost::Message;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// The time limit of connecting, in total.
const CONNECT: Duration = Duration::from_secs(2);
/// The time limit of the TLS handshake: less than that of any call.
const HANDSHAKE: Duration = Duration::from_millis(900);
/// The interval of keepalive pings while a stream is open. etcd closes connections of clients that
/// ping more often than every 5 s.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The time limit of a ping's answer.
const SILENCE: Duration = Duration::from_secs(3);
/// How long the answer to a write is awaited after its caller has given up.
const LATE: Duration = Duration::from_secs(3);
/// The receive window: large enough never to be a reason to wait.
const WINDOW: u32 = 16 << 20;

/// A write whose caller may be gone before its answer comes. Dropped when no more can be learnt
/// about it.
pub trait PendingWrite: Send + Sync {
    /// Records that an attempt ended without an answer: it may have been, or may yet be, carried
    /// out.
    fn lose(&self);

    /// Records that an attempt that seemed lost was answered after all.
    fn find(&self);
}

type Conn = h2::client::Connection<Greeted, Bytes>;

/// A connection. Closed when the last of its handles and streams is dropped.
#[derive(Clone)]
pub(crate) struct MemberConnection {
    requests: SendRequest<Bytes>,
    shared: Arc<SharedConnection>,
    /// The runtime of the connection's task.
    runtime: Handle,
    wrong: Wrong,
}

/// The part of a connection that its task and its callers share.
struct SharedConnection {
    /// `None` when the connection is closed.
    conn: Mutex<Option<Conn>>,
    waker_gate: Arc<MutableWaker>,
    /// The waker that the connection has: `waker_gate`.
    waker: Waker,
    /// Also held by every open stream.
    streams: Arc<()>,
}

/// A waker that passes wake-ups on to the task, unless the caller that caused them does the work
/// itself.
#[derive(Default)]
struct MutableWaker {
    task: AtomicWaker,
    muted: AtomicBool,
}

impl Wake for MutableWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A write and not only a load, so that the caller that unmutes sees everything that led to
        // this.
        if !self.muted.fetch_or(false, Ordering::AcqRel) {
            self.task.wake();
        }
    }
}

impl SharedConnection {
    fn conn(&self) -> MutexGuard<'_, Option<Conn>> {
        self.conn.lock()
    }

    /// Runs a call that queues a request, and writes the request.
    fn say<T>(&self, what: impl FnOnce() -> T) -> T {
        self.waker_gate.muted.swap(true, Ordering::AcqRel);
        let said = what();
        self.waker_gate.muted.swap(false, Ordering::AcqRel);
        // The code below handles the wake-ups that were muted until here.
        let done = match self.conn.try_lock() {
            Some(mut conn) => conn.as_mut().is_some_and(|conn| self.poll(conn).is_pending()),
            None => false,
        };
        if !done {
            self.waker_gate.task.wake();
        }
        said
    }

    fn has_streams(&self) -> bool {
        Arc::strong_count(&self.streams) > 1
    }

    fn poll(&self, conn: &mut Conn) -> Poll<Result<(), h2::Error>> {
        Pin::new(conn).poll(&mut Context::from_waker(&self.waker))
    }
}

/// Closes the connection when its task ends, even if that is because its runtime did.
struct Closing(Arc<SharedConnection>);

impl Drop for Closing {
    fn drop(&mut self) {
        let conn = self.0.conn().take();
        drop(conn);
    }
}

impl MemberConnection {
    /// Connects. The connection's task runs on this runtime.
    pub(crate) async fn connect(host: &str, tls: Option<&Tls>) -> Result<MemberConnection, Status> {
        let wrong = Wrong::default();
        let connecting = async {
            let socket = net::dial(host, CONNECT).await.map_err(Status::unsent)?;
            let socket = wrap(tls, host, socket).await?;
            let built = h2::client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .handshake(Greeted::new(socket, &wrong));
            built.await.map_err(Status::unsent)
        };
        let connected = clock::timeout(CONNECT, pin!(connecting)).await;
        let (requests, mut conn) =
            connected.unwrap_or_else(|| Err(Status::unsent("connecting took too long")))?;
        let ping = conn.ping_pong();
        let waker_gate = Arc::<MutableWaker>::default();
        let waker = Waker::from(Arc::clone(&waker_gate));
        let (conn, streams) = (Mutex::new(Some(conn)), Arc::new(()));
        let shared = Arc::new(SharedConnection { conn, waker_gate, waker, streams });
        tokio::spawn(look_after(Closing(Arc::clone(&shared)), ping));
        Ok(MemberConnection { requests, shared, runtime: Handle::current(), wrong })
    }

    /// Whether the connection has ended. It has not while it is in use.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.conn.try_lock().is_some_and(|conn| conn.is_none())
    }

    /// Sends one request and awaits its answer. A pending write learns its outcome even if the
    /// future is dropped.
    pub(crate) async fn unary<R: Message + Default>(
        &self,
        request: Request<()>,
        body: Bytes,
        pending: Option<Arc<dyn PendingWrite>>,
    ) -> Result<R, Status> {
        let answer = self.ask(request, body, pending).await;
        match self.wrong.get() {
            // It may still be etcd, behind something that garbles its answers.
            Some(&HUNG_UP) => answer.map_err(|_| Status::unavailable(HUNG_UP)),
            Some(wrong) => answer.map_err(|_| Status::new(Code::Foreign, *wrong)),
            None => answer,
        }
    }

    async fn ask<R: Message + Default>(
        &self,
        request: Request<()>,
        body: Bytes,
        pending: Option<Arc<dyn PendingWrite>>,
    ) -> Result<R, Status> {
        let mut requests = self.ready().await?;
        let answer = self.shared.say(|| {
            let (answer, mut stream) = requests.send_request(request, false)?;
            stream.send_data(body, true)?;
            Ok::<_, h2::Error>(answer)
        })?;
        let mut sent = Sent { answer: Some(answer), pending, runtime: self.runtime.clone() };
        let (head, body) = sent.head().await?.into_parts();
        Status::of_head(&head)?;
        let mut messages = Messages::new(body);
        let Some(message) = messages.next().await? else {
            return Err(Status::unavailable("the answer was empty"));
        };
        // A server that has answered has carried the request out, whatever the end says.
        messages.end().await.map_err(Status::unavailable)?;
        Ok(message)
    }

    /// Opens a stream of messages in both directions.
    pub(crate) async fn stream(
        &self,
        request: Request<()>,
    ) -> Result<(StreamWriter, StreamReader), Status> {
        let mut requests = self.ready().await?;
        let opened = self.shared.say(|| requests.send_request(request, false));
        let (answer, stream) = opened?;
        let writer = StreamWriter { stream: Mutex::new(stream), shared: Arc::clone(&self.shared) };
        let open = Arc::clone(&self.shared.streams);
        Ok((writer, StreamReader { answer: Answer::Awaited(answer), _open: open }))
    }

    async fn ready(&self) -> Result<SendRequest<Bytes>, Status> {
        let mut requests = self.requests.clone();
        poll_fn(|cx| requests.poll_ready(cx)).await.map_err(Status::unsent)?;
        Ok(requests)
    }
}

/// A request that was sent and has no answer yet.
struct Sent {
    answer: Option<ResponseFuture>,
    pending: Option<Arc<dyn PendingWrite>>,
    runtime: Handle,
}

impl Sent {
    /// The head of the answer.
    async fn head(&mut self) -> Result<Response<RecvStream>, h2::Error> {
        let head = poll_fn(|cx| match &mut self.answer {
            Some(answer) => Pin::new(answer).poll(cx),
            None => Poll::Pending,
        });
        let head = head.await;
        self.answer = None;
        head
    }
}

/// The caller has given up, but whether there is an answer still matters.
impl Drop for Sent {
    fn drop(&mut self) {
        let (Some(answer), Some(pending)) = (self.answer.take(), self.pending.take()) else {
            return;
        };
        pending.lose();
        self.runtime.spawn(async move {
            let Some(Ok(answer)) = clock::timeout(LATE, answer).await else { return };
            let said = Status::of_head(&answer.into_parts().0);
            if said.is_ok() || said.is_err_and(|status| !error::may_be_done(&status)) {
                pending.find();
            }
        });
    }
}

/// Our side of a stream. Dropping it ends the stream.
pub(crate) struct StreamWriter {
    stream: Mutex<SendStream<Bytes>>,
    shared: Arc<SharedConnection>,
}

impl StreamWriter {
    /// Sends a message. If the stream has ended, the reading side reports it.
    pub(crate) fn send(&self, message: &impl Message) {
        let bytes = frame(message);
        let mut stream = self.stream.lock();
        let _ = self.shared.say(|| stream.send_data(bytes, false));
    }
}

impl std::fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamWriter").finish_non_exhaustive()
    }
}

/// The other side of a stream.
pub(crate) struct StreamReader {
    answer: Answer,
    _open: Arc<()>,
}

enum Answer {
    Awaited(ResponseFuture),
    Coming(Messages),
}

impl StreamReader {
    /// The next message; `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn message<R: Message + Default>(&mut self) -> Result<Option<R>, Status> {
        loop {
            match &mut self.answer {
                Answer::Coming(messages) => return messages.next().await,
                Answer::Awaited(answer) => {
                    let (head, body) = answer.await?.into_parts();
                    Status::of_head(&head)?;
                    self.answer = Answer::Coming(Messages::new(body));
                }
            }
        }
    }
}

/// Builds a request for this call.
pub(crate) fn request(uri: http::Uri) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    let grpc = http::HeaderValue::from_static("application/grpc");
    headers.insert(http::header::CONTENT_TYPE, grpc);
    request
}

/// Adds TLS to a connection, if it is requested.
async fn wrap(tls: Option<&Tls>, host: &str, socket: TcpStream) -> Result<Box<dyn Socket>, Status> {
    // A port without TLS may wait for the end of a line, which never comes.
    let Some(socket) = clock::timeout(HANDSHAKE, pin!(net::wrap(tls, host, socket))).await else {
        let what = "it says nothing to TLS; write etcd: if it is to be plain";
        return Err(Status { unsent: true, ..Status::new(Code::Silent, what) });
    };
    socket.map_err(|error| {
        if net::speaks_no_tls(&error) {
            return Status::foreign("it does not speak TLS; write etcd: if it is to be plain");
        }
        let why = error.to_string();
        Status::unsent(format!("{why}{}", net::certificate_advice(&why)))
    })
}

/// Reads, and writes what could not be written at once, until the connection is closed.
async fn look_after(closing: Closing, ping: Option<PingPong>) {
    let shared = &closing.0;
    let over = poll_fn(|cx| {
        shared.waker_gate.task.register(cx.waker());
        match shared.conn().as_mut() {
            Some(conn) => shared.poll(conn),
            None => Poll::Ready(Ok(())),
        }
    });
    tokio::select! {
        biased;
        over = over => if let Err(error) = over {
            tracing::debug!(%error, "a connection broke");
        },
        () = keepalive(ping, shared) => tracing::debug!("a connection has gone silent"),
    }
}

/// Returns when the server no longer answers.
async fn keepalive(ping: Option<PingPong>, shared: &SharedConnection) {
    let Some(mut ping) = ping else { return std::future::pending().await };
    loop {
        clock::pause(KEEPALIVE).await;
        // Calls have their own limits, and etcd refuses pings from clients without open streams.
        if !shared.has_streams() {
            continue;
        }
        let pong = ping.ping(h2::Ping::opaque());
        if clock::timeout(SILENCE, pong).await.is_none_or(|pong| pong.is_err()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::may_be_done;
    use crate::grpc;
    use crate::proto::LeaseId;
    use tokio::net::TcpListener;

    /// Pings are sent while there are streams, even if nothing else uses the connection.
    #[tokio::test]
    async fn a_stream_is_counted_even_if_nothing_else_has_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let host = listener.local_addr().expect("it has one").to_string();
        let serving = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.expect("it connects");
            let mut server = h2::server::handshake(socket).await.expect("HTTP/2");
            let mut open = Vec::new();
            while let Some(Ok(request)) = server.accept().await {
                open.push(request);
            }
        });
        let connection = MemberConnection::connect(&host, None).await.expect("it listens");
        let (more, shared) = (connection.clone(), Arc::clone(&connection.shared));
        assert!(!shared.has_streams());
        let uri = format!("http://{host}/x").parse().expect("good");
        let stream = connection.stream(request(uri)).await.expect("it is open");
        drop((connection, more));
        assert!(shared.has_streams(), "it is all that is left");
        drop(stream);
        assert!(!shared.has_streams());
        serving.abort();
    }

    /// An answer whose end says that the request was refused: it was carried out all the same.
    #[tokio::test]
    async fn a_refusal_after_an_answer_leaves_the_outcome_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let host = listener.local_addr().expect("it has one").to_string();
        let serving = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.expect("it connects");
            let mut server = h2::server::handshake(socket).await.expect("HTTP/2");
            while let Some(Ok((_, mut answers))) = server.accept().await {
                let mut answer = answers.send_response(Response::new(()), false).expect("open");
                answer.send_data(grpc::frame(&LeaseId { id: 1 }), false).expect("open");
                let status = ("grpc-status".parse().expect("good"), "8".parse().expect("good"));
                answer.send_trailers([status].into_iter().collect()).expect("open");
            }
        });
        let connection = MemberConnection::connect(&host, None).await.expect("it listens");
        let uri = format!("http://{host}/x").parse().expect("good");
        let answer = connection.unary::<LeaseId>(request(uri), Bytes::new(), None).await;
        assert!(may_be_done(&answer.expect_err("refused in the end")));
        serving.abort();
    }
}
