//! The current connection of a session, and its task.
//!
//! A caller writes its own request at once, with all other pending ones; the task reads the
//! answers, and writes only what could not be written then. So an answer costs one thread switch,
//! and a request none.
//!
//! A request sent on a connection that breaks may or may not have been carried out: it ends with
//! [`Error::ConnectionLoss`], and is never sent again. An unsent request waits for the next
//! connection.

use crate::config::Config;
use crate::error::Error;
use crate::handshake::{Failure, SessionId, attach, patience, went_back};
use crate::jute::Reader;
use crate::transport::{Header, Transport, op, xid};
use crate::watch_registry::{TreeWatch, Wanted, Watch, WatchRegistry};
use futures_util::FutureExt;
use holdline_base::clock;
use holdline_base::sync::{Mutex, contained};
use holdline_kernel::Time;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in use.
    Serving,
    /// A new one is being made.
    Broken,
    /// The session has ended for us.
    Over,
    /// The session has ended, for the servers too.
    Ended,
}

/// A server's answer.
pub(crate) struct Answer {
    frame: Vec<u8>,
    /// The watch, if one was requested.
    pub(crate) watch: Option<Watch>,
}

impl Answer {
    pub(crate) fn body(&self) -> Reader<'_> {
        Reader(self.frame.get(Header::LEN..).unwrap_or_default())
    }
}

type Outcome = Result<Answer, Error>;

/// The state of a request until it is answered.
pub(crate) struct PendingReply {
    watch: Option<Wanted>,
    /// `None` if no caller waits for the answer.
    reply: Option<oneshot::Sender<Outcome>>,
}

impl PendingReply {
    fn answer(self, outcome: Outcome) {
        if let Some(reply) = self.reply {
            contained(|| drop(reply.send(outcome)));
        }
    }

    fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_none_or(|reply| !reply.is_closed())
    }
}

/// A request that has not been sent yet.
struct Ask {
    op: i32,
    body: Vec<u8>,
    kept: PendingReply,
}

/// The number of unsent requests from which on abandoned ones are dropped.
const MANY: usize = 256;

/// The part of a connection that its task and its callers share.
pub(crate) struct Connection {
    inner: Mutex<Inner>,
    state: watch::Sender<State>,
    silence: Duration,
}

struct Inner {
    queue: VecDeque<Ask>,
    transport: Option<Transport<PendingReply>>,
    watches: WatchRegistry,
    /// The last transaction seen in an answer.
    seen: i64,
    /// The task's waker.
    waker: Waker,
    over: Option<Error>,
    /// Whether the client was dropped.
    closing: bool,
}

/// The operations on an open connection.
impl Inner {
    /// Adds a request to the unsent ones. Abandoned requests make room.
    fn push(&mut self, ask: Ask) {
        let many = self.queue.len();
        if many >= MANY && many.is_power_of_two() {
            self.queue.retain(|ask| ask.kept.is_wanted());
        }
        self.queue.push_back(ask);
    }

