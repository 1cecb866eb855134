//! A client of ZooKeeper: a session, and its requests.

use crate::config::Config;
use crate::connection::{Answer, Connection, Reply, State};
use crate::error::Error;
use crate::handshake::{Failure, SessionId, introduce};
use crate::jute::{Acl, Stat, Writer};
use crate::transport::op;
use crate::watch_registry::{Kind, Listener, TreeWatch, Wanted, Watch};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdline_base::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A session with the servers. Dropping this closes it.
///
/// Requests are carried out in the order in which these functions are called. A request is sent
/// when its [`Reply`] is first polled, or before that along with others: those made before any of
/// their replies is awaited are sent in one write.
///
/// # Errors
///
/// A reply may be the server's error; [`Error::ConnectionLoss`] if the connection broke before the
/// answer came, so that the outcome is unknown; [`Error::Garbled`] if the answer made no sense; or
/// the reason why the session is over ([`Error::is_over`]). The servers close the connection if a
/// request is longer than they accept (1 MiB by default), and the client does if an answer is
/// longer than 16 MiB: then all unanswered requests end with [`Error::ConnectionLoss`].
///
/// # Cancel safety
///
/// A reply may be dropped at any time. The request may be carried out all the same.
pub struct Client {
    connection: Arc<Connection>,
    /// The session's id.
    pub id: i64,
    /// How long the servers keep the session without hearing from us.
    pub length: Duration,
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Exists until it is deleted.
    Persistent = 0,
    /// Exists as long as the session.
    Ephemeral = 1,
    /// The same, with a number from the server appended to its name.
    EphemeralSequential = 3,
    /// Removed by the servers when its last child is gone.
    Container = 4,
}

/// The history of earlier attempts to get a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// Whether there has been a session, so that the kind of server need not be detected.
    pub reached: bool,
    /// The number of attempts since then in which a server accepted the connection, but gave no
    /// session.
    pub tries: u32,
}

/// How long an attempt has without an answer before the next server is asked, too.
const NEXT: Duration = Duration::from_millis(300);

impl Client {
    /// Opens a session with the first server that grants one; each is asked once. A connection that
    /// is silent for longer than `silence` is given up. [`Error::NoHosts`] means that all addresses
    /// refused the connection.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a session that it has opened expires.
    pub(crate) async fn connect(
        config: &Config,
        silence: Duration,
        past: Past,
    ) -> Result<Client, Error> {
        let mut hosts = config.servers.hosts.clone();
        fastrand::shuffle(&mut hosts);
        let new = &SessionId::new(config.session);
        let mut failure = Error::NoHosts;
        let (mut hosts, mut tries) = (hosts.iter(), FuturesUnordered::new());
        loop {
            // A silent server does not keep the next one from being asked.
            let first = tries.is_empty();
            let next = async {
                if !first {
                    clock::pause(NEXT).await;
                }
            };
            tokio::select! {
                biased;
                Some((host, outcome)) = tries.next() => match outcome {
                    Ok((transport, ident)) => {
                        let SessionId { id, length, .. } = ident;
                        let config = config.clone();
                        let connection = Connection::new(config, silence, transport, ident);
                        return Ok(Client { connection, id, length });
                    }
                    Err(Failure::Absent) => {}
                    Err(Failure::NoAddress) => {
                        if failure == Error::NoHosts {
                            failure = Error::NoAddress;
                        }
                    }
                    Err(Failure::Over(Error::AuthFailed)) => return Err(Error::AuthFailed),
                    Err(why) => {
                        tracing::debug!(%host, %why, "no session with ZooKeeper");
                        failure = match (failure, why) {
                            (known @ Error::UnexpectedServer(..), _) => known,
                            (_, Failure::Over(server @ Error::UnexpectedServer(..))) => server,
                            (_, Failure::Untrusted(why)) => Error::Untrusted(why),
                            _ => Error::ConnectionLoss,
                        };
                    }
                },
                () = next, if hosts.len() > 0 => {
                    let host = hosts.next().map_or("", String::as_str);
                    let attempt = introduce(config, host, silence, new, past);
                    tries.push(async move { (host, attempt.await) });
                }
                else => return Err(failure),
            }
        }
    }

    /// The state of the connection.
    pub fn states(&self) -> watch::Receiver<State> {
        self.connection.states()
    }

