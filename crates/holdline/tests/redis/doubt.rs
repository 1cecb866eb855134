//! Connections that break while somebody looks at locks or breaks them: what was lost on the way is
//! asked for again, and what cannot be known is not guessed.

use holdline::store::{Enter, Ticket, TicketId};
use holdline::{Client, ErrorKind, Mutex, Name, open};
use holdline_testkit::redis::{Server, cluster, private};
use holdline_testkit::{Link, ticket, until};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex as Cell};
use std::thread;
use std::time::Duration;

const OPTIONS: [&str; 2] = ["", "?scheme=string&prefix=lock:"];

/// A client over a link that can lose replies, and one without.
async fn clients(server: &Server, options: &str) -> (Link, Client, Client) {
    let link = Link::to(("127.0.0.1", server.port())).expect("a port is free");
    let over = open(&format!("redis://{}{options}", link.address())).await.expect("opens");
    let direct = open(&format!("{}{options}", server.url())).await.expect("opens");
    (link, over, direct)
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_observers_nothing() {
    let Some(server) = private("closed_idle", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let guard = Mutex::new(&direct, "x").lock().await.expect("works");
        for _ in 0..2 {
            assert_eq!(over.inspect("x").await.expect("asked again").holders.len(), 1);
            link.reset();
            assert_eq!(over.list("").await.expect("asked again").len(), 1);
            link.reset();
        }
        guard.unlock().await.expect("held");
    }
}

#[tokio::test]
async fn whether_a_lock_was_broken_is_not_guessed() {
    let Some(server) = private("half_broken", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let guard = Mutex::new(&direct, "x").lock().await.expect("works");
        let id = guard.ticket();
        over.inspect("x").await.expect("connected");
        // The server knows the script: the next reply is the answer, and no question for its text.
        let nobody = holdline::store::TicketId(7);
        assert!(over.force_unlock("x", nobody, "test").await.expect("works").is_none());
        if options.is_empty() {
            link.lose_next_reply();
            let error = over.force_unlock("x", id, "test").await.expect_err("nobody knows");
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        } else {
            // It reads the string first; that reply may be lost without harm.
            link.lose_next_reply();
            assert!(over.force_unlock("x", id, "test").await.expect("asked again").is_some());
        }
        assert_eq!(link.replies_to_lose(), 0);
        assert!(direct.inspect("x").await.expect("works").holders.is_empty(), "it was broken");
        assert!(over.force_unlock("x", id, "test").await.expect("works").is_none());
        drop(guard);
    }
}

/// Loses the reply to the next request. What the one before it has published may still be on its
/// way over the connection: an answer that comes behind it is waited for first.
async fn lose_next_reply(link: &Link, client: &Client) {
    client.inspect("x").await.expect("connected");
    link.lose_next_reply();
}

/// The lock's own request was answered at the second try, so it is given up with care; and that
/// answer is lost, too.
#[tokio::test]
async fn whether_a_lock_was_released_is_not_guessed() {
    let Some(server) = private("half_released", &[]) else { return };
    for options in OPTIONS {
        let (link, over, direct) = clients(&server, options).await;
        let lock = Mutex::new(&over, "x");
        lock.lock().await.expect("works").unlock().await.expect("held"); // it knows the scripts
        lose_next_reply(&link, &over).await;
        let guard = lock.lock().await.expect("asked again");
        assert_eq!(link.replies_to_lose(), 0);
        lose_next_reply(&link, &over).await;
        let error = guard.unlock().await.expect_err("nobody knows");
        assert_eq!((error.kind(), link.replies_to_lose()), (ErrorKind::Unknown, 0), "{error}");
        over.settle().await;
        assert!(direct.inspect("x").await.expect("works").holders.is_empty(), "it was released");
    }
}

/// A cluster whose clients reach each node over a link.
async fn linked_cluster() -> Option<(Vec<Server>, Vec<Link>, String)> {
    let nodes = cluster()?;
    let link = |node: &Server| Link::to(("127.0.0.1", node.port())).expect("a port is free");
    let links: Vec<Link> = nodes.iter().map(link).collect();
    let hosts: Vec<String> = links.iter().map(|link| link.address().to_string()).collect();
    for (node, link) in nodes.iter().zip(&links) {
        let port = link.address().port().to_string();
        let _: () = node.query(&["CONFIG", "SET", "cluster-announce-port", &port]);
    }
    until("all nodes know the links", async || {
        let known: Vec<String> =
            nodes.iter().map(|node| node.query(&["CLUSTER", "NODES"])).collect();
        known.iter().all(|nodes| hosts.iter().all(|host| nodes.contains(host)))
    })
    .await;
    Some((nodes, links, hosts.join(",")))
}

#[tokio::test]
async fn whether_a_lock_in_a_cluster_was_released_is_not_guessed() {
    let Some((nodes, links, hosts)) = linked_cluster().await else { return };
    for (scheme, key) in [("line", "holdline:{x}"), ("redisson", "x")] {
        let client = open(&format!("redis+cluster://{hosts}?scheme={scheme}")).await;
        let client = client.expect("opens");
        let lock = Mutex::new(&client, "x");
        lock.lock().await.expect("works").unlock().await.expect("held"); // it knows the scripts
        let guard = lock.lock().await.expect("works");
        let slot: u64 = nodes[0].query(&["CLUSTER", "KEYSLOT", key]);
        let slot = slot.to_string();
        let has_it = |node: &Server| -> bool {
            node.query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) > 0
        };
        let link = &links[nodes.iter().position(has_it).expect("somebody has the key")];
        lose_next_reply(link, &client).await;
        let error = guard.unlock().await.expect_err("nobody knows");
        assert_eq!((error.kind(), link.replies_to_lose()), (ErrorKind::Unknown, 0), "{error}");
        client.settle().await;
        assert!(client.inspect("x").await.expect("works").holders.is_empty(), "it was released");
    }
}