    /// Sends the pending requests that are still wanted, as far as the connection has room.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        loop {
            let mut more = false;
            while transport.has_room()
                && let Some(ask) = self.queue.pop_front()
            {
                if ask.kept.is_wanted() {
                    transport.ask(ask.op, &ask.body, ask.kept);
                    more = true;
                }
            }
            transport.write(cx)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Handles a frame from the server.
    fn take(&mut self, frame: Vec<u8>) -> Result<(), Error> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let (header, body) = Header::read(&frame)?;
        match (header.xid, Error::of(header.code)) {
            (xid::EVENT, _) => return self.watches.tell(body),
            (xid::PING, _) => {
                transport.ponged();
                return Ok(());
            }
            (xid::SET_WATCHES, None) => return Ok(()),
            (xid::SET_WATCHES, Some(error)) => return Err(error),
            _ => {}
        }
        let error = Error::of(header.code);
        let mut kept = match error {
            Some(Error::Unimplemented) => transport.refused(header.xid)?,
            _ => transport.answered(header.xid)?,
        };
        self.seen = self.seen.max(header.zxid);
        match error {
            Some(error) if error.is_over() => {
                kept.answer(Err(error.clone()));
                return Err(error);
            }
            Some(error) => kept.answer(Err(error)),
            None => {
                let watch = kept.watch.take().and_then(|wanted| self.watches.set(wanted));
                kept.answer(Ok(Answer { frame, watch }));
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Starts on a new connection, with a task on this runtime.
    pub(crate) fn new(
        config: Config,
        silence: Duration,
        transport: Transport<PendingReply>,
        ident: SessionId,
    ) -> Arc<Connection> {
        let inner = Inner {
            queue: VecDeque::new(),
            transport: Some(transport),
            watches: WatchRegistry::default(),
            seen: 0,
            waker: Waker::noop().clone(),
            over: None,
            closing: false,
        };
        let state = watch::Sender::new(State::Serving);
        let connection = Arc::new(Connection { inner: Mutex::new(inner), state, silence });
        let own = Arc::clone(&connection);
        tokio::spawn(async move {
            // A panic, say of a subscriber, must not leave requests without an answer.
            let over = AssertUnwindSafe(own.run(config, ident)).catch_unwind().await;
            own.end(&over.unwrap_or(Error::SessionGivenUp));
        });
        connection
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Makes a request. It is sent when the reply is first polled, or along with a later request.
    pub(crate) fn ask<T>(
        self: &Arc<Self>,
        op: i32,
        body: Vec<u8>,
        watch: Option<Wanted>,
        read: fn(Outcome) -> Result<T, Error>,
    ) -> Reply<T> {
        let (sender, answer) = oneshot::channel();
        let kept = PendingReply { watch, reply: Some(sender) };
        let mut inner = self.inner();
        match inner.over.clone() {
            Some(error) => kept.answer(Err(error)),
            None => inner.push(Ask { op, body, kept }),
        }
        Reply { connection: Some(Arc::clone(self)), answer, read }
    }

    /// Registers a tree watch; its events come once the server is asked for it.
    pub(crate) fn listen(&self, path: &str) -> TreeWatch {
        self.inner().watches.add_tree(path.to_owned())
    }

    /// Sends the pending requests.
    fn flush(&self) {
        let mut inner = self.inner();
        let waker = inner.waker.clone();
        if inner.flush(&mut Context::from_waker(&waker)).is_err() {
            waker.wake(); // the task finds that out as well
        }
    }

    /// Closes the session, as soon as there is a connection.
    pub(crate) fn close(&self) {
        let mut inner = self.inner();
        inner.closing = true;
        let kept = PendingReply { watch: None, reply: None };
        inner.queue.push_back(Ask { op: op::CLOSE, body: Vec::new(), kept });
        inner.waker.wake_by_ref();
    }

    /// Serves the session, on one connection after the other, until it is over. Returns the reason.
    async fn run(&self, config: Config, mut ident: SessionId) -> Error {
        loop {
            let why = self.serve().await;
            if why.is_over() {
                return why;
            }
            contained(|| tracing::debug!(%why, "a connection to ZooKeeper broke"));
            let heard = self.break_off();
            match self.again(&config, &mut ident, heard).await {
                Ok(transport) => self.resume(transport),
                Err(error) => return error,
            }
        }
    }

    /// Serves the connection until it fails or is no longer needed. Returns the reason.
    async fn serve(&self) -> Error {
        loop {
            let due = self.inner().transport.as_ref().map(|transport| transport.due(self.silence));
            let Some(due) = due else { return Error::ConnectionLoss };
            tokio::select! {
                biased; // what has come is heard before anybody is called silent
                why = poll_fn(|cx| self.poll(cx)) => return why,
                () = clock::pause(clock::now().until(due)) => {
                    let mut inner = self.inner();
                    let alive = |transport: &mut Transport<_>| transport.tick(self.silence);
                    if !inner.transport.as_mut().is_some_and(alive) {
                        return Error::Timeout;
                    }
                }
            }
        }
    }

    /// Ready when the connection has ended.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut inner = self.inner();
        if !inner.waker.will_wake(cx.waker()) {
            inner.waker.clone_from(cx.waker());
        }
        loop {
            if let Err(error) = inner.flush(cx) {
                return Poll::Ready(error);
            }
            let closing = inner.closing;
            let Some(transport) = &mut inner.transport else {
                return Poll::Ready(Error::ConnectionLoss);
            };
            if closing && transport.is_done() {
                return Poll::Ready(Error::SessionGivenUp);
            }
            let taken = match ready!(transport.poll_frame(cx)) {
                Ok(frame) => inner.take(frame),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                return Poll::Ready(error);
            }
        }
    }

    /// Fails all sent requests. Returns when something was last heard.
    fn break_off(&self) -> Time {
        let transport = self.inner().transport.take();
        self.state.send_replace(State::Broken);
        let Some(transport) = transport else { return clock::now() };
        let heard = transport.heard();
        transport.unanswered().for_each(|kept| kept.answer(Err(Error::ConnectionLoss)));
        heard
    }

    /// Makes another connection for the session, to whichever server accepts it, for as long as the
    /// session may last: a leader that is new, or was away, may keep it slightly longer than its
    /// length.
    async fn again(
        &self,
        config: &Config,
        ident: &mut SessionId,
        heard: Time,
    ) -> Result<Transport<PendingReply>, Error> {
        let over = heard.after(ident.length * 7 / 5);
        let (mut pause, mut tries) = (Duration::from_millis(10), 0);
        let search = async {
            let mut hosts = config.servers.hosts.clone();
            loop {
                fastrand::shuffle(&mut hosts);
                let (silence, began) = (patience(self.silence, ident.length, tries), clock::now());
                for host in &hosts {
                    let seen = self.inner().seen;
                    match attach(config, host, silence, ident, seen).await {
                        Ok((transport, attached)) => {
                            *ident = attached;
                            return Ok(transport);
                        }
                        Err(Failure::Over(error)) => return Err(error),
                        Err(Failure::HungUp) if went_back(config, host, silence, seen).await => {
                            let store = &config.name;
                            tracing::warn!(store, "it has lost confirmed transactions");
                            return Err(Error::WentBack);
                        }
                        Err(why) => {
                            contained(
                                || tracing::debug!(%host, %why, "no connection to ZooKeeper"),
                            );
                        }
                    }
                }
                tries += u32::from(began.until(clock::now()) >= silence);
                clock::pause(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                pause = (pause * 2).min(Duration::from_millis(400));
            }
        };
        clock::within(over, search).await.unwrap_or(Err(Error::SessionGivenUp))
    }

    /// Continues on another connection: watches are set again first.
    fn resume(&self, mut transport: Transport<PendingReply>) {
        let mut inner = self.inner();
        let seen = inner.seen;
        for request in inner.watches.again(seen) {
            transport.say(xid::SET_WATCHES, op::SET_WATCHES, &request);
        }
        inner.transport = Some(transport);
        drop(inner);
        self.state.send_replace(State::Serving);
    }

    /// Ends the session.
    fn end(&self, why: &Error) {
        let (transport, queue) = {
            let mut inner = self.inner();
            inner.over = Some(why.clone());
            inner.watches.end();
            (inner.transport.take(), std::mem::take(&mut inner.queue))
        };
        let ended = *why == Error::SessionExpired;
        self.state.send_replace(if ended { State::Ended } else { State::Over });
        let sent = transport.into_iter().flat_map(Transport::unanswered);
        let asked = queue.into_iter().map(|ask| ask.kept);
        sent.chain(asked).for_each(|kept| kept.answer(Err(why.clone())));
    }
}

/// A pending answer: see [`Client`](crate::Client). If this is dropped before it was polled, the
/// request may never be sent.
pub struct Reply<T> {
    /// `None` once the request is known to be sent.
    connection: Option<Arc<Connection>>,
    answer: oneshot::Receiver<Outcome>,
    read: fn(Outcome) -> Result<T, Error>,
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(connection) = self.connection.take() {
            connection.flush();
        }
        let outcome = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready((self.read)(outcome.unwrap_or(Err(Error::SessionGivenUp))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jute::Writer;
    use holdline_base::servers::Servers;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn drop_body(outcome: Outcome) -> Result<(), Error> {
        outcome.map(drop)
    }

    /// As servers before 3.6 do.
    #[tokio::test]
    async fn a_request_that_the_server_does_not_know_is_refused_ahead_of_others() {
        let (near, mut far) = duplex(1 << 10);
        let transport = Transport::new(Box::new(near));
        let (config, silence) = (Config::new(Servers::default()), Duration::from_secs(5));
        let ident = SessionId::new(Duration::from_secs(60));
        let connection = Connection::new(config, silence, transport, ident);
        let asked = [op::SYNC, op::GET_EPHEMERALS]
            .map(|op| connection.ask(op, Vec::new(), None, drop_body));
        let server = async {
            far.read_exact(&mut [0; 24]).await.expect("two requests");
            let answer = Writer::default().int(2).long(0).int(-6).0;
            far.write_all(&Writer::default().bytes(&answer).0).await.expect("there is room");
            drop(far);
        };
        let [sync, unknown] = asked;
        let (sync, unknown, ()) = tokio::join!(sync, unknown, server);
        assert_eq!((sync, unknown), (Err(Error::ConnectionLoss), Err(Error::Unimplemented)));
    }

    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it should");
        }
    }

    /// A waker is of the caller's executor.
    #[tokio::test]
    async fn a_waker_that_panics_ends_no_other_request() {
        let (near, mut far) = duplex(1 << 10);
        let transport = Transport::new(Box::new(near));
        let (config, silence) = (Config::new(Servers::default()), Duration::from_secs(60));
        let ident = SessionId::new(silence);
        let connection = Connection::new(config, silence, transport, ident);
        let asked = || connection.ask(op::SYNC, Vec::new(), None, drop_body);
        let (mut one, other) = (asked(), asked());
        let panics = Waker::from(Arc::new(Panics));
        assert!(Pin::new(&mut one).poll(&mut Context::from_waker(&panics)).is_pending());
        far.read_exact(&mut [0; 24]).await.expect("two requests");
        for xid in [1, 2] {
            let answer = Writer::default().int(xid).long(0).int(0).0;
            far.write_all(&Writer::default().bytes(&answer).0).await.expect("there is room");
        }
        let other = clock::timeout(Duration::from_secs(30), other).await;
        assert_eq!(other.expect("the task goes on"), Ok(()));
        assert_eq!(one.await, Ok(()));
    }
}
