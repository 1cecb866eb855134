//! A TCP proxy between a client and a server, which can be cut, stalled in one direction or both,
//! delayed, and made to lose a reply.
//!
//! A network that loses the packets of one direction only delays TCP: the bytes are retransmitted,
//! and arrive once the network is mended. So [`Link::stall`] buffers what is sent, and delivers it
//! later; nothing is ever removed from the middle of a stream. A lost reply
//! ([`Link::lose_next_reply`]) ends the connection, as a reset does.

use crate::pump::{Direction, Pipe};
use std::io::{self, Error};
use std::net::{self, Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// A direction of a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
    /// Both.
    Both,
}

/// The current behaviour of a link, which each pump follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) delay: Duration,
    pub(crate) stall_requests: bool,
    pub(crate) stall_replies: bool,
    refuse: bool,
    /// Connections with a lower number than this are closed.
    closed_below: u64,
}

/// A TCP proxy to one server. Dropping it closes all of its connections.
///
/// It runs on a thread of its own, so that a test may block, and its own work is not measured as
/// the client's.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// use holdline_testkit::{Link, Way};
/// use std::time::Duration;
///
/// let link = Link::to("127.0.0.1:6379")?;
/// let url = format!("redis://{}", link.address());
/// link.delay(Duration::from_millis(1)); // each way: a round trip takes 2 ms more
/// link.stall(Way::Replies); // the server hears, and is not heard
/// link.mend(); // all that was kept arrives
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    rule: watch::Sender<Rule>,
    counts: Arc<Counts>,
    /// An option, so that it can be shut down without waiting, also inside another runtime.
    runtime: Option<Runtime>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    accepted: AtomicU64,
    open: AtomicUsize,
    /// The number of replies that are still to be lost.
    pub(crate) to_lose: AtomicUsize,
}

/// What every proxy begins with: a local port, on a runtime of its own, and the server behind it.
pub(crate) struct Proxy {
    pub(crate) server: SocketAddr,
    pub(crate) address: SocketAddr,
    pub(crate) runtime: Runtime,
    pub(crate) listener: TcpListener,
}

impl Proxy {
    pub(crate) fn to(server: impl ToSocketAddrs, name: &str) -> io::Result<Self> {
        let server = server.to_socket_addrs()?.next();
        let server = server.ok_or_else(|| Error::other("the server's name has no address"))?;
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
        let listener = net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        Ok(Self { server, address, runtime, listener })
    }
}

impl Link {
    /// Opens a local port that leads to `server`. The server need not be up: while it is down,
    /// connections are accepted and closed.
    ///
    /// # Errors
    ///
    /// The address does not resolve, or no port or thread can be had.
    pub fn to(server: impl ToSocketAddrs) -> io::Result<Self> {
        let Proxy { server, address, runtime, listener } = Proxy::to(server, "link")?;
        let (rule, rules) = watch::channel(Rule::default());
        let counts = Arc::new(Counts::default());
        runtime.spawn(accept(listener, server, rules, Arc::clone(&counts)));
        Ok(Self { address, rule, counts, runtime: Some(runtime) })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// Delays all bytes by this long, in each direction. Only the latency changes, not the
    /// bandwidth.
    pub fn delay(&self, one_way: Duration) {
        self.rule.send_modify(|rule| rule.delay = one_way);
    }

    /// Buffers everything in this direction until [`mend`](Self::mend).
    pub fn stall(&self, way: Way) {
        self.rule.send_modify(|rule| {
            rule.stall_requests |= way != Way::Replies;
            rule.stall_replies |= way != Way::Requests;
        });
    }

    /// Closes all connections, and accepts none until [`mend`](Self::mend).
    pub fn cut(&self) {
        let accepted = &self.counts.accepted;
        self.rule.send_modify(|rule| {
            rule.refuse = true;
            rule.closed_below = accepted.load(Ordering::SeqCst);
        });
    }

    /// Closes all connections; new ones are accepted.
    pub fn reset(&self) {
        let accepted = &self.counts.accepted;
        self.rule.send_modify(|rule| rule.closed_below = accepted.load(Ordering::SeqCst));
    }

    /// Ends stalls, cuts and delays. Buffered bytes are delivered.
    pub fn mend(&self) {
        self.counts.to_lose.store(0, Ordering::SeqCst);
        self.rule.send_modify(|rule| {
            *rule = Rule { closed_below: rule.closed_below, ..Rule::default() };
        });
    }

    /// Drops the next bytes that the server sends, and closes their connection: the server has
    /// acted, and the client cannot know.
    ///
    /// On an idle connection those bytes are the reply to the next request. If another connection
    /// through the link gets bytes first, it loses those instead.
    pub fn lose_next_reply(&self) {
        self.counts.to_lose.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of [`lose_next_reply`](Self::lose_next_reply) calls whose reply is not lost yet.
    pub fn replies_to_lose(&self) -> usize {
        self.counts.to_lose.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    rules: watch::Receiver<Rule>,
    counts: Arc<Counts>,
) {
    loop {
        // Out of file descriptors, for example: retry later.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let number = counts.accepted.fetch_add(1, Ordering::SeqCst);
        if rules.borrow().refuse {
            continue;
        }
        tokio::spawn(serve(client, server, number, rules.clone(), Arc::clone(&counts)));
    }
}

/// Serves one connection.
async fn serve(
    client: TcpStream,
    server: SocketAddr,
    number: u64,
    rules: watch::Receiver<Rule>,
    counts: Arc<Counts>,
) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    // A proxy must not add delays of its own.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    counts.open.fetch_add(1, Ordering::SeqCst);
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let requests =
        Pipe { from: client_reads, to: server_writes, direction: Direction::requests(&rules) };
    let replies = Pipe {
        from: server_reads,
        to: client_writes,
        direction: Direction::replies(&rules, Arc::clone(&counts)),
    };
    let mut closing = rules;
    // When one direction ends, the other is closed.
    tokio::select! {
        () = requests.run() => {}
        () = replies.run() => {}
        _ = closing.wait_for(|rule| rule.closed_below > number) => {}
    }
    counts.open.fetch_sub(1, Ordering::SeqCst);
}

/// Forwards both directions of a connection on threads, until one of its ends closes.
pub(crate) fn splice(caller: net::TcpStream, server: net::TcpStream) -> io::Result<()> {
    // A proxy must not add delays of its own.
    let _ = (caller.set_nodelay(true), server.set_nodelay(true));
    let (mut requests, mut there) = (caller.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut requests, &mut there);
        let _ = there.shutdown(Shutdown::Both);
    });
    let (mut replies, mut back) = (server, caller);
    let _ = io::copy(&mut replies, &mut back);
    back.shutdown(Shutdown::Both)
}