/// A proxy that can keep a request back, and deliver it when nobody expects it any more.
struct Late {
    address: SocketAddr,
    server: SocketAddr,
    state: Arc<Cell<LateState>>,
}

#[derive(Default)]
struct LateState {
    /// How many of the next calls are kept back.
    keeps: usize,
    /// What is said instead of the reply to the first of them; nothing if the connection is closed.
    says: &'static str,
    refuses: bool,
    kept: Vec<u8>,
}

impl Late {
    fn to(server: &Server) -> Late {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let server = SocketAddr::from(([127, 0, 0, 1], server.port()));
        let state = Arc::new(Cell::new(LateState::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !shared.lock().expect("no panic").refuses {
                    let (state, server) = (Arc::clone(&shared), TcpStream::connect(server));
                    thread::spawn(move || pass_on(&state, &client, &server.expect("it listens")));
                }
            }
        });
        Late { address, server, state }
    }

    async fn open(&self, options: &str) -> Client {
        let client = open(&format!("redis://{}{options}", self.address)).await.expect("opens");
        let lock = Mutex::new(&client, "another");
        lock.lock().await.expect("works").unlock().await.expect("held"); // it knows the scripts
        client
    }

    /// Keeps the next call of a script back, and closes its connection; and refuses new ones.
    fn keep_next(&self, refuses: bool) {
        let state = LateState { keeps: 1, refuses, ..LateState::default() };
        *self.state.lock().expect("no panic") = state;
    }

    /// Keeps so many of the next calls of a script back, and says this to the first caller.
    fn keep_and_say(&self, keeps: usize, says: &'static str) {
        let state = LateState { keeps, says, ..LateState::default() };
        *self.state.lock().expect("no panic") = state;
    }

    fn serve_again(&self) {
        self.state.lock().expect("no panic").refuses = false;
    }

    /// Delivers what was kept back, and waits for the reply.
    fn deliver(&self) {
        let kept = std::mem::take(&mut self.state.lock().expect("no panic").kept);
        assert!(!kept.is_empty(), "a request was kept back");
        let mut server = TcpStream::connect(self.server).expect("it listens");
        server.write_all(&kept).expect("it is open");
        assert!(server.read(&mut [0; 1024]).expect("a reply") > 0);
    }
}

