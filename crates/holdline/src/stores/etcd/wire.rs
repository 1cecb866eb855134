//! Calls to the cluster: connections, failover, time limits, logging in.
//!
//! Every call has a time limit of its own, for one member; after a failure the next member is
//! tried at once, and stays the chosen one. (A channel that balances by itself goes on trying a
//! dead member with every n-th call.) All our calls may be repeated, and the answer says whether an
//! earlier try may have been carried out, too.

use super::address::{Address, Secret};
use super::fault::{self, Verdict};
use super::proto::{self, Headed};
use crate::error::Result;
use prost::Message;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The way to one cluster. Shared by the caller's threads, the keeper's and our own: each
/// runtime has connections of its own, so that one that is blocked holds up nobody else.
pub(super) struct Wire {
    pub(super) address: Address,
    endpoints: Vec<Endpoint>,
    /// The member that is used until it fails.
    chosen: AtomicUsize,
    channels: Mutex<HashMap<(runtime::Id, usize), Channel>>,
    login: Option<(String, Secret)>,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// The newest term of leadership that any member has told of.
    term: AtomicU64,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer<R> {
    pub(super) body: R,
    /// The first try may have been carried out as well as the one that was answered.
    pub(super) repeated: bool,
}

/// How many rounds of all members are tried before the caller is told.
const ROUNDS: usize = 3;
/// A line of ten thousand, with room to spare.
const LARGEST: usize = 64 << 20;
/// So many connections are kept for runtimes that may be gone, before all are forgotten.
const KEPT: usize = 64;

impl Wire {
    pub(super) fn new(address: Address) -> Result<Self> {
        let endpoints = address.hosts.iter().map(|host| endpoint(&address, host));
        let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
        let login = address.user.clone().zip(address.password.clone());
        Ok(Wire {
            // Not all clients on the first member.
            chosen: AtomicUsize::new(fastrand::usize(..endpoints.len())),
            address,
            endpoints,
            channels: Mutex::default(),
            login,
            token: Mutex::default(),
            term: AtomicU64::new(0),
        })
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<(runtime::Id, usize), Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which member is used now.
    pub(super) fn chosen(&self) -> usize {
        self.chosen.load(Ordering::Relaxed)
    }

    /// Turns away from a member that failed, unless somebody has done so already.
    pub(super) fn avoid(&self, member: usize) {
        let next = (member + 1) % self.endpoints.len();
        let _ = self.chosen.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
        self.channels().retain(|(_, at), _| *at != member);
    }

    /// Whether this answer is from the newest leadership that we know of. One from an older one
    /// may be that of a leader who has not noticed yet that it was replaced.
    pub(super) fn is_current(&self, header: proto::Header) -> bool {
        self.term.fetch_max(header.raft_term, Ordering::Relaxed) <= header.raft_term
    }

    /// Asks, with so much time for each member.
    pub(super) async fn call<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        limit: Duration,
    ) -> Result<Answer<R>>
    where
        Q: Message + Clone + 'static,
        R: Message + Headed + Default + 'static,
    {
        let (mut repeated, mut logins) = (false, 0);
        for attempt in 1.. {
            let member = self.chosen();
            let one = tokio::time::timeout(limit, self.ask(path, request.clone(), member));
            let status = match one.await {
                Ok(Ok(body)) => {
                    self.is_current(Headed::header(&body));
                    return Ok(Answer { body, repeated });
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("it did not answer in time"),
            };
            match fault::judge(&status) {
                Verdict::Login if logins < 2 && self.login.is_some() => {
                    logins += 1;
                    self.forget_token();
                    continue;
                }
                Verdict::Elsewhere => self.avoid(member),
                Verdict::Later | Verdict::Login | Verdict::Final => {}
            }
            repeated |= fault::may_be_done(&status);
            let again = matches!(fault::judge(&status), Verdict::Elsewhere | Verdict::Later);
            if !again || attempt >= ROUNDS * self.endpoints.len() {
                return Err(fault::error(&self.address, &status));
            }
            if attempt % self.endpoints.len() == 0 {
                // Nobody could: an election, most likely.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(50..150))).await;
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn ask<Q, R>(&self, path: &'static str, request: Q, member: usize) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let request = self.request(request, member).await?;
        unary(self.channel(member), path, request).await
    }

    /// Opens a stream of requests and answers with one member.
    pub(super) async fn stream<S, Q, R>(
        &self,
        path: &'static str,
        requests: S,
        member: usize,
    ) -> Result<Streaming<R>, Status>
    where
        S: futures_util::Stream<Item = Q> + Send + 'static,
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let request = self.request(requests, member).await?;
        let mut grpc = Grpc::new(self.channel(member)).max_decoding_message_size(LARGEST);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::from_static(path);
        let codec = ProstCodec::<Q, R>::default();
        grpc.streaming(request, path, codec).await.map(Response::into_inner)
    }

    /// The connection to a member, for this runtime.
    fn channel(&self, member: usize) -> Channel {
        let key = (runtime::Handle::current().id(), member);
        let mut channels = self.channels();
        if channels.len() >= KEPT && !channels.contains_key(&key) {
            channels.clear();
        }
        channels.entry(key).or_insert_with(|| self.endpoints[member].connect_lazy()).clone()
    }

    /// A request with what goes along with it.
    async fn request<T>(&self, body: T, member: usize) -> Result<Request<T>, Status> {
        let mut request = Request::new(body);
        // A member without a leader is to say so, and not to keep us waiting.
        request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            let token = match self.token() {
                Some(token) => token,
                None => self.log_in(login, member).await?,
            };
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    async fn log_in(
        &self,
        (name, Secret(password)): &(String, Secret),
        member: usize,
    ) -> Result<AsciiMetadataValue, Status> {
        let auth = proto::Auth { name: name.clone(), password: password.clone() };
        let request = Request::new(auth);
        let answer: proto::AuthAnswer =
            unary(self.channel(member), proto::AUTHENTICATE, request).await?;
        let token = AsciiMetadataValue::try_from(answer.token)
            .map_err(|_| Status::internal("its token for us is not one"))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(token)
    }

    fn token(&self) -> Option<AsciiMetadataValue> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs in anew before the next request.
    pub(super) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn unary<Q, R>(channel: Channel, path: &'static str, request: Request<Q>) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel).max_decoding_message_size(LARGEST);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Q, R>::default();
    grpc.unary(request, path, codec).await.map(Response::into_inner)
}

fn endpoint(address: &Address, host: &str) -> Result<Endpoint> {
    let scheme = if address.tls { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|error| fault::unusable(address, error))?
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(20)))
        // etcd hangs up on those who ask more often than every 5 s.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(3));
    super::tls::secure(endpoint, address)
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address)
    }
}