    fn ask<T>(
        &self,
        op: i32,
        body: Writer,
        read: fn(Result<Answer, Error>) -> Result<T, Error>,
    ) -> Reply<T> {
        self.connection.ask(op, body.0, None, read)
    }

    /// Creates a node, and returns its path, which for a sequential node includes the number.
    pub fn create(&self, path: &str, data: &[u8], mode: Mode, acl: Acl) -> Reply<(String, Stat)> {
        let op = if mode == Mode::Container { op::CREATE_CONTAINER } else { op::CREATE_2 };
        self.ask(op, creation(Writer::default(), path, data, mode, acl), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.text()?.to_owned(), body.stat()?))
        })
    }

    /// Creates a node without data, and its missing ancestors. The node may exist already.
    ///
    /// # Errors
    ///
    /// The error of the first node that could not be created.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the nodes may have been created.
    pub async fn mkdir(&self, path: &str, mode: Mode, acl: Acl) -> Result<(), Error> {
        // Go up to the first existing ancestor, and down again: an existing one may deny access.
        let mut end = path.len();
        loop {
            match self.create(&path[..end], &[], mode, acl).await {
                Ok(_) | Err(Error::NodeExists) if end == path.len() => return Ok(()),
                Ok(_) | Err(Error::NodeExists) => {
                    let next = path[end + 1..].find('/');
                    end = next.map_or(path.len(), |at| end + 1 + at);
                }
                Err(Error::NoNode) => match path[..end].rfind('/') {
                    None | Some(0) => return Err(Error::NoNode),
                    Some(at) => end = at,
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes a node, whatever its version.
    pub fn delete(&self, path: &str) -> Reply<()> {
        self.ask(op::DELETE, Writer::default().text(path).int(ANY), |answer| answer.map(drop))
    }

    /// Sets a node's data, whatever its version.
    pub fn set_data(&self, path: &str, data: &[u8]) -> Reply<()> {
        let body = Writer::default().text(path).bytes(data).int(ANY);
        self.ask(op::SET_DATA, body, |answer| answer.map(drop))
    }

    /// Reads a node's data and stat.
    pub fn get_data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.ask(op::GET_DATA, Writer::default().text(path).bool(false), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.bytes()?.to_vec(), body.stat()?))
        })
    }

    /// Reads a node's data, and sets a watch on it.
    pub fn get_and_watch_data(&self, path: &str) -> Reply<(Vec<u8>, Watch)> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Waiter(Kind::Data, path.to_owned()));
        self.connection.ask(op::GET_DATA, body.0, watch, |answer| {
            let mut answer = answer?;
            let data = answer.body().bytes()?.to_vec();
            Ok((data, answer.watch.take().ok_or(Error::Garbled)?))
        })
    }

    /// Reads a node's data, and sets a watch on it whose event goes to this listener, unless the
    /// session ends before. For very many nodes: such a watch has no task or channel of its own.
    pub fn get_and_tell_data(&self, path: &str, listener: &Listener) -> Reply<Vec<u8>> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Listener(path.to_owned(), listener.clone()));
        self.connection
            .ask(op::GET_DATA, body.0, watch, |answer| Ok(answer?.body().bytes()?.to_vec()))
    }

    /// Reads a node's stat, if the node exists.
    pub fn check_stat(&self, path: &str) -> Reply<Option<Stat>> {
        self.ask(op::EXISTS, Writer::default().text(path).bool(false), |answer| match answer {
            Ok(answer) => answer.body().stat().map(Some),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Sets a watch on a node's data that ends with the connection, as by
    /// [`Event::Over`](crate::Event::Over). While it is pending, the node is the same one, and
    /// unchanged.
    pub fn watch_connected(&self, path: &str) -> Reply<Watch> {
        let watch = Some(Wanted::Waiter(Kind::Connection, path.to_owned()));
        self.connection.ask(
            op::EXISTS,
            Writer::default().text(path).bool(true).0,
            watch,
            |answer| answer?.watch.ok_or(Error::Garbled),
        )
    }

    /// Lists the names of a node's children.
    pub fn list_children(&self, path: &str) -> Reply<Vec<String>> {
        let body = Writer::default().text(path).bool(false);
        self.ask(op::GET_CHILDREN, body, |answer| answer?.body().texts())
    }

    /// Lists the paths of all ephemeral nodes of this session, as our server has them. Servers
    /// before 3.6 do not support this request, and close the connection.
    pub fn list_ephemerals(&self) -> Reply<Vec<String>> {
        self.ask(op::GET_EPHEMERALS, Writer::default().text("/"), |answer| answer?.body().texts())
    }

    /// Lists a node's children, and reads its stat.
    pub fn get_children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.ask(op::GET_CHILDREN_2, Writer::default().text(path).bool(false), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.texts()?, body.stat()?))
        })
    }

    /// Sets a watch on the list of a node's children.
    pub fn watch_children(&self, path: &str) -> Reply<Watch> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Waiter(Kind::Children, path.to_owned()));
        self.connection
            .ask(op::GET_CHILDREN, body.0, watch, |answer| answer?.watch.ok_or(Error::Garbled))
    }

    /// Sets a watch on a node, which need not exist, and all nodes below it. Servers before 3.6 do
    /// not support this request, and close the connection. A server keeps notifying until the
    /// connection ends.
    ///
    /// # Errors
    ///
    /// The server's, or that the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the watch may have been set.
    pub async fn watch_tree(&self, path: &str) -> Result<TreeWatch, Error> {
        // Registered before the answer: an event may come right after it.
        let watch = self.connection.listen(path);
        let body = Writer::default().text(path).int(PERSISTENT_RECURSIVE);
        self.ask(op::ADD_WATCH, body, |answer| answer.map(drop)).await?;
        Ok(watch)
    }

    /// Lets the server catch up with its leader.
    pub fn sync(&self, path: &str) -> Reply<()> {
        self.ask(op::SYNC, Writer::default().text(path), |answer| answer.map(drop))
    }

    /// Checks, in a transaction of its own, that a node exists. The inner result is the
    /// transaction's, on which a quorum has agreed.
    pub fn check(&self, path: &str) -> Reply<Result<(), Error>> {
        let body = part(Writer::default(), op::CHECK).text(path).int(ANY);
        self.multi(body)
    }

    /// Creates a node and deletes another, or does neither: then the inner result says why.
    pub fn replace(
        &self,
        new: &str,
        data: &[u8],
        mode: Mode,
        acl: Acl,
        old: &str,
    ) -> Reply<Result<(), Error>> {
        let body = creation(part(Writer::default(), op::CREATE), new, data, mode, acl);
        self.multi(part(body, op::DELETE).text(old).int(ANY))
    }

    /// Deletes a node and sets the data of another node that has this version, or does neither:
    /// then the inner result says why.
    pub fn delete_and_set(
        &self,
        old: &str,
        path: &str,
        data: &[u8],
        version: i32,
    ) -> Reply<Result<(), Error>> {
        let body = part(Writer::default(), op::SET_DATA).text(path).bytes(data).int(version);
        self.multi(part(body, op::DELETE).text(old).int(ANY))
    }

    /// Runs a transaction.
    fn multi(&self, parts: Writer) -> Reply<Result<(), Error>> {
        self.ask(op::MULTI, end(parts), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            // If one part is refused, all are: those before it have the code 0.
            loop {
                let (kind, done, _code) = (body.int()?, body.bool()?, body.int()?);
                match (kind, done) {
                    (_, true) => return Err(Error::Garbled),
                    (REFUSED, _) => {}
                    _ => return Ok(Ok(())),
                }
                if let Some(why) = Error::of(body.int()?) {
                    return Ok(Err(why));
                }
            }
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.close();
    }
}

/// The mode of a persistent watch on a node and all nodes below it.
const PERSISTENT_RECURSIVE: i32 = 1;
/// Any version of a node.
const ANY: i32 = -1;
/// The type of a refused part of a transaction, and of the end of all parts.
const REFUSED: i32 = -1;

fn creation(before: Writer, path: &str, data: &[u8], mode: Mode, acl: Acl) -> Writer {
    before.text(path).bytes(data).acl(acl).int(mode as i32)
}

/// Appends the header of a transaction's part.
fn part(before: Writer, op: i32) -> Writer {
    before.int(op).bool(false).int(-1)
}

fn end(parts: Writer) -> Writer {
    parts.int(REFUSED).bool(true).int(-1)
}