fn pass_on(state: &Cell<LateState>, mut client: &TcpStream, mut server: &TcpStream) {
    let mut replies = server.try_clone().expect("it is open");
    let mut back = client.try_clone().expect("it is open");
    thread::spawn(move || {
        let _ = std::io::copy(&mut replies, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 4096];
    while let Ok(size @ 1..) = client.read(&mut bytes) {
        let request = &bytes[..size];
        let mut state = state.lock().expect("no panic");
        if state.keeps > 0 && request.windows(7).any(|word| word == b"EVALSHA") {
            state.keeps -= 1;
            state.kept = request.to_vec();
            let says = std::mem::take(&mut state.says);
            if !says.is_empty() && client.write_all(says.as_bytes()).is_ok() {
                continue;
            }
            break;
        }
        drop(state);
        if server.write_all(request).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// G7: a try whose first request is carried out when its second has long been answered takes no
/// place.
#[tokio::test]
async fn a_try_that_comes_late_takes_nothing() {
    let Some(server) = private("late_try", &[]) else { return };
    let (late, direct) = (Late::to(&server), open(server.url()).await.expect("opens"));
    let over = late.open("").await;
    let guard = Mutex::new(&direct, "x").lock().await.expect("works");
    late.keep_next(false);
    assert!(Mutex::new(&over, "x").try_lock().await.expect("asked again").is_none());
    over.settle().await;
    guard.unlock().await.expect("held");
    late.deliver();
    assert_eq!(direct.inspect("x").await.expect("works").holders, []);
}

/// G7: nor does a ticket that was removed from the queue, when its first request comes after that.
#[tokio::test]
async fn a_request_that_comes_late_is_barred_though_its_place_was_removed() {
    let Some(server) = private("late_removed", &[]) else { return };
    let (late, direct) = (Late::to(&server), open(server.url()).await.expect("opens"));
    let over = late.open("").await;
    let guard = Mutex::new(&direct, "x").lock().await.expect("works");
    late.keep_next(false);
    let lock = Mutex::new(&over, "x");
    let next = tokio::spawn(async move { lock.lock().await });
    let waiter = async |but: Option<TicketId>| {
        let waiters = direct.inspect("x").await.expect("works").waiters;
        waiters.iter().map(|waiter| waiter.id).find(|id| Some(*id) != but)
    };
    until("it waits", async || waiter(None).await.is_some()).await;
    let removed = waiter(None).await.expect("it waits");
    direct.force_unlock("x", removed, "test").await.expect("works").expect("it waited");
    until("it waits again", async || waiter(Some(removed)).await.is_some()).await;
    over.settle().await;
    guard.unlock().await.expect("held");
    next.await.expect("no panic").expect("its turn").unlock().await.expect("held");
    late.deliver();
    assert_eq!(direct.inspect("x").await.expect("works").holders, []);
}

/// G7: nor does one whose second request could not be sent, and which was given up.
#[tokio::test]
async fn a_request_that_comes_late_is_barred() {
    let Some(server) = private("late_enter", &[]) else { return };
    let (late, direct) = (Late::to(&server), open(server.url()).await.expect("opens"));
    let over = late.open("").await;
    let (name, ticket) = (Name::new("x").expect("fine"), ticket(7, Duration::from_secs(60)));
    late.keep_next(true);
    let entered = over.store().enter(&name, &ticket, &Arc::from(""), Enter::Queue).await;
    assert_eq!(entered.expect_err("nobody answers").kind(), ErrorKind::Unavailable);
    late.serve_again();
    until("it is given up", async || over.store().leave(&name, TicketId(7)).await.is_ok()).await;
    late.deliver();
    assert_eq!(direct.inspect("x").await.expect("works").holders, []);
}

/// G7: nor does one whose reply made no sense, so that it was another's, or nobody's.
#[tokio::test]
async fn a_request_whose_reply_makes_no_sense_is_barred() {
    let Some(server) = private("late_nonsense", &[]) else { return };
    let (late, direct) = (Late::to(&server), open(server.url()).await.expect("opens"));
    let over = late.open("").await;
    let (name, ticket) = (Name::new("x").expect("fine"), ticket(7, Duration::from_secs(60)));
    late.keep_and_say(1, ":7\r\n");
    let entered = over.store().enter(&name, &ticket, &Arc::from(""), Enter::Queue).await;
    assert_eq!(entered.expect_err("it is no answer").kind(), ErrorKind::Corrupt);
    assert!(!over.store().leave(&name, TicketId(7)).await.expect("works"), "it is not there yet");
    late.deliver();
    assert_eq!(direct.inspect("x").await.expect("works").holders, []);
}

/// G7: nor does one whose ticket was given up twice, because the first reply to that made no sense:
/// it need not have been barred by then.
#[tokio::test]
async fn a_request_that_comes_late_is_barred_by_the_departure_that_is_answered() {
    let Some(server) = private("late_twice", &[]) else { return };
    let (late, direct) = (Late::to(&server), open(server.url()).await.expect("opens"));
    let over = late.open("").await;
    let (name, ticket) = (Name::new("x").expect("fine"), ticket(7, Duration::from_secs(60)));
    late.keep_next(true);
    over.store().enter(&name, &ticket, &Arc::from(""), Enter::Queue).await.expect_err("no answer");
    let request = std::mem::take(&mut late.state.lock().expect("no panic").kept);
    late.serve_again();
    until("it is connected", async || over.inspect("x").await.is_ok()).await;
    late.keep_and_say(1, "*0\r\n");
    let left = over.store().leave(&name, TicketId(7)).await;
    assert_eq!(left.expect_err("it is no answer").kind(), ErrorKind::Corrupt);
    assert!(!over.store().leave(&name, TicketId(7)).await.expect("works"), "it is not there yet");
    late.state.lock().expect("no panic").kept = request;
    late.deliver();
    assert_eq!(direct.inspect("x").await.expect("works").holders, []);
}

/// G7: a try without a line is in doubt, too, so that its caller gives up what it may yet take.
#[tokio::test]
async fn a_try_without_a_line_that_comes_late_is_given_up() {
    let Some(server) = private("late_string_try", &[]) else { return };
    let late = Late::to(&server);
    for scheme in ["string", "redisson"] {
        let direct = server.open(&format!("?scheme={scheme}")).await;
        let over = late.open(&format!("?scheme={scheme}")).await;
        let (name, ticket) = (Name::new("x").expect("fine"), ticket(7, Duration::from_secs(60)));
        let guard = Mutex::new(&direct, "x").lock().await.expect("works");
        late.keep_next(false);
        let entered = over.store().enter(&name, &ticket, &Arc::from(""), Enter::Try).await;
        assert_eq!(entered.expect_err("nobody knows").kind(), ErrorKind::Unavailable, "{scheme}");
        guard.unlock().await.expect("held");
        late.deliver();
        assert!(over.store().leave(&name, ticket.id).await.expect("works"), "{scheme}");
        assert_eq!(direct.inspect("x").await.expect("works").holders, [], "{scheme}");
    }
}

/// A proxy that can stall one of its connections.
struct Stalling {
    address: SocketAddr,
    next: Next,
}

/// What the connection waits for that has the next call of a script, and what it says then.
type Next = Arc<Cell<Option<(Receiver<()>, Sender<()>)>>>;

impl Stalling {
    fn to(server: &Server) -> Stalling {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let (server, next) = (SocketAddr::from(([127, 0, 0, 1], server.port())), Next::default());
        let shared = Arc::clone(&next);
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let (mut server, next) =
                    (TcpStream::connect(server).expect("it listens"), Arc::clone(&shared));
                let mut replies = server.try_clone().expect("it is open");
                let mut back = client.try_clone().expect("it is open");
                thread::spawn(move || std::io::copy(&mut replies, &mut back));
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(size @ 1..) = client.read(&mut bytes) {
                        let script = bytes[..size].windows(7).any(|word| word == b"EVALSHA");
                        let waits =
                            if script { next.lock().expect("no panic").take() } else { None };
                        if let Some((gate, _)) = &waits {
                            let _ = gate.recv();
                        }
                        if server.write_all(&bytes[..size]).is_err() {
                            break;
                        }
                        drop(waits);
                    }
                });
            }
        });
        Stalling { address, next }
    }

    /// Stalls the connection that has the next call of a script.
    fn stall_next(&self) -> Stalled {
        let ((gate, waits), (passed, done)) = (channel(), channel());
        *self.next.lock().expect("no panic") = Some((waits, passed));
        Stalled { gate, done }
    }
}

