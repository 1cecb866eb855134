//! A client of ZooKeeper: a session, and what can be asked on it.
//!
//! What is asked is carried out in the order in which these functions are called; what is called
//! together, before any of the replies is awaited, goes out in one write. A reply may be dropped at
//! any time.

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

/// A session with the servers. It is closed when this is dropped.
pub struct Client {
    connection: Arc<Connection>,
    /// The session's number.
    pub id: i64,
    /// How long the servers keep it without hearing of us.
    pub length: Duration,
}

/// What kind of node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There until it is deleted.
    Persistent = 0,
    /// There as long as the session.
    Ephemeral = 1,
    /// The same, with the server's number behind its name.
    EphemeralSequential = 3,
    /// Removed by the servers when its last child is gone.
    Container = 4,
}

/// What is known from earlier tries to get a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// There has been a session: what listens there need not be found out.
    pub reached: bool,
    /// The number of tries since then in which a server took the call, and gave no session.
    pub tries: u32,
}

/// After this time without an answer the next server is asked, too.
const NEXT: Duration = Duration::from_millis(300);

impl Client {
    /// A new session, of the first server that gives one; each is asked once. A connection that is
    /// silent for longer than `silence` is given up. [`Error::NoHosts`] is that all addresses
    /// refused the connection.
    ///
    /// # Cancel safety
    ///
    /// A session that was made and that nobody knows of ends by itself.
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
            // One that is silent does not keep the next one from being asked.
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
                            (known @ Error::Stranger(..), _) => known,
                            (_, Failure::Over(stranger @ Error::Stranger(..))) => stranger,
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

    /// How it goes with the connection.
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

    /// Makes a node, and tells its path, which for a sequential one has the number behind it.
    pub fn create(&self, path: &str, data: &[u8], mode: Mode, acl: Acl) -> Reply<(String, Stat)> {
        let op = if mode == Mode::Container { op::CREATE_CONTAINER } else { op::CREATE_2 };
        self.ask(op, creation(Writer::default(), path, data, mode, acl), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.text()?.to_owned(), body.stat()?))
        })
    }

    /// Makes a node without data, and those above it that are missing. It may be there.
    ///
    /// # Errors
    ///
    /// That of the first node that could not be made.
    ///
    /// # Cancel safety
    ///
    /// Some of the nodes may be there if the future is dropped.
    pub async fn mkdir(&self, path: &str, mode: Mode, acl: Acl) -> Result<(), Error> {
        // Up to the first that is there, and down again: what is there need not let us in.
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

    /// A node's data, and what is to be told of it.
    pub fn get_data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.ask(op::GET_DATA, Writer::default().text(path).bool(false), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.bytes()?.to_vec(), body.stat()?))
        })
    }

    /// A node's data, and a watch over it.
    pub fn get_and_watch_data(&self, path: &str) -> Reply<(Vec<u8>, Watch)> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Waiter(Kind::Data, path.to_owned()));
        self.connection.ask(op::GET_DATA, body.0, watch, |answer| {
            let mut answer = answer?;
            let data = answer.body().bytes()?.to_vec();
            Ok((data, answer.watch.take().ok_or(Error::Garbled)?))
        })
    }

    /// A node's data, and a watch over it whose event is told to this listener, unless the session
    /// is over before. For very many nodes: such a watch has no task and no channel of its own.
    pub fn get_and_tell_data(&self, path: &str, listener: &Listener) -> Reply<Vec<u8>> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Listener(path.to_owned(), listener.clone()));
        self.connection
            .ask(op::GET_DATA, body.0, watch, |answer| Ok(answer?.body().bytes()?.to_vec()))
    }

    /// What is to be told of a node, if it is there.
    pub fn check_stat(&self, path: &str) -> Reply<Option<Stat>> {
        self.ask(op::EXISTS, Writer::default().text(path).bool(false), |answer| match answer {
            Ok(answer) => answer.body().stat().map(Some),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// The names of a node's children.
    pub fn list_children(&self, path: &str) -> Reply<Vec<String>> {
        let body = Writer::default().text(path).bool(false);
        self.ask(op::GET_CHILDREN, body, |answer| answer?.body().texts())
    }

    /// The paths of all ephemeral nodes of this session, as our server has them. Servers before 3.6
    /// do not know this request.
    pub fn list_ephemerals(&self) -> Reply<Vec<String>> {
        self.ask(op::GET_EPHEMERALS, Writer::default().text("/"), |answer| answer?.body().texts())
    }

    /// A node's children, and what is to be told of itself.
    pub fn get_children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.ask(op::GET_CHILDREN_2, Writer::default().text(path).bool(false), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            Ok((body.texts()?, body.stat()?))
        })
    }

    /// A watch over which children a node has.
    pub fn watch_children(&self, path: &str) -> Reply<Watch> {
        let body = Writer::default().text(path).bool(true);
        let watch = Some(Wanted::Waiter(Kind::Children, path.to_owned()));
        self.connection
            .ask(op::GET_CHILDREN, body.0, watch, |answer| answer?.watch.ok_or(Error::Garbled))
    }

    /// A watch over a node, which need not be there, and all below it. Servers before 3.6 do not
    /// know this request. A server goes on telling until the connection ends.
    ///
    /// # Cancel safety
    ///
    /// The watch may be set when the future is dropped.
    pub async fn watch_tree(&self, path: &str) -> Result<TreeWatch, Error> {
        // From before the answer on: an event may be right behind it.
        let watch = self.connection.listen(path);
        let body = Writer::default().text(path).int(PERSISTENT_RECURSIVE);
        self.ask(op::ADD_WATCH, body, |answer| answer.map(drop)).await?;
        Ok(watch)
    }

    /// Lets the server catch up with its leader.
    pub fn sync(&self, path: &str) -> Reply<()> {
        self.ask(op::SYNC, Writer::default().text(path), |answer| answer.map(drop))
    }

    /// Checks in a transaction of its own that a node is there.
    pub fn check(&self, path: &str) -> Reply<Result<(), Error>> {
        let body = part(Writer::default(), op::CHECK).text(path).int(ANY);
        self.multi(body)
    }

    /// Makes a node and deletes another, or neither.
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

    /// Deletes a node and sets the data of another that has this version, or neither.
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

    /// A transaction. The inner result is what a quorum has agreed on.
    fn multi(&self, parts: Writer) -> Reply<Result<(), Error>> {
        self.ask(op::MULTI, end(parts), |answer| {
            let answer = answer?;
            let mut body = answer.body();
            // If one part is refused, all are: those before it with 0 for a code.
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

/// The mode of a watch that stays, over a node and all below it.
const PERSISTENT_RECURSIVE: i32 = 1;
/// Whatever version a node has.
const ANY: i32 = -1;
/// The kind of a part of a transaction that was refused, and of the end of all parts.
const REFUSED: i32 = -1;

fn creation(before: Writer, path: &str, data: &[u8], mode: Mode, acl: Acl) -> Writer {
    before.text(path).bytes(data).acl(acl).int(mode as i32)
}

/// Begins a part of a transaction.
fn part(before: Writer, op: i32) -> Writer {
    before.int(op).bool(false).int(-1)
}

fn end(parts: Writer) -> Writer {
    parts.int(REFUSED).bool(true).int(-1)
}
