//! Calls to the cluster: connections, failover, time limits, login.
//!
//! Every call has a time limit for each member. After a failure the next member is tried at once,
//! and stays the chosen one. (A channel that balances by itself keeps trying a dead member with
//! every n-th call.) All our calls may be repeated, and the answer says whether an earlier attempt
//! may have been carried out, too.

use crate::connection::{self, MemberConnection, PendingWrite, StreamReader, StreamWriter};
use crate::error::{self, Verdict};
use crate::grpc::{self, Status};
use crate::proto::{self, Headed};
use bytes::Bytes;
use holdline_base::clock;
use holdline_base::net::Tls;
use holdline_base::servers::Servers;
use holdline_base::sync::Mutex;
use holdline_base::url::Secret;
use holdline_base::{Error, ErrorKind, Result};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri};
use prost::Message;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::runtime;
use tokio::sync::{Notify, watch};

/// A client of one cluster, to be shared by all threads. Its calls need a Tokio runtime with timers
/// and I/O. Each runtime has its own connections, so that a blocked one does not delay the others.
pub struct Cluster {
    /// The cluster's name in messages.
    name: String,
    /// `host:port` of the members.
    hosts: Vec<String>,
    /// The members' authorities, as requests name them.
    members: Vec<Authority>,
    tls: Option<Tls>,
    /// The member in use, until it fails.
    chosen: AtomicUsize,
    /// Notified when another member is chosen.
    turned: Notify,
    connections: Mutex<HashMap<(runtime::Id, usize), Coming<MemberConnection>>>,
    login: Option<(String, Secret)>,
    token: Arc<Mutex<Option<HeaderValue>>>,
    /// The last login on each connection, perhaps still in progress.
    logins: Mutex<HashMap<(runtime::Id, usize), Coming<HeaderValue>>>,
    /// Whether any member has answered.
    reached: AtomicBool,
    progress: Mutex<Progress>,
}

/// How far a cluster has come, by its members' reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of times that it has lost data.
    pub(crate) losses: u64,
    /// The latest leadership term.
    pub(crate) term: u64,
    /// The latest revision.
    revision: i64,
}

/// A connection or a token, there or in progress, shared by all callers that wait for it. Its task
/// continues when a caller's time is up.
type Coming<T> = watch::Receiver<Option<std::result::Result<T, Status>>>;

/// Waits for a connection or a token.
async fn arrival<T: Clone>(mut coming: Coming<T>) -> std::result::Result<T, Status> {
    let done = coming.wait_for(Option::is_some).await;
    let gone = || Status::unsent("the runtime that was connecting is gone");
    done.map_err(|_| gone())?.clone().ok_or_else(gone)?
}

/// Whether a connection was made and has ended, as with its runtime.
fn is_over(connecting: &Coming<MemberConnection>) -> bool {
    matches!(&*connecting.borrow(), Some(Ok(connection)) if connection.is_over())
}

/// An answer to a call.
#[derive(Debug)]
pub struct Answer<R> {
    /// The message.
    pub body: R,
    /// Whether an earlier attempt may have been carried out as well.
    pub repeated: bool,
}

/// How many rounds over all members are tried before the caller gets an error.
const ROUNDS: usize = 3;
/// The time limit of a login, which a server does slowly on purpose.
const LOGIN: Duration = Duration::from_secs(5);
/// The number of connections (some for runtimes that may be gone) at which all are dropped.
const KEPT: usize = 64;