/// A connection that is stalled.
struct Stalled {
    gate: Sender<()>,
    done: Receiver<()>,
}

impl Stalled {
    /// Lets the call that was stalled pass, and what is behind it.
    fn end(self) {
        drop(self.gate);
        self.done.recv().expect_err("it ends when the call has passed");
    }
}

/// G7: locks without a line cannot bar a ticket. A request is given up over the connection that it
/// was sent over, whichever handles send the two: it cannot arrive after that.
#[tokio::test]
async fn a_request_without_a_line_is_given_up_behind_it() {
    let Some(server) = private("late_string", &[]) else { return };
    let proxy = Stalling::to(&server);
    for scheme in ["string", "redisson"] {
        let direct = server.open(&format!("?scheme={scheme}")).await;
        let over = open(&format!("redis://{}?scheme={scheme}&timeout=30s", proxy.address)).await;
        let (mine, name) = (over.expect("opens"), Name::new("x").expect("fine"));
        let (own, other) = (mine.store(), mine.store().background_handle());
        let ticket = ticket(7, Duration::from_secs(60));
        for (enters, leaves) in [(own, &other), (&other, own), (&other, &other)] {
            let note = Arc::from("");
            // They are connected, and the server knows the scripts.
            for handle in [own, &other] {
                let before = Ticket { id: TicketId(8), ..ticket };
                handle.enter(&name, &before, &note, Enter::Try).await.expect("free");
                handle.leave(&name, before.id).await.expect("held");
            }
            let stalled = proxy.stall_next();
            let entering = enters.enter(&name, &ticket, &note, Enter::Try);
            let entered = tokio::time::timeout(Duration::from_millis(50), entering).await;
            entered.expect_err("it is stalled");
            let mut leaving = leaves.leave(&name, ticket.id);
            let left = tokio::time::timeout(Duration::from_millis(50), &mut leaving).await;
            stalled.end();
            assert!(left.is_err(), "{scheme}: it has overtaken the request");
            assert!(leaving.await.expect("works"), "{scheme}: the request is carried out first");
            assert_eq!(direct.inspect("x").await.expect("works").holders, [], "{scheme}");
        }
    }
}