impl Cluster {
    /// Creates a client of these servers, which messages call `name`. Members are connected to on
    /// first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there is no host, or one that cannot be named in a request.
    pub fn new(servers: Servers, tls: Option<Tls>, name: impl Into<String>) -> Result<Self> {
        let (Servers { hosts, user, password, .. }, name) = (servers, name.into());
        let members = hosts.iter().map(|host| {
            host.parse().map_err(|error: http::uri::InvalidUri| {
                let message = format!("{host} in {name} is not a host");
                Error::because(ErrorKind::Invalid, message, error)
            })
        });
        let members = members.collect::<Result<Vec<Authority>>>()?;
        if members.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("{name} names no host")));
        }
        Ok(Cluster {
            // Random, so that not all clients use the first member.
            chosen: AtomicUsize::new(fastrand::usize(..members.len())),
            turned: Notify::new(),
            tls,
            name,
            hosts,
            members,
            connections: Mutex::default(),
            login: user.zip(password),
            token: Arc::default(),
            logins: Mutex::default(),
            reached: AtomicBool::new(false),
            progress: Mutex::default(),
        })
    }

    fn connections(
        &self,
    ) -> MutexGuard<'_, HashMap<(runtime::Id, usize), Coming<MemberConnection>>> {
        self.connections.lock()
    }

    /// The number of members.
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// The member in use.
    pub(crate) fn chosen(&self) -> usize {
        self.chosen.load(Ordering::Relaxed)
    }

    /// Switches to the next member after a failure, unless another caller has done so already.
    pub(crate) fn avoid(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.chosen.compare_exchange(member, next, done, failed).is_ok() {
            self.turned.notify_waiters();
        }
        let mut connections = self.connections();
        let left: Vec<_> = connections.extract_if(|(_, at), _| *at == member).collect();
        drop(connections);
        drop(left);
    }

    /// Waits until another member than this one is chosen.
    pub(crate) async fn turned(&self, member: usize) {
        loop {
            let mut turned = pin!(self.turned.notified());
            turned.as_mut().enable();
            if self.chosen() != member {
                return;
            }
            turned.await;
        }
    }

    /// Whether this answer is from the latest known leadership term. An answer from an older term
    /// may come from a leader that has not noticed its replacement.
    pub(crate) fn is_current(&self, header: proto::Header) -> bool {
        let mut progress = self.progress.lock();
        progress.revision = progress.revision.max(header.revision);
        progress.term = progress.term.max(header.raft_term);
        progress.term == header.raft_term
    }

    /// How far the cluster has come, as far as is known.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    /// The latest known leadership term.
    pub fn term(&self) -> u64 {
        self.progress().term
    }

    /// Compares the answer of a majority with what was known when it was asked. If the answer is
    /// behind that, this is a different cluster, or one that has lost data, and what it reports
    /// counts from now on. Returns the progress at which the request was carried out.
    fn compare(&self, known: Progress, header: proto::Header) -> Progress {
        let proto::Header { raft_term: term, revision, .. } = header;
        if term >= known.term && revision >= known.revision {
            // A later term may have begun after the request was carried out.
            return Progress { term: if known.term == 0 { term } else { known.term }, ..known };
        }
        let (progress, is_first) = {
            let mut progress = self.progress.lock();
            let is_first = progress.losses == known.losses;
            if is_first {
                *progress = Progress { losses: known.losses + 1, term, revision };
            }
            (*progress, is_first)
        };
        if is_first {
            // Without the mutex: a subscriber is a caller's code.
            tracing::warn!(store = %self.name, "etcd has gone back: it has lost its data");
        }
        progress
    }

    /// Sends a request, with this time limit for each member.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) when each member has failed several times, or the
    /// database is full: a retry may succeed. [`Denied`](ErrorKind::Denied) if the user, the
    /// password or the rights do not suffice; [`Invalid`](ErrorKind::Invalid) if what answers is
    /// not etcd; [`Unsupported`](ErrorKind::Unsupported) if it is too old to know the call;
    /// [`Corrupt`](ErrorKind::Corrupt) if etcd refuses the request for another reason. The cause is
    /// etcd's message.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be carried out.
    pub async fn call<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        limit: Duration,
    ) -> Result<Answer<R>>
    where
        Q: Message,
        R: Message + Headed + Default,
    {
        self.send(path, request, limit, None).await
    }

    /// Sends a request that only a majority can answer. Also returns the progress at which it was
    /// carried out.
    pub(crate) async fn call_majority<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        limit: Duration,
    ) -> Result<(R, Progress)>
    where
        Q: Message,
        R: Message + Headed + Default,
    {
        let known = self.progress();
        let answer = self.call::<Q, R>(path, request, limit).await?.body;
        let header = answer.header();
        if header.revision <= 0 || header.raft_term == 0 {
            let what = "an answer without a revision, as from a server that only speaks etcd's \
                        protocol (kine)";
            let status = Status::new(grpc::Code::Foreign, what);
            return Err(error::error(&self.name, &status, true));
        }
        let progress = self.compare(known, header);
        Ok((answer, progress))
    }

    /// Sends a request that writes a key. `pending` learns its outcome, even if the future is
    /// dropped.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call); `pending` is kept until the answer has come, or none is expected.
    pub async fn write(
        &self,
        txn: &proto::Txn,
        limit: Duration,
        pending: Arc<dyn PendingWrite>,
    ) -> Result<Answer<proto::TxnAnswer>> {
        self.send(proto::TXN, txn, limit, Some(&pending)).await
    }

    async fn send<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        limit: Duration,
        pending: Option<&Arc<dyn PendingWrite>>,
    ) -> Result<Answer<R>>
    where
        Q: Message,
        R: Message + Headed + Default,
    {
        let frame = grpc::frame(request);
        let (mut repeated, mut logins) = (false, 0);
        for attempt in 1.. {
            let member = self.chosen();
            let ask = pin!(self.ask(path, frame.clone(), member, pending));
            let status = match clock::timeout(limit, ask).await {
                Some(Ok(body)) => {
                    self.is_current(Headed::header(&body));
                    self.reached.store(true, Ordering::Relaxed);
                    return Ok(Answer { body, repeated });
                }
                Some(Err(status)) => {
                    if error::may_be_done(&status)
                        && let Some(pending) = pending
                    {
                        pending.lose();
                    }
                    status
                }
                None => Status::late("it did not answer in time"),
            };
            match error::judge(&status) {
                Verdict::Login if logins < 2 && self.login.is_some() => {
                    logins += 1; // the token is forgotten
                    continue;
                }
                Verdict::Elsewhere => self.avoid(member),
                Verdict::Later | Verdict::Login | Verdict::Final => {}
            }
            repeated |= error::may_be_done(&status);
            let again = matches!(error::judge(&status), Verdict::Elsewhere | Verdict::Later);
            // Some errors will not change on a retry.
            let plain = matches!(status.code, grpc::Code::Foreign | grpc::Code::Silent);
            let rounds = if plain { 1 } else { ROUNDS };
            if !again || attempt >= rounds * self.members.len() {
                let reached = self.reached.load(Ordering::Relaxed);
                return Err(error::error(&self.name, &status, reached));
            }
            if attempt % self.members.len() == 0 {
                // All members failed: most likely, an election is in progress.
                clock::pause(Duration::from_millis(fastrand::u64(50..150))).await;
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn ask<R>(
        &self,
        path: &'static str,
        body: Bytes,
        member: usize,
        pending: Option<&Arc<dyn PendingWrite>>,
    ) -> std::result::Result<R, Status>
    where
        R: Message + Default,
    {
        let connection = self.connection(member).await?;
        let (request, token) = self.request(path, &connection, member).await?;
        let answer = connection.unary(request, body, pending.cloned()).await;
        let refused = |status: &Status| error::judge(status) == Verdict::Login;
        if answer.as_ref().is_err_and(refused) {
            self.forget(token.as_ref());
        }
        answer
    }

    /// Opens a stream of messages in both directions with one member. Also returns its token, for
    /// [`forget`](Self::forget).
    pub(crate) async fn stream(
        &self,
        path: &'static str,
        member: usize,
    ) -> std::result::Result<(StreamWriter, StreamReader, Option<HeaderValue>), Status> {
        let connection = self.connection(member).await?;
        let (request, token) = self.request(path, &connection, member).await?;
        let (writer, reader) = connection.stream(request).await?;
        Ok((writer, reader, token))
    }

    /// The connection to a member, for this runtime.
    async fn connection(&self, member: usize) -> std::result::Result<MemberConnection, Status> {
        let connecting = self.connecting(member);
        if let Some(done) = &*connecting.borrow() {
            return done.clone();
        }
        arrival(connecting).await
    }

    fn connecting(&self, member: usize) -> Coming<MemberConnection> {
        let key = (runtime::Handle::current().id(), member);
        let _over: Vec<_>; // dropped after the mutex is released
        let mut connections = self.connections();
        if let Some(connecting) = connections.get(&key) {
            return connecting.clone();
        }
        // Each keeps files of its runtime open, even if that is gone.
        _over = connections.extract_if(|_, connecting| is_over(connecting)).collect();
        if connections.len() >= KEPT {
            connections.clear();
        }
        let (tell, told) = watch::channel(None);
        let (host, tls) = (self.hosts[member].clone(), self.tls.clone());
        tokio::spawn(async move {
            let connection = MemberConnection::connect(&host, tls.as_ref()).await;
            let _ = tell.send(Some(connection));
        });
        connections.insert(key, told.clone());
        told
    }

    /// A request with its headers, and the token among them.
    async fn request(
        &self,
        path: &'static str,
        connection: &MemberConnection,
        member: usize,
    ) -> std::result::Result<(Request<()>, Option<HeaderValue>), Status> {
        let mut request = self.bare(path, member);
        // A member without a leader should say so, and not keep us waiting.
        request.headers_mut().insert("hasleader", HeaderValue::from_static("true"));
        let Some(login) = &self.login else { return Ok((request, None)) };
        let token = match self.token() {
            Some(token) => token,
            None => arrival(self.logging_in(login, connection, member)).await?,
        };
        request.headers_mut().insert("token", token.clone());
        Ok((request, Some(token)))
    }

    fn bare(&self, path: &'static str, member: usize) -> Request<()> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(self.members[member].clone());
        parts.path_and_query = Some(PathAndQuery::from_static(path));
        connection::request(Uri::from_parts(parts).expect("all three parts are there"))
    }

    /// The login on this connection that is in progress, or a new one: calls must not log in one by
    /// one.
    fn logging_in(
        &self,
        (name, Secret(password)): &(String, Secret),
        connection: &MemberConnection,
        member: usize,
    ) -> Coming<HeaderValue> {
        let key = (runtime::Handle::current().id(), member);
        let mut logins = self.logins.lock();
        if let Some(token) = self.token() {
            return watch::channel(Some(Ok(token))).1; // it has come since the caller looked
        }
        if let Some(login) = logins.get(&key).filter(|login| login.borrow().is_none()) {
            return login.clone();
        }
        if logins.len() >= KEPT {
            logins.clear();
        }
        let auth = proto::Auth { name: name.clone(), password: password.clone() };
        let request = self.bare(proto::AUTHENTICATE, member);
        let (connection, place) = (connection.clone(), Arc::clone(&self.token));
        let (tell, told) = watch::channel(None);
        tokio::spawn(async move {
            let login = pin!(log_in(&connection, request, &auth));
            let late = || Status::late("it did not answer a login in time");
            let token = clock::timeout(LOGIN, login).await.unwrap_or_else(|| Err(late()));
            if let Ok(token) = &token {
                *place.lock() = Some(token.clone());
            }
            let _ = tell.send(Some(token));
        });
        logins.insert(key, told.clone());
        told
    }

    fn token(&self) -> Option<HeaderValue> {
        self.token.lock().clone()
    }

    /// Makes the next request log in again, unless there is another token than this refused one.
    pub(crate) fn forget(&self, refused: Option<&HeaderValue>) {
        let mut token = self.token.lock();
        if token.as_ref() == refused {
            *token = None;
        }
    }
}

async fn log_in(
    connection: &MemberConnection,
    request: Request<()>,
    auth: &proto::Auth,
) -> std::result::Result<HeaderValue, Status> {
    let answer: proto::AuthAnswer = connection.unary(request, grpc::frame(auth), None).await?;
    let mut token = HeaderValue::try_from(answer.token)
        .map_err(|_| Status::new(grpc::Code::Internal, "its token for us is not one"))?;
    token.set_sensitive(true);
    Ok(token)
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn a_cluster_has_a_host() {
        let error = Cluster::new(Servers::default(), None, "etcd").expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    /// It is no sign that the cluster has lost its data: all leases would be given up for that.
    #[tokio::test]
    async fn an_answer_without_a_header_proves_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let host = listener.local_addr().expect("it has one").to_string();
        let serving = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.expect("it connects");
            let mut server = h2::server::handshake(socket).await.expect("HTTP/2");
            while let Some(Ok((_, mut respond))) = server.accept().await {
                let head = http::Response::new(());
                let mut body = respond.send_response(head, false).expect("it is open");
                let empty = Bytes::from_static(&[0; 5]);
                body.send_data(empty, false).expect("it is open");
                let good = ("grpc-status".parse().expect("a name"), HeaderValue::from(0));
                body.send_trailers([good].into_iter().collect()).expect("it is open");
            }
        });
        let servers = Servers { hosts: vec![host], ..<_>::default() };
        let cluster = Cluster::new(servers, None, "etcd").expect("a good host");
        cluster.is_current(proto::Header { revision: 10, raft_term: 5, ..<_>::default() });
        let (known, limit) = (cluster.progress(), Duration::from_secs(30));
        let range = proto::Range::default();
        let answer = cluster.call_majority::<_, proto::RangeAnswer>(proto::RANGE, &range, limit);
        assert!(answer.await.expect_err("it is empty").retryable());
        assert_eq!(cluster.progress(), known);
        serving.abort();
    }

    #[test]
    fn a_majority_that_is_behind_has_lost_data() {
        let servers = Servers { hosts: vec!["host:1".to_owned()], ..<_>::default() };
        let cluster = Cluster::new(servers, None, "etcd").expect("a good host");
        let header = |raft_term, revision| proto::Header { revision, raft_term, ..<_>::default() };
        let answered = |known, header| {
            cluster.is_current(header);
            let Progress { losses, term, .. } = cluster.compare(known, header);
            (losses, term)
        };
        let ask = |header| answered(cluster.progress(), header);
        assert_eq!(ask(header(5, 10)), (0, 5), "the first answer tells the term");
        assert_eq!(ask(header(6, 10)), (0, 5), "it may have begun since");
        let (old, late) = (cluster.progress(), header(6, 11));
        assert_eq!(ask(header(6, 12)), (0, 6));
        assert_eq!(answered(old, late), (0, 6), "nothing later was known when it was asked");
        let before = cluster.progress();
        assert_eq!(ask(header(6, 3)), (1, 6), "an older revision");
        assert_eq!(answered(before, header(6, 3)), (1, 6), "it is counted once");
        assert_eq!(ask(header(6, 4)), (1, 6), "it counts from there");
        assert_eq!(ask(header(2, 9)), (2, 2), "an older term");
        assert!(!cluster.is_current(header(1, 9)) && cluster.is_current(header(2, 9)));
    }
}