/// A client over a proxy, one without, and the id of a holder of another library's, whose lock is
/// to be broken.
async fn holder(server: &Server) -> (Late, Client, TicketId) {
    let late = Late::to(server);
    let (direct, over) = (server.open(OPTIONS[1]).await, late.open(OPTIONS[1]).await);
    let _: String = server.query(&["SET", "lock:x", "first", "PX", "60000"]);
    let first = direct.inspect("x").await.expect("works").holders.remove(0).id;
    (late, over, first)
}

/// The reply to a look at that holder's lock.
const FIRST: &str = "*3\r\n$5\r\nfirst\r\n:60000\r\n$-1\r\n";

/// G8: the lock of another library's client has another holder by now than when it was looked at.
#[tokio::test]
async fn the_next_holder_is_not_removed_instead_of_the_one_that_was_named() {
    let Some(server) = private("late_holder", &[]) else { return };
    let (late, over, first) = holder(&server).await;
    let _: String = server.query(&["SET", "lock:x", "next", "PX", "60000"]);
    late.keep_and_say(1, FIRST);
    assert_eq!(over.force_unlock("x", first, "test").await.expect("works"), None);
    assert_eq!(server.query::<String>(&["GET", "lock:x"]), "next");
}

/// It was there when it was looked at, and not when it was asked for again: the request without a
/// reply may have removed it.
#[tokio::test]
async fn whether_a_lock_without_a_line_was_broken_is_not_guessed() {
    let Some(server) = private("half_broken_string", &[]) else { return };
    let (late, over, first) = holder(&server).await;
    let _: i64 = server.query(&["DEL", "lock:x"]);
    late.keep_and_say(2, FIRST);
    let error = over.force_unlock("x", first, "test").await.expect_err("nobody knows");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}
